"""CIFAR-10 with ResNet20: forgets a class by a cut that knows which channels are its.

Paper: not in it. Channels are scored by contrast instead of TF-IDF, a tenth of them is
  chosen with scores scaled by the width of their layer (`balanced`), and what writes
  them starts afresh (`prune.then=reset`); then the federation fine-tunes without the
  class, with a warm-up to half of training's peak rate and the trained model, the class
  hidden, as teacher of the other images. No forgotten image is ever trained on. All of
  it was chosen on class 0 (benchmarks/cut_study.py); docs/prize.md says how it is
  judged on other classes. `prune.then=remove` gives a slimmer network instead, and
  `prune.rate=auto` the smallest cut that forgets with no round of training.
Command: python -m fuprune.main --config configs/cifar10_resnet_prune.py
    --config.model.load=results/cifar10_resnet20_raw/models/raw.safetensors
    --config.audit.reference=results/cifar10_resnet20_class9,results/cifar10_resnet20_class9_retrained
  A fiftieth of retraining's images instead of a tenth: cifar10_resnet_prune.py:50
  For another class, name its retrained models, or add retrain to unlearn.methods. For
  several classes share the rate, as in --config.prune.rate=0.05 for two.
Cost: 70,000 images for each of six models (14,000 with :50), with one more forward pass
  per image for the teacher; on one core that has avx512_bf16 about two minutes each.
Expected: docs/prize.md.
"""

from fuprune.config import load_config


def get_config(share: str = "10"):
    """Returns the setting for one share of retraining's images, 1/10 or 1/50."""
    _, config = load_config("cifar10_resnet_cpu:20")
    config.unlearn.methods = "class_pruning,fine_tune_only,mask_logit"
    config.prune.score = "contrast"
    config.prune.scope = "balanced"
    config.prune.rate = 0.1
    config.prune.then = "reset"
    config.fine_tune.rounds = round(config.train.rounds / int(share))
    config.fine_tune.schedule = "warmup_cosine"
    config.fine_tune.warmup_rounds = min(15, config.fine_tune.rounds // 2)
    config.fine_tune.learning_rate = 0.125
    config.fine_tune.distill_weight = 0.9
    config.fine_tune.seeds = 3
    config.fine_tune.seeded = "class_pruning,fine_tune_only"
    config.audit.seeds = "all"
    config.phases = "pretrain,unlearn,audit,report"
    config.runtime.dtype = "auto"
    return config
