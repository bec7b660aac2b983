"""Which colour and dash a model has, the same in every figure of a page.

The raw model is grey, retraining is the reference line, the method under test has the
accent colour; the others share a colour-blind safe cycle with changing dashes.
"""

import re
from collections.abc import Iterable, Sequence

RAW = "raw"
RETRAIN = "retrain"
RANDOM = "random_init"
# Ways to bring U-set accuracy to zero that nobody would call forgetting.
CONTROLS = (
    "mask_logit",
    "zero_class_row",
    "fine_tune_only",
    "prune_random",
    "prune_lowest",
    "prune_then_drop_row",
)
_PREFERRED = "class_pruning"
_CYCLE = 12
_SEED = re.compile(r"_seed\d+$")
_RETRAINED = re.compile(r"^retrained_\d+$")


def family(name: str) -> str:
    """Strips the number of a further seed: `retrain_seed2` is a `retrain`."""
    return _RETRAINED.sub("retrained", _SEED.sub("", name))


def is_retrain(name: str) -> bool:
    """Says whether a method or phase is training again without the class."""
    return name.rsplit("/", 1)[-1].startswith(RETRAIN) or f"/{RETRAIN}/" in f"/{name}"


def is_control(name: str) -> bool:
    """Says whether a method is a control, with or without a variant's suffix."""
    return name.startswith(CONTROLS)


def main_method(names: Sequence[str]) -> str | None:
    """Picks the method the page is about among those that are there."""
    others = [
        name
        for name in names
        if not is_retrain(name) and name not in (RAW, RANDOM) and not is_control(name)
    ]
    preferred = [name for name in others if name.startswith(_PREFERRED)]
    return next(iter(preferred or others), None)


def styles(names: Iterable[str]) -> dict[str, str]:
    """Assigns a CSS class to each method, stable under its order of appearance."""
    names = list(dict.fromkeys(names))
    main = main_method(names)
    chosen = {}
    position = 0
    for name in names:
        if main is not None and family(name) == family(main):
            chosen[name] = "main"
        elif is_retrain(name):
            chosen[name] = "gold"
        elif name in (RAW, RANDOM):
            chosen[name] = "raw" if name == RAW else "random"
        elif family(name) in chosen:
            chosen[name] = chosen[family(name)]
        else:
            chosen[name] = f"o{position % _CYCLE}"
            position += 1
    return chosen
