"""CIFAR-10, FedAvg and biased clients at a scale for a CPU: forgetting the last class.

Paper: Table 1 for ResNet20, with its 100 clients and all images, but 10 clients per
  round instead of 25 and one local epoch instead of five. Pruning and Fisher forgetting
  read the images of the same ten participants. Fine-tuning starts from a quarter of
  training's learning rate, as in cifar10_resnet_cpu.py, and has a tenth of its rounds.
Command: python -m fuprune.main --config configs/cifar10_bias_cpu.py:0.45
  The argument is q: 0.1 is IID, 1.0 gives a client one class. Then ten clients may not
  hold every class between them, so that all hundred send statistics.
Cost: 270,000 images to pre-train and 243,000 to retrain.
Expected: docs/results.md says what came out.
"""

from fuprune.config import scales


def get_config(bias: str = "0.1"):
    """Returns the setting for one q."""
    config = scales.paper("cifar10", "resnet20", rate=0.05)
    scales.reduce_for_cpu(config, rounds=60, learning_rate=0.1, warmup_rounds=3)
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
    if config.partition.bias == 1.0:
        config.unlearn.participants = config.partition.clients
    config.fine_tune.evaluate_every = 1
    return config
