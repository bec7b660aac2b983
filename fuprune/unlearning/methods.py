"""Every way to forget by name, as `config.unlearn.methods` gives it.

A method is one function in a file of its own and one line here, which says what a run
and a reader need to know about it. A function's signature groups options that belong
together (`Reading`, `Cut`, `Noise`, ...): a parameter whose default is a NamedTuple is
such a group. A config and this table know single options by name.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

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
from fuprune.unlearning.fed_eraser import fed_eraser
from fuprune.unlearning.fisher import fisher
from fuprune.unlearning.influence import influence
from fuprune.unlearning.protocol import UnlearnResult
from fuprune.unlearning.regrow import regrow
from fuprune.unlearning.relabel import prune_relabel, relabel
from fuprune.unlearning.request import (
    KINDS,
    ForgetRequest,
    as_request,
    describe_request,
)
from fuprune.unlearning.retrain import retrain
from fuprune.unlearning.sisa import sisa

_GIVEN = ("key", "fine_tune")  # to every method


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to forget, callable like its function (`protocol.UnlearnFn`).

    A call takes every option by its own name, as `options` lists them, or whole groups.
    """

    function: Callable[..., UnlearnResult]
    serves: tuple[str, ...] = ("classes",)  # kinds of request, of `request.KINDS`
    sections: tuple[str, ...] = ()  # of the config, whose keys are its options
    reads_forgotten: bool = False  # looks at the images it is to forget
    trains_on_forgotten: bool = False  # fine-tunes on them, under other labels
    fine_tunes: bool = True  # calls `fine_tune` at all
    # What `fine_tune` is made with: fine-tuning's rounds and schedule, those of a first
    # training, or fine-tuning's rounds with a schedule that starts from scratch.
    budget: str = "fine_tune"
    fixes: tuple[str, ...] = ()  # options that it sets itself

    def __call__(
        self,
        model: Any,
        variables: Any,
        data: Any,
        request: ForgetRequest | tuple[int, ...],
        **options: Any,
    ) -> UnlearnResult:
        """Forget; options by their flat names.

        Raises:
          InputError: it does not serve this kind of request.
        """
        request = as_request(request)
        check_served(self, request)
        packed = dict(options)
        for name, default in self._parameters().items():
            fields = [f for f in _fields(default) if f in options]
            given = {field: packed.pop(field) for field in fields}
            if given:
                packed[name] = packed.get(name, default)._replace(**given)
        return self.function(model, variables, data, request, **packed)

    @property
    def options(self) -> frozenset[str]:
        """The keyword options it takes beyond what every method is given."""
        names: set[str] = set()
        for name, default in self._parameters().items():
            names.update(_fields(default) or (name,))
        return frozenset(names.difference(_GIVEN, self.fixes))

    def _parameters(self) -> dict[str, Any]:
        """The keyword parameters of the function, and their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        found = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            # A function that takes `**pruning` hands it to `class_pruning`.
            found = _CUT._parameters() | found
        return found


def _fields(default: Any) -> tuple[str, ...]:
    """The options in a group; none if it is none."""
    return default._fields if hasattr(default, "_fields") else ()


_CUT = Method(class_pruning, sections=("prune", "privacy"), reads_forgotten=True)
_ERASER = Method(
    fed_eraser, KINDS, ("fed_eraser",), fine_tunes=False, fixes=("calibrate",)
)
METHODS: dict[str, Method] = {
    "class_pruning": _CUT,
    "retrain": Method(retrain, KINDS, budget="training"),
    "fisher": Method(fisher, KINDS, ("fisher",)),
    "influence": Method(influence, KINDS, ("influence",), reads_forgotten=True),
    "ascent": Method(ascent, KINDS, ("ascent",), reads_forgotten=True),
    "amnesiac": Method(amnesiac, KINDS),
    "fed_eraser": _ERASER,
    "sisa": Method(sisa, KINDS, ("sisa",), fine_tunes=False),
    "regrow": Method(regrow, KINDS, ("regrow",)),
    "relabel": Method(
        relabel, sections=("relabel",), reads_forgotten=True, trains_on_forgotten=True
    ),
    "prune_relabel": dataclasses.replace(
        _CUT,
        function=prune_relabel,
        sections=("prune", "privacy", "relabel"),
        trains_on_forgotten=True,
    ),
    "mask_logit": Method(mask_logit, fine_tunes=False),
    "zero_class_row": Method(zero_class_row, fine_tunes=False),
    "fine_tune_only": Method(fine_tune_only, KINDS),
    "retrain_short": Method(retrain, KINDS, budget="short"),
    "fed_eraser_uncalibrated": dataclasses.replace(
        _ERASER, function=functools.partial(fed_eraser, calibrate=False)
    ),
    "prune_random": dataclasses.replace(
        _CUT, function=prune_random, sections=("prune",), fixes=("order",)
    ),
    "prune_lowest": dataclasses.replace(
        _CUT, function=prune_lowest, sections=("prune",), fixes=("order",)
    ),
    "prune_then_drop_row": dataclasses.replace(_CUT, function=prune_then_drop_row),
}


def check_served(method: Method, request: ForgetRequest) -> None:
    """Raises InputError unless the method serves this kind of request."""
    if request.kind in method.serves:
        return
    name = next((n for n, known in METHODS.items() if known == method), "this method")
    others = [n for n, known in METHODS.items() if request.kind in known.serves]
    raise InputError(
        f"{name} serves requests of {' and '.join(method.serves)}, but the request "
        f"names {describe_request(request)}; choose some of {', '.join(others)}."
    )


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
