"""Every way to forget by name, as `config.unlearn.methods` gives it.

A method is one function in a file of its own and one line here, which says what a run
and a reader need to know about it.
"""

import dataclasses
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

BUDGETS = ("fine_tune", "training", "short")
_GIVEN = ("model", "variables", "data", "classes", "key", "fine_tune")


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to forget, callable like its function (`protocol.UnlearnFn`)."""

    function: Callable[..., UnlearnResult]
    sections: tuple[str, ...] = ()  # of the config, whose keys are its options
    reads_forgotten: bool = False  # looks at the images it is to forget
    trains_on_forgotten: bool = False  # fine-tunes on them, under other labels
    fine_tunes: bool = True  # calls `fine_tune` at all
    # What `fine_tune` is made with: fine-tuning's rounds and schedule, those of a first
    # training, or fine-tuning's rounds with a schedule that starts from scratch.
    budget: str = "fine_tune"
    fixes: tuple[str, ...] = ()  # options that it sets itself

    def __call__(self, *arguments, **options) -> UnlearnResult:
        """Forget; the arguments are those of `function`."""
        return self.function(*arguments, **options)

    @property
    def options(self) -> frozenset[str]:
        """The keyword options it takes beyond what every method is given."""
        names: set[str] = set()
        # A function that takes `**pruning` hands it to `class_pruning`.
        for function in (self.function, class_pruning):
            parameters = inspect.signature(function).parameters.values()
            names |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
        return frozenset(names.difference(_GIVEN, self.fixes))


_CUT = Method(class_pruning, ("prune", "privacy"), reads_forgotten=True)
METHODS: dict[str, Method] = {
    "class_pruning": _CUT,
    "retrain": Method(retrain, budget="training"),
    "fisher": Method(fisher, ("fisher",)),
    "influence": Method(influence, ("influence",), reads_forgotten=True),
    "ascent": Method(ascent, ("ascent",), reads_forgotten=True),
    "amnesiac": Method(amnesiac),
    "regrow": Method(regrow, ("regrow",)),
    "relabel": Method(
        relabel, ("relabel",), reads_forgotten=True, trains_on_forgotten=True
    ),
    "prune_relabel": Method(
        prune_relabel,
        ("prune", "privacy", "relabel"),
        reads_forgotten=True,
        trains_on_forgotten=True,
    ),
    "mask_logit": Method(mask_logit, fine_tunes=False),
    "zero_class_row": Method(zero_class_row, fine_tunes=False),
    "fine_tune_only": Method(fine_tune_only),
    "retrain_short": Method(retrain, budget="short"),
    "prune_random": Method(
        prune_random, ("prune",), reads_forgotten=True, fixes=("order",)
    ),
    "prune_lowest": Method(
        prune_lowest, ("prune",), reads_forgotten=True, fixes=("order",)
    ),
    "prune_then_drop_row": dataclasses.replace(_CUT, function=prune_then_drop_row),
}


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
    return METHODS[name].options
