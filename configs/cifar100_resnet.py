"""CIFAR-100 with ResNet20/32/44/56: forgetting the last class.

Paper: Figure 3 and Table 2; Table 1 by the overrides below. From section 6: 100
  clients, 25 per round, FedSGD, learning rate 0.1, q = 0.01 (IID), R = 0.1. From the
  authors' released code: momentum 0.9 with Nesterov, weight decay 5e-4, cosine
  schedule, batch 128, crop and flip. Chosen here: 2,000 rounds, at most 200 of
  fine-tuning.
Command: python -m fuprune.main --config configs/cifar100_resnet.py:56
  Table 1: --config.train.algorithm=fed_avg --config.train.local_epochs=5
           --config.partition.bias=0.35 --config.unlearn.methods=class_pruning,fisher
Cost: 6.4 million images to pre-train and as many to retrain: for an accelerator, where
  it is not yet measured.
Expected, from the paper's Table 2 (U-set / R-set accuracy in percent; not yet measured
  here):
               raw            pruned        fine-tuned     retrained
    ResNet20   54.00 / 50.01  0.00 / 5.38   0.00 / 57.17   0.00 / 57.11
    ResNet32   52.00 / 51.67  0.00 / 1.06   0.00 / 59.62   0.00 / 59.42
    ResNet44   48.00 / 53.25  0.00 / 1.22   0.00 / 60.41   0.00 / 59.85
    ResNet56   44.00 / 52.91  0.00 / 1.32   0.00 / 59.60   0.00 / 59.28
  and 9.9 times fewer rounds than retraining.
"""

from fuprune.config import default


def get_config(depth: str = "20"):
    """Returns the setting for one depth: 20, 32, 44 or 56."""
    config = default()
    config.data.name = "cifar100"
    config.partition.bias = 0.01
    config.model.name = f"resnet{depth}"
    config.unlearn.classes = 99
    config.prune.rate = 0.1
    return config
