"""What several files in `configs/` start from, so that each says only what is its own.

`paper` is the setting of the paper's section 6; `reduce_for_cpu` makes one of a setting
that a CPU can train.
"""

from fuprune.config import Config, default
from fuprune.data.known_sets import KNOWN_SETS


def paper(data: str, network: str, rate: float) -> Config:
    """Returns the paper's setting: IID clients, and the last class is forgotten.

    `rate` is R, the share of channels to cut.
    """
    classes = len(KNOWN_SETS[data].class_names)
    config = default()
    config.data.name = data
    config.model.name = network
    config.partition.bias = 1 / classes
    config.unlearn.classes = classes - 1
    config.prune.rate = rate
    return config


def reduce_for_cpu(
    config: Config,
    *,
    rounds: int,
    learning_rate: float,
    warmup_rounds: int = 0,
    batch_size: int = 32,
) -> None:
    """Shortens training and fine-tuning in place, in smaller batches.

    Fine-tuning has a tenth of training's rounds, from a quarter of its learning rate
    along a cosine: more undoes the network before it mends it. It does not stop at its
    target, so that every method gets the same budget.
    """
    train, fine_tune = config.train, config.fine_tune
    train.rounds = rounds
    train.batch_size = batch_size
    train.learning_rate = learning_rate
    if warmup_rounds:
        train.schedule = "warmup_cosine"
        train.warmup_rounds = warmup_rounds
    fine_tune.rounds = rounds // 10
    fine_tune.learning_rate = learning_rate / 4
    fine_tune.schedule = "cosine"
    fine_tune.stop_at_target = False
    fine_tune.evaluate_every = 5
