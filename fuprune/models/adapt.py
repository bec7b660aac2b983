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
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
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
    takes_rngs: bool = False

    def arguments(self, train: bool, mask=None, key=None) -> dict[str, Any]:
        """Keyword arguments of one call."""
        chosen: dict[str, Any] = {name: train for name in self.training}
        chosen |= {name: not train for name in self.evaluation}
        chosen |= {"mask": mask} if self.takes_mask else {}
        return chosen | ({"rngs": nnx.Rngs(key)} if self.takes_rngs else {})

    def without(self, other: "Convention") -> "Convention":
        """What another convention does not say."""
        return Convention(
            tuple(name for name in self.training if name not in other.training),
            tuple(name for name in self.evaluation if name not in other.evaluation),
        )


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
        makes one; what haiku transformed; an Equinox module; a Keras model; an object
        with `apply` and perhaps `init`; or a function `(variables, images, ...)` or
        `(params, images, ...)` that gives logits.
      init: `(key, images) -> variables`, for a function.
      takes_mask: whether the argument `mask` of its call, if it has one, is this
        module's; by default yes. An attention mask, for instance, is not.
      rngs: names of the streams of random numbers that a Linen module draws from; all
        others draw from one more.

    Example:
      >>> net = adapt(nn.Sequential([nn.Conv(8, (3, 3)), lambda x: x.mean((1, 2))]))
      >>> variables = net.init(jax.random.key(0), jnp.zeros((1, 6, 6, 1)))
      >>> net.apply(variables, jnp.zeros((2, 6, 6, 1)), train=False).shape
      (2, 8)
    """
    if isinstance(model, Network):
        return model
    if isinstance(model, nn.Module):
        convention = read_convention(parameters(type(model).__call__), takes_mask)
        if convention == Convention(("train",), (), True):
            return model
        return LinenNetwork(model, convention, tuple(rngs))
    if isinstance(model, nnx.Module):
        adapted = getattr(model, "adapted", None)  # it stands for such a network
        return adapted or _adapt_nnx(model, None, takes_mask)
    if _makes_nnx(model):
        # It runs, because constructors may compute numbers that no tracer has.
        return _adapt_nnx(_make(model, 0), model, takes_mask)
    from fuprune.models import foreign  # which imports from here

    if foreign.library_of(model) is not None:
        return foreign.adapt_foreign(model)
    apply = getattr(model, "apply", model)
    linen_class = isinstance(model, type) and issubclass(model, nn.Module)
    if linen_class or not callable(apply):
        kind = model if linen_class else type(model)
        what = f"{'the class' if linen_class else 'a'} {kind.__name__}"
        raise InputError(
            f"model is {what}, which is no network; give a Linen or NNX module, or a "
            "function (variables, images) -> logits."
        )
    names = parameters(apply)
    if {"train", "mask", "mutable", "rngs"} <= names.keys() and model is not apply:
        return model
    return FunctionNetwork(
        apply,
        init if init is not None else getattr(model, "init", None),
        read_convention(names, takes_mask),
        tuple(name for name in ("mutable", "rngs") if name in names),
        next(iter(names), None) == "params",
    )


def parameters(function) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, none if it does not say."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in callables do not tell
        return {}


def read_convention(names: Collection[str], takes_mask: bool | None) -> Convention:
    """The convention of a call with parameters of these names."""
    return Convention(
        tuple(name for name in TRAINING_NAMES if name in names),
        tuple(name for name in EVALUATION_NAMES if name in names),
        "mask" in names and takes_mask is not False,
    )


class Network:
    """A network of this package in the form of this module's first lines."""


@dataclasses.dataclass(frozen=True)
class LinenNetwork(Network):
    """A Linen module of any convention, called by ours.

    Of several results the first counts, the logits. An axis that its norms average over
    is bound, as one device.
    """

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
            } | {"params": jax.random.fold_in(key, len(self.streams))}
        options |= self.convention.arguments(train, mask)

        def call(_=None):
            return self._at(train).apply(variables, images, rngs=rngs, **options)

        try:
            result = call()
        except NameError as error:
            axis = re.search("unbound axis name: ([A-Za-z_0-9]+)", str(error))
            if axis is None:
                raise
            result = jax.vmap(call, axis_name=axis[1])(jnp.zeros(1))
            result = jax.tree.map(lambda x: x[0], result)
        if options.get("mutable", False) is False:
            return first_result(result)
        return first_result(result[0]), result[1]

    def _at(self, train):
        """The module with those of its attributes set that say the same."""
        fields = [field.name for field in dataclasses.fields(self.module)]
        # Some modules take the mode as an attribute, which only a clone can change.
        said = read_convention(fields, takes_mask=False).without(self.convention)
        settings = said.arguments(train)
        return self.module.clone(**settings) if settings else self.module


@dataclasses.dataclass(frozen=True)
class NNXNetwork(Network):
    """An NNX module taken apart: its graph, static, and where each array belongs."""

    graph: Any  # nnx.GraphDef
    places: tuple[tuple[str, tuple], ...]  # (collection, path in the module) of arrays
    convention: Convention
    factory: Callable | None = None
    # The variables it came with, for `init`.
    given: Any = dataclasses.field(default=None, compare=False, repr=False)

    def init(self, key, images, train: bool = False):
        """Fresh variables: by the network's factory, or drawn in place of its own."""
        del images, train
        if self.factory is not None:
            try:
                return variables_of(_make(self.factory, key))
            except jax.errors.ConcretizationTypeError:
                pass  # a constructor that computes numbers, inside another program
        return drawn_like(self.given, key)

    def apply(
        self, variables, images, train=False, mask=None, *, mutable=False, rngs=None
    ):
        """Logits [B, U], and its statistics, if any, unless `mutable` is False."""
        module = self.module(variables, rngs=rngs)
        module.train() if train else module.eval()
        key = rngs["dropout"] if rngs else jax.random.key(0)
        logits = first_result(
            module(images, **self.convention.arguments(train, mask, key))
        )
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
    takes_params: bool = False  # and no other variables

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
            variables["params"] if self.takes_params else variables,
            images,
            **self.convention.arguments(train, mask),
            **{name: options[name] for name in self.also},
        )
        if mutable is not False and "mutable" in self.also:
            return first_result(result[0]), result[1]
        # A function that knows nothing of state has none to return.
        logits = first_result(result)
        return logits if mutable is False else (logits, {})


def first_result(result: Any) -> Any:
    """The logits of a network that may return more, as (logits, features)."""
    return result[0] if isinstance(result, tuple | list) else result


def drawn_like(variables: Variables, key: jax.Array) -> dict[str, Any]:
    """Variables of the same shapes, drawn anew.

    What has the shape of a kernel is drawn from He's normal distribution, biases and
    means become 0, scales and variances 1, and all else stays as it is.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(dict(variables))
    fresh = []
    for number, (path, leaf) in enumerate(leaves):
        name, shape = str(getattr(path[-1], "key", path[-1])), jnp.shape(leaf)
        if len(shape) > 1:
            # He's deviation, sqrt(2 / fan-in); all axes but the last are inputs.
            draw = jax.random.normal(jax.random.fold_in(key, number), shape)
            leaf = (draw * np.sqrt(2 / np.prod(shape[:-1]))).astype(leaf.dtype)
        elif name in ("bias", "mean"):
            leaf = jnp.zeros_like(leaf)
        elif name in ("scale", "var"):
            leaf = jnp.ones_like(leaf)
        fresh.append(leaf)
    return jax.tree_util.tree_unflatten(structure, fresh)


def own_variables(model: Any, variables: Any) -> Any:
    """The variables given, or those that the model holds."""
    if variables is not None:
        return variables
    from fuprune.models import foreign

    if isinstance(model, nnx.Module) or foreign.library_of(model) is not None:
        return variables_of(model)
    return None


def variables_of(module: Any) -> dict[str, Any]:
    """The arrays of an NNX module as {"params": ..., "batch_stats": ...}.

    Other kinds of variables, if any, are under "state"; the state of random number
    generators is left out, because keys are arguments here. Numbers in a path, from
    lists, become strings. An Equinox module or a Keras model gives its arrays, too.
    """
    if not isinstance(module, nnx.Module):
        return dict(adapt(module).given)
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
    names = parameters(type(module).__call__)
    convention = read_convention(names, takes_mask)._replace(takes_rngs="rngs" in names)
    graph, given = nnx.graphdef(module), variables_of(module)
    return NNXNetwork(graph, places, convention, factory, given)


def _makes_nnx(model) -> bool:
    """Whether it is an NNX class, or a function of `rngs` alone."""
    if isinstance(model, type):
        return issubclass(model, nnx.Module)
    required = [
        name
        for name, each in parameters(model).items()
        if each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return required == ["rngs"]


def _make(factory, key) -> nnx.Module:
    return factory(rngs=nnx.Rngs(key))
