"""CIFAR-100 with VGG11/13/16/19: forgetting the last class.

Paper: Figure 3 and Table 2. From section 6: 100 clients, 25 per round, FedSGD, learning
  rate 0.1, q = 0.01 (IID), R = 0.15. From the authors' released code: momentum 0.9 with
  Nesterov, weight decay 5e-4, cosine schedule, batch 128, crop and flip. Chosen here:
  2,000 rounds, at most 200 of fine-tuning.
Command: python -m fuprune.main --config configs/cifar100_vgg.py:16
Cost: 6.4 million images to pre-train and as many to retrain: for an accelerator, where
  it is not yet measured.
Expected, from the paper's Table 2 (U-set / R-set accuracy in percent; not yet measured
  here):
            raw            pruned        fine-tuned     retrained
    VGG11   50.00 / 53.55  0.00 / 1.28   0.00 / 59.25   0.00 / 58.20
    VGG13   60.00 / 51.88  0.00 / 3.82   0.00 / 59.65   0.00 / 59.27
    VGG16   44.00 / 50.34  0.00 / 1.46   0.00 / 59.72   0.00 / 59.57
    VGG19   52.00 / 52.15  0.00 / 1.02   0.00 / 58.78   0.00 / 58.96
  and 8.4 times fewer rounds than retraining.
"""

from fuprune.config import default


def get_config(depth: str = "11"):
    """Returns the setting for one depth: 11, 13, 16 or 19."""
    config = default()
    config.data.name = "cifar100"
    config.partition.bias = 0.01
    config.model.name = f"vgg{depth}"
    config.unlearn.classes = 99
    config.prune.rate = 0.15
    return config
