"""Every way to forget by name, as `config.unlearn.methods` gives it."""

import inspect
from collections.abc import Callable, Iterable

from fuprune.errors import InputError
from fuprune.unlearning.amnesiac import amnesiac
from fuprune.unlearning.ascent import ascent
from fuprune.unlearning.class_pruning import class_pruning
from fuprune.unlearning.controls import (
    fine_tune_only,
    mask_logit,
    prune_lowest,
    prune_random,
    prune_then_drop_row,
    zero_class_row,
)
from fuprune.unlearning.fisher import fisher
from fuprune.unlearning.influence import influence
from fuprune.unlearning.protocol import UnlearnResult
from fuprune.unlearning.regrow import regrow
from fuprune.unlearning.relabel import prune_relabel, relabel
from fuprune.unlearning.retrain import retrain

METHODS: dict[str, Callable[..., UnlearnResult]] = {
    "class_pruning": class_pruning,
    "retrain": retrain,
    "fisher": fisher,
    "influence": influence,
    "ascent": ascent,
    "amnesiac": amnesiac,
    "regrow": regrow,
    "relabel": relabel,
    "prune_relabel": prune_relabel,
    "mask_logit": mask_logit,
    "zero_class_row": zero_class_row,
    "fine_tune_only": fine_tune_only,
    "prune_random": prune_random,
    "prune_lowest": prune_lowest,
    "prune_then_drop_row": prune_then_drop_row,
}
# Methods that by their definition look at the images they are to forget.
READS_FORGOTTEN = frozenset(
    {
        "class_pruning",
        "influence",
        "ascent",
        "relabel",
        "prune_relabel",
        "prune_random",
        "prune_lowest",
        "prune_then_drop_row",
    }
)
# Those among them that also fine-tune on such images, under other labels.
TRAINS_ON_FORGOTTEN = frozenset({"relabel", "prune_relabel"})
_GIVEN = ("model", "variables", "data", "classes", "key", "fine_tune")


def select(names: str | Iterable[str]) -> tuple[str, ...]:
    """Method names in the order given; "all" is every one."""
    if names == "all":
        return tuple(METHODS)
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        if name not in METHODS:
            raise InputError(
                f"method {name!r} is unknown; choose all or some of "
                f"{', '.join(METHODS)}."
            )
    return chosen


def options_of(name: str) -> frozenset[str]:
    """The keyword options a method takes beyond what all are given."""
    (name,) = select((name,))
    options: set[str] = set()
    for function in (METHODS[name], class_pruning):
        parameters = inspect.signature(function).parameters.values()
        options |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    if name in ("prune_random", "prune_lowest"):
        options.discard("order")
    return frozenset(options.difference(_GIVEN))
