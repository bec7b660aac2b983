"""CIFAR-10 with VGG11/13/16/19 at a scale for a CPU: forgetting the last class.

Paper: a row of Figure 3 and Table 2, with fewer and smaller rounds. Kept: 100 clients,
  25 per round, FedSGD, q = 0.1, R by depth. Changed: 32 images per client and round
  instead of 128, 100 rounds instead of 2,000, a warm-up to 0.05, and one retrained
  model. Fine-tuning starts from a quarter of training's learning rate, as in
  cifar10_resnet_cpu.py.
Command: python -m fuprune.main --config configs/cifar10_vgg_cpu.py
Cost: 80,000 images to pre-train and as many to retrain, 1.6 passes over the data.
  `--config.runtime.dtype=bfloat16` is 1.6 times as fast on AMD's processors with
  avx512_bf16, and should be on others with AMX; elsewhere it is 0.8 to 0.9 times as
  fast.
Expected: docs/results.md says what came out.
"""

from fuprune.config import load_config, reduce_for_cpu


def get_config(depth: str = "11"):
    """Returns the setting for one depth: 11, 13, 16 or 19."""
    _, config = load_config(f"cifar10_vgg:{depth}")
    reduce_for_cpu(config, rounds=100, learning_rate=0.05, warmup_rounds=10)
    config.phases = "pretrain,unlearn,report"
    config.train.checkpoint_every = 25
    config.train.evaluate_every = 20
    config.unlearn.methods = "class_pruning,fine_tune_only,retrain"
    return config
