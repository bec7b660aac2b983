"""One way to call any network, whoever wrote it.

Everything here trains, evaluates and cuts a network through two functions:

    variables = model.init(key, images, train=False)
    logits = model.apply(variables, images, train=False, mask=None)
    logits, new = model.apply(
        ..., train=True, mask=mask, mutable=["batch_stats"], rngs={"dropout": key}
    )

`variables` is {"params": ..., "batch_stats": ...}, images are float [B, H, W, C],
logits [B, U], and `mask` [B] is nonzero for real examples. What `adapt` returns is
hashable, and equal for equal networks, so it is static under jit.
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
from flax import nnx, traverse_util

from fuprune.errors import InputError

Variables = Mapping[str, Any]  # {"params": ..., "batch_stats": ...}
# Arguments of a call, or attributes, that say whether it is in training, or is not.
MODES = {
    **dict.fromkeys(("train", "training", "is_training"), True),
    **dict.fromkeys(("deterministic", "use_running_average", "inference"), False),
}


class Convention(NamedTuple):
    """The arguments by which a network's call learns of training and padding."""

    modes: tuple[str, ...] = ()
    takes_mask: bool = False
    takes_rngs: bool = False

    def arguments(self, train: bool, mask=None, key=None) -> dict[str, Any]:
        """Keyword arguments of one call."""
        chosen: dict[str, Any] = {name: train == MODES[name] for name in self.modes}
        chosen |= {"mask": mask} if self.takes_mask else {}
        return chosen | ({"rngs": nnx.Rngs(key)} if self.takes_rngs else {})


def adapt(
    model,
    *,
    init: Callable | None = None,
    takes_mask: bool | None = None,
    rngs: tuple[str, ...] = ("dropout",),
) -> Any:
    """A network in the form of this module's first lines.

    It learns whether it is in training from those arguments of its call, or attributes
    of a Linen module, that are named in `MODES`. One that takes no mask normalises over
    whole batches, which is sound because padding repeats the client's own images.

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
        if convention == Convention(("train",), True):
            return model
        return LinenNetwork(model, convention, tuple(rngs))
    if isinstance(model, nnx.Module):
        adapted = getattr(model, "adapted", None)  # it stands for such a network
        return adapted or NNXNetwork(model, None, takes_mask)
    if _makes_nnx(model):
        # It runs, because constructors may compute numbers that no tracer has.
        return NNXNetwork(model(rngs=nnx.Rngs(0)), model, takes_mask)
    if library := _library_of(model):
        return LIBRARIES[library](model)
    apply = getattr(model, "apply", model)
    if isinstance(model, type) or not callable(apply):
        raise InputError(
            f"model is {model!r:.80}, which is no network; give a Linen or NNX module,"
            " or a function (variables, images) -> logits."
        )
    complete = {"train", "mask", "mutable", "rngs"} <= parameters(apply).keys()
    if complete and model is not apply:
        return model
    return _adapt_function(apply, init or getattr(model, "init", None), takes_mask)


def parameters(function) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, none if it does not say."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in callables do not tell
        return {}


def read_convention(names: Collection[str], takes_mask: bool | None) -> Convention:
    """The convention of a call with parameters of these names."""
    modes = tuple(name for name in MODES if name in names)
    return Convention(modes, "mask" in names and takes_mask is not False)


class Network:
    """A network of this package in the form of this module's first lines."""


@dataclasses.dataclass(frozen=True)
class LinenNetwork(Network):
    """A Linen module of any convention; an axis that it averages over is bound."""

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
        keys = {n: jax.random.fold_in(key, i) for i, n in enumerate(self.streams)}
        options = self.convention.arguments(train)
        return self._at(train).init({"params": key, **keys}, images, **options)

    def apply(self, variables, images, train=False, mask=None, *, rngs=None, **options):
        """Logits [B, U], and the updated collections if `mutable` names any.

        Every stream gets a key of its own from the one that `rngs` has for dropout.
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
        names = [field.name for field in dataclasses.fields(self.module)]
        # Some modules take the mode as an attribute, which only a clone can change.
        found = read_convention(names, takes_mask=False).arguments(train)
        said = {k: found[k] for k in found if k not in self.convention.modes}
        return self.module.clone(**said) if said else self.module


@dataclasses.dataclass(unsafe_hash=True)
class CalledNetwork(Network):
    """A network by two functions, equal to those with an equal key."""

    key: Any
    initialise: Callable | None = dataclasses.field(compare=False)  # of key and images
    # Of variables, images, train, mask, mutable and rngs: outputs, and new state.
    call: Callable = dataclasses.field(compare=False)
    # The variables it came with.
    given: Variables | None = dataclasses.field(default=None, compare=False, repr=False)

    def init(self, key, images, train: bool = False):
        """Fresh variables, if a function for it was given."""
        if self.initialise is None:
            raise InputError(
                "this network is a function and has no init; give it one: "
                "adapt(function, init=...)."
            )
        return self.initialise(key, images)

    def apply(
        self, variables, images, train=False, mask=None, *, mutable=False, rngs=None
    ):
        """Logits [B, U], and its new state or {} unless `mutable` is False."""
        result, new = self.call(variables, images, train, mask, mutable, rngs)
        logits = first_result(result)
        return logits if mutable is False else (logits, new)


class NNXNetwork(CalledNetwork):
    """An NNX module taken apart: its graph, static, and where each array belongs."""

    def __init__(self, module, factory, takes_mask):
        """Reads the module; its factory, if there is one, makes fresh ones."""
        self.graph, self.factory = nnx.graphdef(module), factory
        self.places = tuple((kind, path) for kind, path, _ in _arrays(module))
        names = parameters(type(module).__call__)
        self.convention = read_convention(names, takes_mask)
        self.convention = self.convention._replace(takes_rngs="rngs" in names)
        key = (self.graph, self.places, self.convention, factory)
        super().__init__(key, self._fresh, self._call, variables_of(module))

    def _fresh(self, key, images):
        try:
            if self.factory is not None:
                return variables_of(self.factory(rngs=nnx.Rngs(key)))
        except jax.errors.ConcretizationTypeError:
            pass  # a constructor that computes numbers, inside another program
        return drawn_like(self.given or {}, key)

    def _call(self, variables, images, train, mask, mutable, rngs):
        module = self.module(variables, rngs=rngs)
        module.train() if train else module.eval()
        options = self.convention.arguments(train, mask, _dropout_key(rngs))
        result = module(images, **options)
        # Without statistics nothing, as Flax does: a loop over steps needs its state to
        # keep one structure.
        found = variables_of(module)
        return result, {k: found[k] for k in ("batch_stats",) if k in found}

    def module(self, variables, *, rngs=None) -> nnx.Module:
        """The NNX module that holds these variables."""
        key, flat = _dropout_key(rngs), []
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


def _dropout_key(rngs) -> jax.Array:
    return rngs["dropout"] if rngs else jax.random.key(0)


def _adapt_function(function, init, takes_mask) -> CalledNetwork:
    """A function of variables, or of parameters only, and images."""
    names = parameters(function)
    convention = read_convention(names, takes_mask)
    takes_params = next(iter(names), None) == "params"

    def call(variables, images, train, mask, mutable, rngs):
        options = {"mutable": mutable, "rngs": rngs}
        result = function(
            variables["params"] if takes_params else variables,
            images,
            **convention.arguments(train, mask),
            **{name: options[name] for name in options if name in names},
        )
        # A function that knows nothing of state has none to return.
        has_state = mutable is not False and "mutable" in names
        return result if has_state else (result, {})

    return CalledNetwork((function, init, takes_mask), init, call)


def _adapt_haiku(transformed) -> CalledNetwork:
    """What `hk.transform` gives, with or without state, which is "batch_stats"."""
    names = parameters(transformed.apply)
    inner = parameters(getattr(transformed.init, "_original_fn", None))
    convention, has_state = read_convention(inner, None), "state" in names

    def init(key, images):
        # In training: haiku's norms make their statistics there alone.
        made = transformed.init(key, images, **convention.arguments(True))
        return (
            dict(params=made[0], batch_stats=made[1]) if has_state else {"params": made}
        )

    def call(variables, images, train, mask, mutable, rngs):
        given = [variables["params"]]
        given += [variables.get("batch_stats", {})] if has_state else []
        given += [_dropout_key(rngs)] if "rng" in names else []
        options = convention.arguments(train, mask)
        result = transformed.apply(*given, images, **options)
        return (result[0], {"batch_stats": result[1]}) if has_state else (result, {})

    return CalledNetwork(transformed, init, call)


def _adapt_equinox(model) -> CalledNetwork:
    """An Equinox module of one image, channels first, and perhaps of a `key`."""
    import equinox  # pyright: ignore[reportMissingImports]

    arrays, static = equinox.partition(model, equinox.is_array)
    pairs, tree = jax.tree_util.tree_flatten_with_path(arrays)
    keystr = jax.tree_util.keystr
    paths = [tuple(keystr((key,), simple=True) for key in path) for path, _ in pairs]
    values = dict(zip(paths, (value for _, value in pairs), strict=True))
    names = parameters(type(model).__call__)
    convention = read_convention(names, None)

    def call(variables, images, train, mask, mutable, rngs):
        flat = traverse_util.flatten_dict(variables["params"])
        arrays = jax.tree.unflatten(tree, [flat[path] for path in paths])
        module = equinox.combine(arrays, static)
        module = equinox.nn.inference_mode(module, value=not train)
        options = convention.arguments(train, mask)

        def one(image, key):
            return module(image, **options, **({"key": key} if "key" in names else {}))

        keys = jax.random.split(_dropout_key(rngs), len(images))
        return jax.vmap(one)(jnp.moveaxis(images, -1, 1), keys), {}

    return _holding(model, {"params": traverse_util.unflatten_dict(values)}, call)


def _adapt_keras(model) -> CalledNetwork:
    """A Keras model on the JAX backend; what it does not train is "batch_stats"."""
    kinds = {
        "params": model.trainable_variables,
        "batch_stats": model.non_trainable_variables,
    }
    paths = {k: [tuple(v.path.split("/")) for v in kinds[k]] for k in kinds}

    def tree(kind, values):
        flat = dict(zip(paths[kind], values, strict=True))
        return traverse_util.unflatten_dict(flat)

    def call(variables, images, train, mask, mutable, rngs):
        flat = {k: traverse_util.flatten_dict(variables.get(k, {})) for k in kinds}
        held = [[flat[k][path] for path in paths[k]] for k in kinds]
        result, new = model.stateless_call(*held, images, training=train)
        return result, {"batch_stats": tree("batch_stats", new)}

    given = {k: tree(k, [jnp.asarray(v.value) for v in kinds[k]]) for k in kinds}
    return _holding(model, given, call)


def _holding(model, given, call) -> CalledNetwork:
    """A network that holds its arrays; `init` draws others in their place."""

    def init(key, images):
        return drawn_like(given, key)

    return CalledNetwork(id(model), init, call, given)


LIBRARIES: dict[str, Callable[[Any], CalledNetwork]] = {
    "haiku": _adapt_haiku,
    "equinox": _adapt_equinox,
    "keras": _adapt_keras,
}


def _library_of(model: Any) -> str | None:
    """The library that a network comes from, if it is one of these."""
    homes = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    return next((name for name in LIBRARIES if name in homes), None)


def first_result(result: Any) -> Any:
    """The logits of a network that may return more, as (logits, features)."""
    return result[0] if isinstance(result, tuple | list) else result


def drawn_like(variables: Variables, key: jax.Array) -> dict[str, Any]:
    """Variables of the same shapes: kernels drawn from He's normal distribution.

    Biases and means become 0, scales and variances 1, and all else stays as it is.
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
    holds = isinstance(model, nnx.Module) or _library_of(model) is not None
    return variables_of(model) if variables is None and holds else variables


def variables_of(module: Any) -> dict[str, Any]:
    """The arrays that an NNX or Equinox module or a Keras model holds.

    They are {"params": ..., "batch_stats": ...}, and other kinds under "state", but no
    state of random number generators, because keys are arguments here.
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
