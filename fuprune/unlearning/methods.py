"""Every way to forget by name, as `config.unlearn.methods` gives it.

A method is one function in a file of its own and one line here, which says what a
config, a run and a reader need to know about it. The function is imported when it is
needed, so that a config is checked before JAX is loaded. A function's signature groups
options that belong together (`Reading`, `Cut`, `Noise`, ...): a parameter whose default
is a NamedTuple is such a group. A config and this table know single options by name.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fuprune.errors import InputError

if TYPE_CHECKING:
    from fuprune.unlearning.protocol import UnlearnResult
    from fuprune.unlearning.request import ForgetRequest

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
    # Of a control, which brings U-set accuracy to zero and which nobody would call
    # forgetting: what it does.
    control: str = ""

    @property
    def function(self) -> "Callable[..., UnlearnResult]":
        """The function itself."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(f"fuprune.unlearning.{module}"), name)

    def __call__(
        self,
        model: Any,
        variables: Any,
        data: Any,
        request: "ForgetRequest | tuple[int, ...]",
        **options: Any,
    ) -> "UnlearnResult":
        """Forget; options by their flat names.

        Raises:
          InputError: it does not serve this kind of request.
        """
        from fuprune.unlearning.request import as_request

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
METHODS: dict[str, Method] = {
    "class_pruning": _CUT,
    "retrain": Method("retrain:retrain", _ALL, budget="training"),
    "fisher": Method("fisher:fisher", _ALL, ("fisher",)),
    "influence": Method(
        "influence:influence", _ALL, ("influence",), reads_forgotten=True
    ),
    "ascent": Method("ascent:ascent", _ALL, ("ascent",), reads_forgotten=True),
    "amnesiac": Method("amnesiac:amnesiac", _ALL, needs="history_bytes"),
    "fed_eraser": _ERASER,
    "sisa": Method("sisa:sisa", _ALL, ("sisa",), fine_tunes=False),
    "regrow": Method("regrow:regrow", _ALL, ("regrow",)),
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
    "mask_logit": Method(
        "controls:mask_logit", fine_tunes=False, control="only hides the output"
    ),
    "zero_class_row": Method(
        "controls:zero_class_row",
        fine_tunes=False,
        control="only clears weights of the last layer",
    ),
    "fine_tune_only": Method(
        "controls:fine_tune_only", _ALL, control="removes nothing"
    ),
    "retrain_short": Method(
        "retrain:retrain",
        _ALL,
        budget="short",
        control="trains again from scratch for a tenth of the rounds",
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


def check_served(method: Method, request: "ForgetRequest") -> None:
    """Raises InputError unless the method serves this kind of request."""
    if request.kind in method.serves:
        return
    name = next((n for n, known in METHODS.items() if known == method), "this method")
    others = [n for n, known in METHODS.items() if request.kind in known.serves]
    from fuprune.unlearning.request import describe_request

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
