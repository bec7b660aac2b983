"""CIFAR-10, FedAvg and biased clients at a scale for a CPU: forgetting the last class.

Paper: Table 1 for ResNet20, with its 100 clients and all images, but 10 clients per
  round instead of 25 and one local epoch instead of five. Pruning and Fisher forgetting
  read the images of the same ten participants. Fine-tuning starts from a quarter of
  training's learning rate, as in cifar10_resnet_cpu.py, and has a tenth of its rounds.
Command: python -m fuprune.main --config configs/cifar10_bias_cpu.py:0.45
  The argument is q: 0.1 is IID, 1.0 gives a client one class.
  With q = 1, BatchNorm in training sees one class per batch, and ten clients hold six
  or seven of the classes between them, so a network stays at chance (11.9% after 60
  rounds). Therefore this setting has group norm (Hsieh et al. 2020, The Non-IID Data
  Quagmire) and FedSGD with all hundred clients and 8 images each per round. It uses
  Adam, because SGD with momentum hardly moved this network at a rate of 0.1. All
  hundred clients send statistics, and the Fisher information uses as many images as in
  the other settings. In trials FedAvg learned there, too, with four local steps instead
  of an epoch and Adam at the server.
Cost: 270,000 images to pre-train and 243,000 to retrain; with q = 1, 280,000 each.
Expected: docs/results.md says what came out.
"""

from fuprune.config import default, reduce_for_cpu


def get_config(bias: str = "0.1"):
    """Returns the setting for one q."""
    config = default()
    reduce_for_cpu(config, rounds=60, learning_rate=0.1, warmup_rounds=3)
    config.phases = "pretrain,unlearn,report"
    config.partition.bias = float(bias)
    config.train.algorithm = "fed_avg"
    config.train.cohort = 10
    config.train.local_epochs = 1
    config.train.checkpoint_every = 10
    config.train.evaluate_every = 5
    config.unlearn.methods = (
        "class_pruning,fisher,fine_tune_only,mask_logit,relabel,retrain_short,retrain"
    )
    config.fine_tune.evaluate_every = 1
    if config.partition.bias == 1.0:
        return _one_class_per_client(config)
    return config


def _one_class_per_client(config):
    reduce_for_cpu(
        config, rounds=350, learning_rate=0.002, warmup_rounds=15, batch_size=8
    )
    config.model.norm = "group"
    config.train.algorithm = "fed_sgd"
    config.train.optimizer = "adam"
    config.train.cohort = config.partition.clients
    config.train.checkpoint_every = 50
    config.train.evaluate_every = 25
    config.unlearn.participants = config.partition.clients
    config.fisher.max_examples = 4500
    return config
