"""CIFAR-10 with VGG11/13/16/19 at a scale for a CPU: forgetting the last class.

Paper: a row of Figure 3 and Table 2, with fewer and smaller rounds. Kept: 100 clients,
  25 a round, FedSGD, q = 0.1, R by depth. Changed: 32 images a client a round instead
  of 128, 100 rounds instead of 2,000, a warm-up to 0.05, and one retrained model.
  Fine-tuning starts from a quarter of training's learning rate, as in
  cifar10_resnet_cpu.py.
Command: python -m fuprune.main --config configs/cifar10_vgg_cpu.py
Cost: 80,000 images to pre-train and as many to retrain, 1.6 passes over the data.
Expected: docs/results.md says what came out.
"""

from fuprune import config as config_lib

RATES = {"11": 0.10, "13": 0.17, "16": 0.11, "19": 0.11}


def get_config(depth: str = "11"):
    """Returns the setting for one depth: 11, 13, 16 or 19."""
    config = config_lib.default()
    config.phases = "pretrain,unlearn,report"
    config.data.name = "cifar10"
    config.model.name = f"vgg{depth}"
    config.partition.bias = 0.1
    config.train.rounds = 100
    config.train.batch_size = 32
    config.train.learning_rate = 0.05
    config.train.schedule = "warmup_cosine"
    config.train.warmup_rounds = 10
    config.train.checkpoint_every = 25
    config.train.evaluate_every = 20
    config.unlearn.classes = 9
    config.unlearn.methods = "class_pruning,fine_tune_only,retrain"
    config.prune.rate = RATES.get(depth, 0.1)
    config.fine_tune.rounds = 10
    config.fine_tune.learning_rate = 0.0125
    config.fine_tune.schedule = "cosine"
    config.fine_tune.stop_at_target = False
    config.fine_tune.evaluate_every = 5
    return config
