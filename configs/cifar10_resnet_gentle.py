"""CIFAR-10 with ResNet20: forgets a class so that an audit does not tell it apart.

Paper: not in it. The method is `relabel` (forgotten images learn the nearest other
  answer, after Boundary Shrink, Chen et al. 2023; it trains on the forgotten images),
  fine-tuned with a warm-up to half of training's peak learning rate and with the
  trained model as teacher of the other images (Hinton et al. 2015). docs/prize.md says
  how it was chosen and why it works. Its control is the same fine-tuning alone.
Command: python -m fuprune.main --config configs/cifar10_resnet_gentle.py
    --config.model.load=results/cifar10_resnet20_raw/models/raw.safetensors
    --config.audit.reference=results/cifar10_resnet20_class9,results/cifar10_resnet20_class9_retrained
  Without model.load it trains the raw model first. For another class, name its
  retrained models, or add retrain to unlearn.methods.
Cost: from the published models, 70,000 images for each of four models with one more
  forward pass per image for the teacher, and an audit of about twenty minutes on two
  cores.
Expected: docs/prize.md; class 9 R 87.1% to 87.2%, U 0.0%, told apart in no headline
  test (three seeds).
"""

from fuprune.config import load_config


def get_config(depth: str = "20"):
    """Returns the setting for one depth: 20, 32, 44 or 56."""
    _, config = load_config(f"cifar10_resnet_cpu:{depth}")
    config.unlearn.methods = "relabel,fine_tune_only"
    config.fine_tune.schedule = "warmup_cosine"
    config.fine_tune.warmup_rounds = 15
    config.fine_tune.learning_rate = 0.125
    config.fine_tune.distill_weight = 0.9
    config.fine_tune.seeded = "relabel"
    return config
