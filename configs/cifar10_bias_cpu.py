"""CIFAR-10, FedAvg and biased clients at a scale for a CPU: forgetting the last class.

Paper: Table 1 for ResNet20, at a small scale: 20 clients instead of 100, 10 per round,
  the first 500 training and 200 test images of each class, one local epoch instead of
  five, 30 rounds. Fisher forgetting reads 500 of the remaining images.
  Fine-tuning starts from a quarter of training's learning rate, as in
  cifar10_resnet_cpu.py.
Command: python -m fuprune.main --config configs/cifar10_bias_cpu.py:0.45
  The argument is q: 0.1 is IID, 1.0 gives a client one class. Then ten clients may not
  hold every class between them, so that all twenty send statistics.
Cost: 75,000 images to pre-train and 67,500 to retrain.
Expected: docs/results.md says what came out; far below the paper's accuracies, because
  the clients have a tenth of the data.
"""

from fuprune.config import scales


def get_config(bias: str = "0.1"):
    """Returns the setting for one q."""
    config = scales.paper("cifar10", "resnet20", rate=0.05)
    scales.reduce_for_cpu(config, rounds=30, learning_rate=0.1)
    config.phases = "pretrain,unlearn,report"
    config.data.limit = 500
    config.data.test_limit = 200
    config.partition.clients = 20
    config.partition.bias = float(bias)
    config.train.algorithm = "fed_avg"
    config.train.cohort = 10
    config.train.local_epochs = 1
    config.train.checkpoint_every = 10
    config.train.evaluate_every = 5
    config.unlearn.methods = "class_pruning,fisher,fine_tune_only,retrain"
    if config.partition.bias == 1.0:
        config.prune.capture_clients = config.partition.clients
    config.fisher.max_examples = 500
    config.fine_tune.rounds = 8
    config.fine_tune.evaluate_every = 2
    return config
