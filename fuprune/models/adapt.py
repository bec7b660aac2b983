"""One way to call any network, whoever wrote it.

Everything here trains, evaluates and cuts a network through two functions:

    variables = model.init(key, images, train=False)
    logits = model.apply(variables, images, train=False, mask=None)
    logits, new = model.apply(
        ..., train=True, mask=mask, mutable=["batch_stats"], rngs={"dropout": key}
    )

`variables` is {"params": ..., "batch_stats": ...}, images are float [B, H, W, C],
logits [B, U], and `mask` [B] is nonzero for real examples. `adapt` gives that form to
Linen modules of other conventions, to NNX modules and to plain functions. What it
returns is hashable, and equal for equal networks, so it is static under jit.
"""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from fuprune.errors import InputError

Variables = Mapping[str, Any]  # {"params": ..., "batch_stats": ...}
TRAINING_NAMES = ("train", "training", "is_training")
EVALUATION_NAMES = ("deterministic", "use_running_average", "inference")


class Convention(NamedTuple):
    """The arguments by which a network's call learns of training and padding."""

    training: tuple[str, ...] = ()  # arguments that are true in training
    evaluation: tuple[str, ...] = ()  # arguments that are true in evaluation
    takes_mask: bool = False

    def arguments(self, train: bool, mask=None) -> dict[str, Any]:
        """Keyword arguments of one call."""
        chosen: dict[str, Any] = {name: train for name in self.training}
        chosen |= {name: not train for name in self.evaluation}
        return chosen | ({"mask": mask} if self.takes_mask else {})


def adapt(
    model,
    *,
    init: Callable | None = None,
    takes_mask: bool | None = None,
    rngs: tuple[str, ...] = ("dropout",),
) -> Any:
    """A network in the form of this module's first lines.

    Networks that have it already, such as those of the zoo, come back as they are.
    A network learns whether it is in training from those arguments of its call, or
    attributes of a Linen module, that are named in `TRAINING_NAMES` and
    `EVALUATION_NAMES`. A network that takes no mask normalises over whole batches,
    which is sound because padding repeats the client's own images
    (`federated.client.gather_batch`).

    Args:
      model: a Linen module; an NNX module, or the class or function of `rngs` that
        makes one; an object with `apply` and perhaps `init`; or a function
        `(variables, images, ...) -> logits`.
      init: `(key, images) -> variables`, for a function.
      takes_mask: whether the argument `mask` of its call, if it has one, is this
        module's; by default yes. An attention mask, for instance, is not.
      rngs: names of the streams of random numbers that a Linen module draws from.

    Example:
      >>> net = adapt(nn.Sequential([nn.Conv(8, (3, 3)), lambda x: x.mean((1, 2))]))
      >>> variables = net.init(jax.random.key(0), jnp.zeros((1, 6, 6, 1)))
      >>> net.apply(variables, jnp.zeros((2, 6, 6, 1)), train=False).shape
      (2, 8)
    """
    if isinstance(model, Network):
        return model
    if isinstance(model, nn.Module):
        convention = _read_convention(_parameters(type(model).__call__), takes_mask)
        if convention == Convention(("train",), (), True):
            return model
        return LinenNetwork(model, convention, tuple(rngs))
    if isinstance(model, nnx.Module):
        adapted = getattr(model, "adapted", None)  # it stands for such a network
        return adapted or _adapt_nnx(model, None, takes_mask)
    if _makes_nnx(model):
        # Shapes only: the graph is needed here, and no weights.
        return _adapt_nnx(nnx.eval_shape(lambda: _make(model, 0)), model, takes_mask)
    apply = getattr(model, "apply", model)
    linen_class = isinstance(model, type) and issubclass(model, nn.Module)
    if linen_class or not callable(apply):
        kind = model if linen_class else type(model)
        what = f"{'the class' if linen_class else 'a'} {kind.__name__}"
        raise InputError(
            f"model is {what}, which is no network; give a Linen or NNX module, or a "
            "function (variables, images) -> logits."
        )
    names = _parameters(apply)
    if {"train", "mask", "mutable", "rngs"} <= names.keys() and model is not apply:
        return model
    return FunctionNetwork(
        apply,
        init if init is not None else getattr(model, "init", None),
        _read_convention(names, takes_mask),
        tuple(name for name in ("mutable", "rngs") if name in names),
    )


def _parameters(function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in callables do not tell
        return {}


def _read_convention(names: Collection[str], takes_mask: bool | None) -> Convention:
    return Convention(
        tuple(name for name in TRAINING_NAMES if name in names),
        tuple(name for name in EVALUATION_NAMES if name in names),
        "mask" in names and takes_mask is not False,
    )


class Network:
    """A network of this package in the form of this module's first lines."""


@dataclasses.dataclass(frozen=True)
class LinenNetwork(Network):
    """A Linen module of any convention, called by ours."""

    module: nn.Module
    convention: Convention
    streams: tuple[str, ...] = ("dropout",)

    def __hash__(self):
        """By value, or by identity if the module has attributes without a hash."""
        try:
            return hash((self.module, self.convention, self.streams))
        except TypeError:
            return id(self.module)

    def init(self, key, images, train: bool = False):
        """Fresh variables."""
        streams = {
            name: jax.random.fold_in(key, i) for i, name in enumerate(self.streams)
        }
        return self._at(train).init(
            {"params": key, **streams}, images, **self.convention.arguments(train)
        )

    def apply(self, variables, images, train=False, mask=None, *, rngs=None, **options):
        """Logits [B, U], and the updated collections if `mutable` names any.

        Every stream gets a key of its own from the one that `rngs` has for dropout; the
        options are those of `nn.Module.apply`.
        """
        if rngs:
            key = rngs["dropout"]
            rngs = {
                # The first stream has the key as it is: with dropout alone, the module
                # draws what it would draw by itself.
                name: jax.random.fold_in(key, i) if i else key
                for i, name in enumerate(self.streams)
            }
        options |= self.convention.arguments(train, mask)
        return self._at(train).apply(variables, images, rngs=rngs, **options)

    def _at(self, train):
        """The module with those of its attributes set that say the same."""
        fields = [field.name for field in dataclasses.fields(self.module)]
        # Some modules take the mode as an attribute, which only a clone can change.
        settings = _read_convention(fields, takes_mask=False).arguments(train)
        return self.module.clone(**settings) if settings else self.module


@dataclasses.dataclass(frozen=True)
class NNXNetwork(Network):
    """An NNX module taken apart: its graph, static, and where each array belongs."""

    graph: Any  # nnx.GraphDef
    places: tuple[tuple[str, tuple], ...]  # (collection, path in the module) of arrays
    convention: Convention
    factory: Callable | None = None

    def init(self, key, images, train: bool = False):
        """Fresh variables, if the network was given as what makes it."""
        del images, train
        if self.factory is None:
            raise InputError(
                "an NNX module that exists cannot be initialised afresh; give its "
                "class or a function of rngs, adapt(lambda rngs: Net(rngs=rngs)), or "
                "take the module's own arrays with variables_of(module)."
            )
        return variables_of(_make(self.factory, key))

    def apply(
        self, variables, images, train=False, mask=None, *, mutable=False, rngs=None
    ):
        """Logits [B, U], and its statistics, if any, unless `mutable` is False."""
        module = self.module(variables, rngs=rngs)
        module.train() if train else module.eval()
        logits = module(images, **self.convention.arguments(train, mask))
        if mutable is False:
            return logits
        # Without statistics nothing, as Flax does: a loop over steps needs its state to
        # keep one structure.
        found = variables_of(module)
        return logits, {name: found[name] for name in ("batch_stats",) if name in found}

    def module(self, variables, *, rngs=None) -> nnx.Module:
        """The NNX module that holds these variables."""
        key = rngs["dropout"] if rngs else jax.random.key(0)
        flat = []
        for number, (collection, path) in enumerate(self.places):
            # Random state comes from the arguments in every call, counters at zero: a
            # module draws the same from the same key, whatever was called before.
            if collection == "key":
                value = jax.random.fold_in(key, number)
            elif collection == "drawn":
                value = jnp.zeros((), jnp.uint32)
            else:
                value = variables[collection]
                for name in path:
                    value = value[str(name)]
            flat.append((path, value))
        return nnx.merge(self.graph, nnx.from_flat_state(flat))


@dataclasses.dataclass(frozen=True)
class FunctionNetwork(Network):
    """A plain function of variables and images, called as the others are."""

    function: Callable
    initialise: Callable | None
    convention: Convention
    also: tuple[str, ...] = ()  # of "mutable" and "rngs", those it takes

    def init(self, key, images, train: bool = False):
        """Fresh variables, if a function for it was given."""
        del train
        if self.initialise is None:
            raise InputError(
                "this network is a function and has no init; give it one: "
                "adapt(function, init=...)."
            )
        return self.initialise(key, images)

    def apply(
        self, variables, images, train=False, mask=None, *, mutable=False, rngs=None
    ):
        """Logits [B, U], and its state or {} unless `mutable` is False."""
        options = {"mutable": mutable, "rngs": rngs}
        result = self.function(
            variables,
            images,
            **self.convention.arguments(train, mask),
            **{name: options[name] for name in self.also},
        )
        # A function that knows nothing of state has none to return.
        is_whole = mutable is False or "mutable" in self.also
        return result if is_whole else (result, {})


def own_variables(model: Any, variables: Any) -> Any:
    """The variables given, or of an NNX module given without any, those it holds."""
    if variables is None and isinstance(model, nnx.Module):
        return variables_of(model)
    return variables


def variables_of(module: nnx.Module) -> dict[str, Any]:
    """The arrays of an NNX module as {"params": ..., "batch_stats": ...}.

    Other kinds of variables, if any, are under "state"; the state of random number
    generators is left out, because keys are arguments here. Numbers in a path, from
    lists, become strings.
    """
    if getattr(module, "adapted", None) is not None:
        return getattr(module, "variables")()  # noqa: B009
    variables: dict[str, Any] = {}
    for collection, path, value in _arrays(module):
        if collection in ("key", "drawn"):
            continue
        branch = variables.setdefault(collection, {})
        for name in path[:-1]:
            branch = branch.setdefault(str(name), {})
        branch[str(path[-1])] = value[...]
    return variables


def _arrays(module: nnx.Module) -> list[tuple[str, tuple, Any]]:
    """(collection, path, variable) of everything a module holds."""
    kinds = {
        "params": nnx.Param,
        "batch_stats": nnx.BatchStat,
        "key": nnx.RngKey,
        "drawn": nnx.RngCount,
        "state": object,  # all others
    }
    return [
        (next(k for k in kinds if isinstance(value, kinds[k])), tuple(path), value)
        for path, value in nnx.to_flat_state(nnx.state(module))
    ]


def _adapt_nnx(module, factory, takes_mask) -> NNXNetwork:
    places = tuple((collection, path) for collection, path, _ in _arrays(module))
    convention = _read_convention(_parameters(type(module).__call__), takes_mask)
    return NNXNetwork(nnx.graphdef(module), places, convention, factory)


def _makes_nnx(model) -> bool:
    """Whether it is an NNX class, or a function of `rngs` alone."""
    if isinstance(model, type):
        return issubclass(model, nnx.Module)
    required = [
        name
        for name, each in _parameters(model).items()
        if each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return required == ["rngs"]


def _make(factory, key) -> nnx.Module:
    return factory(rngs=nnx.Rngs(key))
