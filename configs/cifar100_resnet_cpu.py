"""CIFAR-100 with ResNet20/32/44/56 at a scale for a CPU: forgetting the last class.

Paper: a row of Figure 3 and Table 2, with smaller rounds. Kept: 100 clients, 25 per
  round, FedSGD, q = 0.01, R = 0.1. Changed: 16 images per client and round instead of
  128, 2,400 rounds instead of 2,000, a warm-up to 0.25, and one retrained model.
  Fine-tuning starts from a quarter of training's learning rate, as in
  cifar10_resnet_cpu.py.
Command: python -m fuprune.main --config configs/cifar100_resnet_cpu.py
Cost: 960,000 images to pre-train and as many to retrain, 96,000 for each other method.
  One core with AVX-512 trains about 400 images per second with oneDNN.
Expected, seed 0, on 20,000 of the training images (U-set / R-set accuracy in percent):
  raw 56.0 / 57.1, after the cut 0.0 / 4.6, fine-tuned 0.0 / 55.4, retrained 0.0 / 56.9,
  fine-tuned without a cut 0.0 / 56.9; docs/results.md says what follows.
"""

from fuprune.config import load_config, reduce_for_cpu


def get_config(depth: str = "20"):
    """Returns the setting for one depth: 20, 32, 44 or 56."""
    _, config = load_config(f"cifar100_resnet:{depth}")
    reduce_for_cpu(
        config, rounds=2400, learning_rate=0.25, warmup_rounds=96, batch_size=16
    )
    config.phases = "pretrain,unlearn,report"
    config.train.checkpoint_every = 200
    config.train.evaluate_every = 200
    config.fine_tune.evaluate_every = 40
    config.unlearn.methods = (
        "class_pruning,fine_tune_only,mask_logit,relabel,retrain_short,retrain"
    )
    return config
