"""CIFAR-10 with ResNet20/32/44/56 at a scale for a CPU: forgetting the last class.

Paper: Figure 3 and Tables 2, 4 and 5, with smaller rounds. Kept: 100 clients, 25 per
  round, FedSGD, q = 0.1, R by depth, momentum, weight decay, crop and flip.
  Changed: 16 images per client and round instead of 128, 1,750 rounds instead of 2,000,
  and a warm-up to a peak learning rate of 0.25 before the cosine, for a run this short:
  many small rounds learn more from as many images than few large ones.
  Fine-tuning has a tenth of retraining's rounds and starts at a quarter of the peak
  along a cosine; docs/prize.md has larger rates. It does not stop at its target, so
  that every method gets the same budget. Added: `relabel`, after Boundary Shrink (Chen
  et al. 2023), and `retrain_short`, the control of the budget.
Command: python -m fuprune.main --config configs/cifar10_resnet_cpu.py
  Table 3: --config.unlearn.classes=0,9
  Scores compared by layer or by share: --config.prune.scope=layer, or balanced
  Retraining shared by several machines: --config.unlearn.retrain_first=3, and their
  workdirs in --config.audit.reference
Cost: 700,000 images (1,750 rounds x 25 clients x 16, 15.6 passes over the data) to
  pre-train and for each of five retrained models, 70,000 for each other method. With
  oneDNN, about 360 images per second on two cores that have AVX2 only; two
  runs with a core each have 260 each, or 445 with AVX-512, 26 minutes per model.
  `--config.runtime.dtype=bfloat16` is 1.7 times as fast on AMD's processors with
  avx512_bf16 and should help on processors with AMX, which is not measured; elsewhere
  it is 0.8 to 1.1 times as fast.
Expected: docs/results.md says what came out.
"""

from fuprune.config import load_config, reduce_for_cpu


def get_config(depth: str = "20"):
    """Returns the setting for one depth: 20, 32, 44 or 56."""
    _, config = load_config(f"cifar10_resnet:{depth}")
    reduce_for_cpu(
        config, rounds=1750, learning_rate=0.25, warmup_rounds=70, batch_size=16
    )
    config.train.checkpoint_every = 175
    config.train.evaluate_every = 175
    config.fine_tune.evaluate_every = 25
    config.unlearn.methods = (
        "class_pruning,fine_tune_only,prune_random,prune_lowest,prune_then_drop_row,"
        "mask_logit,zero_class_row,relabel,retrain_short,retrain"
    )
    config.unlearn.retrain_seeds = 5
    config.fine_tune.seeds = 3
    return config
