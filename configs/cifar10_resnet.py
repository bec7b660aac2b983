"""CIFAR-10 with ResNet20/32/44/56: forgetting the last class.

Paper: Figure 3 and Table 2 as they stand; Tables 1, 3, 4 and 5 by the overrides below.
  From section 6: 100 clients, 25 per round, FedSGD, learning rate 0.1, q = 0.1 (IID).
  From the authors' released code, where the paper is silent: R by depth (the paper says
  0.05 for all), momentum 0.9 with Nesterov, weight decay 5e-4, cosine schedule, batch
  128, crop and flip. Chosen here, where both are silent: 2,000 rounds of training, at
  most 200 of fine-tuning, which ends at the raw model's R-set accuracy.
Command: python -m fuprune.main --config configs/cifar10_resnet.py:56
  Table 1: --config.train.algorithm=fed_avg --config.train.local_epochs=5
           --config.partition.bias=0.45 --config.unlearn.methods=class_pruning,fisher
  Table 3: --config.unlearn.classes=0,9
  Tables 4 and 5: --config.unlearn.retrain_seeds=3, for the audit's spread.
Cost: 6.4 million images (2,000 rounds x 25 clients x 128) to pre-train and as many to
  retrain: for an accelerator, where it is not yet measured. On a CPU take
  configs/cifar10_resnet_cpu.py; after its first rounds a run says how long it will be.
Expected, from the paper's Table 2 (U-set / R-set accuracy in percent; not yet measured
  here):
               raw            pruned         fine-tuned     retrained
    ResNet20   91.50 / 83.33  0.00 / 20.79   0.00 / 86.40   0.00 / 86.33
    ResNet32   94.20 / 83.71  0.00 / 11.58   0.00 / 86.40   0.00 / 86.14
    ResNet44   89.90 / 83.94  0.00 / 22.19   0.00 / 86.48   0.00 / 86.34
    ResNet56   93.10 / 84.02  0.00 / 11.11   0.00 / 86.42   0.00 / 86.38
  and 8.9 to 11.0 times fewer rounds than retraining.
"""

from fuprune.config import default

RATES = {"20": 0.05, "32": 0.05, "44": 0.06, "56": 0.04}


def get_config(depth: str = "20"):
    """Returns the setting for one depth: 20, 32, 44 or 56."""
    # An unknown depth is refused by its model's name.
    config = default()
    config.model.name = f"resnet{depth}"
    config.prune.rate = RATES.get(depth, 0.05)
    return config
