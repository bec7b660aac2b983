"""Quickstart: the whole pipeline on scikit-learn's digits, on a laptop's CPU.

The clients train on 20 images per class (22, of which validation takes 2), so that the
network memorises them and membership tests can see something. With all images of this
set they could not; `--config.data.limit=0` takes all.

Channels are scored by contrast, and the clients' own answers decide how many are cut
(`prune.rate=auto`): the smallest cut after which the class is unknown. A few rounds of
fine-tuning are enough after it.

Paper: none of its tables; data that comes with a dependency (8x8 pixels, ten classes, a
  test set of 355 images), and the score and rate that the paper does not have.
Command: make quickstart
  or python -m fuprune.main --config configs/quickstart.py --workdir runs/quickstart
Cost: about half a minute on two cores.
Expected (seed 0, on one machine; another gives numbers a point or two away): class 9
  from 88.9% to 0% with the cut alone (the others 73.4%), 86.8% after 4 rounds (five
  retrained models: 88.2% on average after 20); mask_logit does as well in the audit,
  which on ten clients' digits has no power to tell; fine_tune_only keeps the class.
"""

from fuprune.config import default


def get_config():
    """Returns the setting that also runs when no --config is given."""
    config = default()
    config.data.name = "digits"
    # 22 per class, of which validation takes 2: few enough to be memorised, so that
    # membership tests can see something.
    config.data.limit = 22
    config.model.name = "resnet8"
    config.partition.clients = 10
    config.partition.bias = 0.3
    config.train.algorithm = "fed_avg"
    config.train.rounds = 20
    config.train.cohort = 10
    config.train.local_epochs = 2
    config.train.batch_size = 16
    config.train.learning_rate = 0.1
    config.train.augment = False  # a flipped digit is another digit
    config.train.evaluate_every = 1
    config.train.checkpoint_every = 10
    config.unlearn.methods = "class_pruning,retrain,mask_logit,fine_tune_only"
    config.unlearn.retrain_seeds = 5
    config.prune.score = "contrast"
    config.prune.rate = "auto"
    config.fine_tune.rounds = 4
    config.fine_tune.schedule = "cosine"
    config.fine_tune.target_accuracy = 0.9  # reached by all, so that rounds compare
    config.fine_tune.stop_at_target = False  # the same budget for every method
    config.runtime.compilation = "quick"  # compiling takes longer than running here
    return config


def finish(config, keys):
    """Takes all images of data that the user chose, whose few would not be enough."""
    if config.data.name != "digits" and "data.limit" not in keys:
        config.data.limit = 0
