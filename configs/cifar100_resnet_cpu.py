"""CIFAR-100 with ResNet20/32/44/56 at a scale for a CPU: forgetting the last class.

Paper: a row of Figure 3 and Table 2, with fewer and smaller rounds. Kept: 100 clients,
  25 a round, FedSGD, q = 0.01, R = 0.1. Changed: 32 images a client a round instead of
  128, 450 rounds instead of 2,000, a warm-up to 0.2, and one retrained model.
  Fine-tuning starts from a quarter of training's learning rate, as in
  cifar10_resnet_cpu.py.
Command: python -m fuprune.main --config configs/cifar100_resnet_cpu.py
Cost: 360,000 images to pre-train and as many to retrain.
Expected: docs/results.md says what came out.
"""

from fuprune import config as config_lib


def get_config(depth: str = "20"):
    """Returns the setting for one depth: 20, 32, 44 or 56."""
    config = config_lib.default()
    config.phases = "pretrain,unlearn,report"
    config.data.name = "cifar100"
    config.model.name = f"resnet{depth}"
    config.partition.bias = 0.01
    config.train.rounds = 450
    config.train.batch_size = 32
    config.train.learning_rate = 0.2
    config.train.schedule = "warmup_cosine"
    config.train.warmup_rounds = 30
    config.train.checkpoint_every = 50
    config.train.evaluate_every = 30
    config.unlearn.classes = 99
    config.unlearn.methods = "class_pruning,fine_tune_only,retrain"
    config.prune.rate = 0.1
    config.fine_tune.rounds = 45
    config.fine_tune.learning_rate = 0.05
    config.fine_tune.schedule = "cosine"
    config.fine_tune.stop_at_target = False
    config.fine_tune.evaluate_every = 5
    return config
