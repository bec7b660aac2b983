"""CIFAR-10 with ResNet20/32/44/56 at a scale for a CPU: forgetting the last class.

Paper: Figure 3 and Table 2, with fewer and smaller rounds. Kept: 100 clients, 25 a
  round, FedSGD, q = 0.1, R by depth, momentum, weight decay, crop and flip. Changed: 32
  images a client a round instead of 128, 600 rounds instead of 2,000, and a warm-up to
  a peak learning rate of 0.2 before the cosine, for a run this short.
Command: python -m fuprune.main --config configs/cifar10_resnet_cpu.py
Cost: 480,000 images (600 rounds x 25 clients x 32, 9.6 passes over the data) to
  pre-train, and as many for each of three retrained models. Hours on two cores, not yet
  measured; after its first rounds a run says how long it will be.
Expected: accuracies below the paper's, for the training is shorter; the same order of
  raw, pruned, fine-tuned and retrained. Not yet measured.
"""

from fuprune import config as config_lib

RATES = {"20": 0.05, "32": 0.05, "44": 0.06, "56": 0.04}


def get_config(depth: str = "20"):
    """Returns the setting for one depth: 20, 32, 44 or 56."""
    config = config_lib.default()
    config.data.name = "cifar10"
    config.model.name = f"resnet{depth}"
    config.partition.bias = 0.1
    config.train.rounds = 600
    config.train.batch_size = 32
    config.train.learning_rate = 0.2
    config.train.schedule = "warmup_cosine"
    config.train.warmup_rounds = 30
    config.train.checkpoint_every = 50
    config.unlearn.classes = 9
    config.unlearn.retrain_seeds = 3
    config.prune.rate = RATES.get(depth, 0.05)
    config.fine_tune.rounds = 100
    config.fine_tune.evaluate_every = 2
    return config
