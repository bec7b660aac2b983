"""What a model says about images: logits, features and activations of any network.

The one place in the audit that looks inside networks: Linen modules are listened to
while they run, all others (NNX, functions, networks cut by tracing) are interpreted by
`surgery.observe`. One forward pass, compiled once per model and batch size, yields all
that the tests need.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fuprune.errors import InputError
from fuprune.models.adapt import LinenNetwork, adapt
from fuprune.models.ensemble import Ensemble, member_of
from fuprune.surgery import observe
from fuprune.surgery.cutting import layer_name
from fuprune.unlearning.head import fill_rows

Variables = Mapping[str, Any]
Head = tuple[str, ...]


class Outputs(NamedTuple):
    """A model's outputs on N images, as NumPy arrays or, inside jit, as JAX ones."""

    logits: Any  # [N, U]
    head_logits: Any  # [N, U] as they leave the last dense layer
    features: Any  # [N, D] what the last linear layer reads
    activations: dict[str, Any]  # layer -> [N, C_l], means over space


def compute_outputs(
    model: Any,
    variables: Variables,
    images: np.ndarray,
    preprocess: Callable[[np.ndarray], Any],
    *,
    batch_size: int = 256,
    activations: bool = False,
) -> Outputs:
    """Runs `model` over all images in batches of one fixed shape.

    Args:
      model: any network that `models.adapt` takes and jit can hold.
      variables: its variables.
      images: `[N, H, W, C]`, as `preprocess` wants them.
      preprocess: images -> what the model takes.
      batch_size: images in a batch; the last one is padded.
      activations: whether to keep the activations of every layer.

    Returns:
      The outputs; `activations` is empty unless asked for.
    """
    pieces = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        result = forward(model, variables, _padded(batch, batch_size, preprocess))
        if not activations:
            result = result._replace(activations={})
        size = len(batch)
        pieces.append(jax.tree.map(lambda x, n=size: np.asarray(x)[:n], result))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)


@functools.partial(jax.jit, static_argnums=0)
def forward(model: Any, variables: Variables, images: jax.Array) -> Outputs:
    """Logits, features and pooled activations of one batch.

    Features are, in this order: what the module's own `features` method returns, or the
    input of its last `nn.Dense`. Activations are the outputs of all convolutions and
    dense layers except the last, averaged over space.

    Args:
      model: the network.
      variables: its variables.
      images: `[B, ...]` preprocessed.

    Returns:
      `Outputs` of device arrays.

    Raises:
      ValueError: the model has neither a `features` method nor a dense layer.
    """
    if isinstance(model, Ensemble):
        return _of_members(model, variables, images)
    network: Any = adapt(model)  # of several kinds; a Linen one below
    module = _linen_module(network)
    if module is None:
        seen = observe(network, variables, images)
        features = seen.logits if seen.features is None else seen.features
        return Outputs(
            logits=_float(seen.logits),
            head_logits=_float(seen.head_logits),
            features=_pooled(features),
            activations={name: _pooled(x) for name, x in seen.outputs.items()},
        )
    head = find_head(network, variables, images)
    calls: list[tuple[jax.Array, jax.Array]] = []
    with nn.intercept_methods(_recorder(head, calls)):
        logits, captured = network.apply(
            variables,
            images,
            train=False,
            capture_intermediates=_is_captured,
            mutable=["intermediates"],
        )
    flat: Any = traverse_util.flatten_dict(dict(captured).get("intermediates", {}))
    # Flax keeps a tuple with one entry per call; the last call is the one that counts.
    found: dict[Any, Any] = {path: value[-1] for path, value in flat.items()}
    features: Any
    if ("features",) in found:
        features = found[("features",)]
    elif hasattr(module, "features"):
        features = module.apply(variables, images, method="features")
    elif calls:
        features = calls[-1][0]
    else:
        raise InputError(
            f"{type(module).__name__} has no nn.Dense to read features from; give it a "
            "method `features(images)` that returns [B, D]"
        )
    activations = {
        layer_name(("params", *path)): _pooled(value)
        for path, value in found.items()
        if path[-1] == "__call__" and path[:-1] != head
    }
    return Outputs(
        logits=_float(logits),
        head_logits=_float(calls[-1][1] if calls else logits),
        features=_pooled(features),
        activations=activations,
    )


def _of_members(model: Ensemble, variables: Variables, images: jax.Array) -> Outputs:
    """Of an ensemble: its own answer, and all that its members see side by side."""
    members = [
        forward(model.member, member_of(variables, i), images)
        for i in range(model.size)
    ]
    logits = model.combine(jnp.stack([member.logits for member in members]))
    return Outputs(
        logits=logits,
        head_logits=logits,
        features=jnp.concatenate([member.features for member in members], axis=-1),
        activations={
            name: jnp.concatenate([m.activations[name] for m in members], axis=-1)
            for name in members[0].activations
        },
    )


def evaluation_logits(
    model: Any, head: Head | None, variables: Variables, images
) -> jax.Array:
    """`[B, U]` logits in evaluation as they leave the layer `head`, None for the last.

    A cheaper `Outputs.head_logits`, for whoever needs nothing else.
    """
    network = adapt(model)
    if _linen_module(network) is None:
        return _float(network.apply(variables, images, train=False))
    calls: list[tuple[jax.Array, jax.Array]] = []
    with nn.intercept_methods(_recorder(head, calls)):
        logits = network.apply(variables, images, train=False)
    return _float(calls[-1][1] if calls else logits)


def training_logits(
    model: Any, head: Head | None, variables: Variables, images, rng: jax.Array
) -> tuple[jax.Array, dict[str, Any]]:
    """Training-mode logits as they leave the last dense layer, and the state to keep.

    Reading them there looks through a wrapper that masks or clips a logit afterwards.

    Args:
      model: the network.
      head: path of its last dense layer, None to take the model's own output, which is
        also taken of a network that is no Linen module.
      variables: its variables.
      images: `[B, ...]` preprocessed.
      rng: for dropout, if the model has any.

    Returns:
      `[B, U]` logits, and the updated collections other than "params".
    """
    state = [name for name in variables if name != "params"]
    network = adapt(model)
    settings: dict[str, Any] = {"mutable": state, "rngs": {"dropout": rng}}
    calls: list[tuple[jax.Array, jax.Array]] = []
    if _linen_module(network) is None:
        logits, updated = network.apply(variables, images, train=True, **settings)
    else:
        with nn.intercept_methods(_recorder(head, calls)):
            logits, updated = network.apply(variables, images, train=True, **settings)
    # The state keeps its structure, so that the next step is the same program.
    updated = {name: value for name, value in dict(updated).items() if name in state}
    return _float(calls[-1][1] if calls else logits), updated


def find_head(model: Any, variables: Variables, images) -> Head | None:
    """The path of the last `nn.Dense` of the forward pass, if it gives the logits.

    Args:
      model: the network.
      variables: its variables.
      images: `[B, ...]` preprocessed; only the shape of one matters.

    Returns:
      The path, e.g. `("head",)`, or None if there is none with the logits' shape.
    """
    # Of two images, so that batches of all sizes share one trace; a network may squeeze
    # the axis of a batch of one.
    pair = jax.ShapeDtypeStruct((2, *images.shape[1:]), images.dtype)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)),
        (dict(variables), pair),
    )
    leaves, structure = jax.tree.flatten(shapes)
    return _head_of_shapes(model, structure, tuple(leaves))


# Tracing takes a good part of a second, and the audit asks for each model many times.
@functools.lru_cache(maxsize=64)
def _head_of_shapes(model: Any, structure, leaves: tuple[Any, ...]) -> Head | None:
    variables, images = jax.tree.unflatten(structure, leaves)
    network = adapt(model)
    if _linen_module(network) is None:
        return _observed(network, variables, images)[0]
    calls: list[tuple[Head, tuple[int, ...]]] = []

    def record(next_function, args, kwargs, context):
        result = next_function(*args, **kwargs)
        if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
            calls.append((context.module.path, result.shape))
        return result

    with nn.intercept_methods(record):
        logits = jax.eval_shape(
            lambda v, x: network.apply(v, x, train=False), variables, images
        )
    if calls and calls[-1][1] == logits.shape:
        return calls[-1][0]
    return None


def layer_names(model: Any, variables: Variables, images) -> tuple[str, ...]:
    """The layers of `Outputs.activations`, in the order of the forward pass."""
    network = adapt(model)
    if _linen_module(network) is None:
        return _observed(network, variables, images)[1]
    paths: list[Head] = []

    def record(next_function, args, kwargs, context):
        if _is_captured(context.module, context.method_name) and context.module.path:
            paths.append(context.module.path)
        return next_function(*args, **kwargs)

    head = find_head(network, variables, images)
    with nn.intercept_methods(record):
        jax.eval_shape(lambda v, x: network.apply(v, x, train=False), variables, images)
    chosen = [path for path in dict.fromkeys(paths) if path != head]
    return tuple(layer_name(("params", *path, "__call__")) for path in chosen)


def with_forgotten_columns_reset(
    variables: Variables, head: Head | None, classes: Sequence[int]
) -> Variables:
    """Variables whose last dense layer knows nothing of `classes`: zeros there.

    Args:
      variables: the model's variables.
      head: path of the last dense layer; None changes nothing.
      classes: the columns to reset; none changes nothing.

    Returns:
      New variables; the others are shared.
    """
    if head is None or not len(classes):
        return variables
    params = fill_rows(variables["params"], head, classes, kernel=0.0, bias=0.0)
    return {**variables, "params": params}


def _recorder(head: Head | None, calls: list[tuple[jax.Array, jax.Array]]):
    def record(next_function, args, kwargs, context):
        result = next_function(*args, **kwargs)
        if context.method_name == "__call__" and context.module.path == head:
            calls.append((args[0], result))
        return result

    return record


def _is_captured(module: nn.Module, method_name: str) -> bool:
    if method_name == "features":
        return module.path == ()
    return method_name == "__call__" and isinstance(module, nn.Conv | nn.Dense)


def _linen_module(network: Any) -> nn.Module | None:
    """The Linen module of an adapted network, None if it is something else."""
    if isinstance(network, LinenNetwork):
        return network.module
    return network if isinstance(network, nn.Module) else None


def _observed(network: Any, variables: Variables, images):
    """Head and names of the other layers of a network that is no Linen module."""
    found: list[tuple[Head | None, tuple[str, ...]]] = []

    def look(variables, images):
        seen = observe(network, variables, images)
        found.append((seen.head, tuple(seen.outputs)))
        return seen.logits

    jax.eval_shape(look, variables, images)
    return found[0]


def _pooled(value: Any) -> jax.Array:
    return _float(value).mean(axis=tuple(range(1, value.ndim - 1)))


def _float(value: Any) -> jax.Array:
    return value.astype(jnp.float32)


def _padded(batch: np.ndarray, size: int, preprocess) -> jax.Array:
    # Every batch has one size, so that a model is one program.
    missing = size - len(batch)
    if missing:
        batch = np.concatenate([batch, np.repeat(batch[:1], missing, axis=0)])
    return jnp.asarray(preprocess(batch))
