"""Every way to forget by name, as `config.unlearn.methods` gives it.

A method is one function in a file of its own, declared there with `method.method`: the
modules of this package are searched for them, and so is every installed package that
has an entry point in the group `fuprune.methods`.
"""

import dataclasses
import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

import fuprune.unlearning
from fuprune.errors import InputError
from fuprune.unlearning.method import METHODS, check_served
from fuprune.unlearning.protocol import UnlearnResult
from fuprune.unlearning.request import ForgetRequest, as_request

ENTRY_POINTS = "fuprune.methods"

_GIVEN = ("key", "fine_tune")  # to every method


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to forget, callable like its function (`protocol.UnlearnFn`).

    A call takes every option by its own name, as `options` lists them, or whole groups.
    """

    home: str  # module:function, in this package
    serves: tuple[str, ...] = ("classes",)  # kinds of request, as `ForgetRequest` has
    sections: tuple[str, ...] = ()  # of the config, whose keys are its options
    reads_forgotten: bool = False  # looks at the images it is to forget
    trains_on_forgotten: bool = False  # fine-tunes on them, under other labels
    fine_tunes: bool = True  # calls `fine_tune` at all
    # What `fine_tune` is made with: fine-tuning's rounds and schedule, those of a first
    # training, or fine-tuning's rounds with a schedule that starts from scratch.
    budget: str = "fine_tune"
    fixes: tuple[str, ...] = ()  # options that it sets itself
    needs: str = ""  # the key of `train` that keeps the record which it reads
    needs_every_round: bool = False  # with that key at 1
    # Of a control, which brings U-set accuracy to zero and which nobody would call
    # forgetting: what it does.
    control: str = ""

    @property
    def function(self) -> Callable[..., UnlearnResult]:
        """The function itself."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(f"fuprune.unlearning.{module}"), name)

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


_ALL = ("classes", "clients", "examples")
_CUT = Method(
    "class_pruning:class_pruning", sections=("prune", "privacy"), reads_forgotten=True
)
_ERASER = Method(
    "fed_eraser:fed_eraser",
    _ALL,
    ("fed_eraser",),
    fine_tunes=False,
    fixes=("calibrate",),
    needs="history_interval",
)
_TABLE: dict[str, Method] = {
    "class_pruning": _CUT,
    "fisher": Method("fisher:fisher", _ALL, ("fisher",)),
    "influence": Method(
        "influence:influence", _ALL, ("influence",), reads_forgotten=True
    ),
    "ascent": Method("ascent:ascent", _ALL, ("ascent",), reads_forgotten=True),
    "amnesiac": Method(
        "amnesiac:amnesiac", _ALL, needs="history_interval", needs_every_round=True
    ),
    "fed_eraser": _ERASER,
    "relabel": Method(
        "relabel:relabel",
        sections=("relabel",),
        reads_forgotten=True,
        trains_on_forgotten=True,
    ),
    "prune_relabel": dataclasses.replace(
        _CUT,
        home="relabel:prune_relabel",
        sections=("prune", "privacy", "relabel"),
        trains_on_forgotten=True,
    ),
    "fed_eraser_uncalibrated": dataclasses.replace(
        _ERASER,
        home="fed_eraser:fed_eraser_uncalibrated",
        control="adds up recorded updates and trains nothing",
    ),
    "prune_random": dataclasses.replace(
        _CUT,
        home="controls:prune_random",
        sections=("prune",),
        fixes=("order",),
        control="cuts channels at random",
    ),
    "prune_lowest": dataclasses.replace(
        _CUT,
        home="controls:prune_lowest",
        sections=("prune",),
        fixes=("order",),
        control="cuts the channels that matter least",
    ),
    "prune_then_drop_row": dataclasses.replace(
        _CUT,
        home="controls:prune_then_drop_row",
        control="also clears weights of the last layer",
    ),
}


def _discover() -> None:
    """Puts every method that can be found into `METHODS`, controls last."""
    METHODS.update(_TABLE)
    for module in pkgutil.iter_modules(fuprune.unlearning.__path__):
        if module.name != __name__.rpartition(".")[2]:
            importlib.import_module(f"{fuprune.unlearning.__name__}.{module.name}")
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:
            # Somebody else's package must not stop runs that do not need it.
            logging.getLogger(__name__).warning(
                "the methods of %s cannot be used: %s: %s",
                point.value,
                type(error).__name__,
                error,
            )
    found = sorted(METHODS.items(), key=lambda one: (bool(one[1].control), one[0]))
    METHODS.clear()
    METHODS.update(found)


_discover()


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
