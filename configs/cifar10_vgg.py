"""CIFAR-10 with VGG11/13/16/19: forgetting the last class.

Paper: Figure 3 and Table 2. From section 6: 100 clients, 25 per round, FedSGD, learning
  rate 0.1, q = 0.1 (IID). From the authors' released code: R by depth (the paper says
  0.1 for all), momentum 0.9 with Nesterov, weight decay 5e-4, cosine schedule, batch
  128, crop and flip. Chosen here: 2,000 rounds, at most 200 of fine-tuning.
Command: python -m fuprune.main --config configs/cifar10_vgg.py:16
Cost: 6.4 million images to pre-train and as many to retrain: for an accelerator, where
  it is not yet measured.
Expected, from the paper's Table 2 (U-set / R-set accuracy in percent; not yet measured
  here):
            raw            pruned         fine-tuned     retrained
    VGG11   88.20 / 84.72  0.00 / 18.29   0.00 / 87.24   0.00 / 87.13
    VGG13   91.50 / 84.19  0.00 / 15.17   0.00 / 89.18   0.00 / 89.09
    VGG16   91.60 / 84.38  0.00 / 17.79   0.00 / 89.20   0.00 / 89.30
    VGG19   88.80 / 83.53  0.00 / 11.11   0.00 / 89.72   0.00 / 89.62
  and 7.9 to 9.1 times fewer rounds than retraining.
"""

from fuprune.config import default

RATES = {"11": 0.10, "13": 0.17, "16": 0.11, "19": 0.11}


def get_config(depth: str = "11"):
    """Returns the setting for one depth: 11, 13, 16 or 19."""
    # An unknown depth is refused by its model's name.
    config = default()
    config.model.name = f"vgg{depth}"
    config.prune.rate = RATES.get(depth, 0.1)
    return config
