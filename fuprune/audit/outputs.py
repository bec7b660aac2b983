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
from fuprune.unlearning.head import fill_rows, observed_layers

Variables = Mapping[str, Any]
Head = tuple[str, ...]


class Outputs(NamedTuple):
    """A model's outputs on N images, as NumPy arrays or, inside jit, as JAX ones."""

    logits: Any  # [N, U]
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
    """Runs `model` over all images in batches of one fixed shape; the last is padded.

    Args:
      model: any network that `models.adapt` takes and jit can hold.
      variables: its variables.
      images: `[N, H, W, C]`, as `preprocess` wants them.
      preprocess: images -> what the model takes.
      batch_size: images in a batch.
      activations: whether to keep the activations of every layer; none otherwise.
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
    """Logits, features and pooled activations of one preprocessed batch.

    Features are, in this order: what the module's own `features` method returns, or the
    input of its last `nn.Dense`. Activations are the outputs of all convolutions and
    dense layers except the last, averaged over space.

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
        features=jnp.concatenate([member.features for member in members], axis=-1),
        activations={
            name: jnp.concatenate([m.activations[name] for m in members], axis=-1)
            for name in members[0].activations
        },
    )


def evaluation_logits(
    model: Any, head: Head | None, variables: Variables, images
) -> jax.Array:
    """`[B, U]` in evaluation as they leave the layer `head`, or the network if None."""
    return _apply(adapt(model), head, variables, images, train=False)[0]


def training_logits(
    model: Any, head: Head | None, variables: Variables, images, rng: jax.Array
) -> tuple[jax.Array, dict[str, Any]]:
    """Training-mode logits as they leave the last dense layer, and the state to keep.

    Reading them there looks through a wrapper that masks or clips a logit afterwards.

    A `head` of None takes the model's own output, which is also taken of a network that
    is no Linen module. Logits are `[B, U]`; the state is all but "params".
    """
    state = [name for name in variables if name != "params"]
    settings: dict[str, Any] = {"mutable": state, "rngs": {"dropout": rng}}
    logits, updated = _apply(
        adapt(model), head, variables, images, train=True, **settings
    )
    # The state keeps its structure, so that the next step is the same program.
    return logits, {name: value for name, value in updated.items() if name in state}


def _apply(
    network: Any, head: Head | None, variables: Variables, images, **settings
) -> tuple[jax.Array, dict[str, Any]]:
    """Logits as they leave the layer `head`, and what else `apply` returns."""
    calls: list[tuple[jax.Array, jax.Array]] = []
    # A network of another kind may trace a Linen module, which is not for us.
    listens = _linen_module(network) is not None
    with nn.intercept_methods(_recorder(head if listens else None, calls)):
        result = network.apply(variables, images, **settings)
    logits, updated = result if "mutable" in settings else (result, {})
    return _float(calls[-1][1] if calls else logits), dict(updated)


def find_head(model: Any, variables: Variables, images) -> Head | None:
    """The path of the last `nn.Dense` of the forward pass, if it gives the logits.

    Such as `("head",)`; None if there is none with the logits' shape. Of the images
    only the shape of one matters.
    """
    return _structure(model, variables, images)[0]


def layer_names(model: Any, variables: Variables, images) -> tuple[str, ...]:
    """The layers of `Outputs.activations`, in the order of the forward pass."""
    return _structure(model, variables, images)[1]


def _structure(
    model: Any, variables: Variables, images
) -> tuple[Head | None, tuple[str, ...]]:
    """The last layer, and the names of the others."""
    # Of two images, so that batches of all sizes share one trace; a network may squeeze
    # the axis of a batch of one.
    pair = jax.ShapeDtypeStruct((2, *images.shape[1:]), images.dtype)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)),
        (dict(variables), pair),
    )
    leaves, structure = jax.tree.flatten(shapes)
    return _structure_of_shapes(model, structure, tuple(leaves))


# Tracing takes a good part of a second, and the audit asks for each model many times.
@functools.lru_cache(maxsize=64)
def _structure_of_shapes(
    model: Any, structure, leaves: tuple[Any, ...]
) -> tuple[Head | None, tuple[str, ...]]:
    variables, images = jax.tree.unflatten(structure, leaves)
    network = adapt(model)
    if _linen_module(network) is None:
        return observed_layers(network, variables, images)
    paths: dict[Head, None] = {}  # in the order in which they are first called
    dense: list[tuple[Head, tuple[int, ...]]] = []

    def record(next_function, args, kwargs, context):
        module, method = context.module, context.method_name
        if _is_captured(module, method) and module.path:
            paths[module.path] = None
        result = next_function(*args, **kwargs)
        if isinstance(module, nn.Dense) and method == "__call__":
            dense.append((module.path, result.shape))
        return result

    with nn.intercept_methods(record):
        logits = jax.eval_shape(
            lambda v, x: network.apply(v, x, train=False), variables, images
        )
    head = dense[-1][0] if dense and dense[-1][1] == logits.shape else None
    others = (("params", *path, "__call__") for path in paths if path != head)
    return head, tuple(layer_name(path) for path in others)


def with_forgotten_columns_reset(
    variables: Variables, head: Head | None, classes: Sequence[int]
) -> Variables:
    """Variables whose last dense layer knows nothing of `classes`: zeros there.

    Without a last dense layer, or without classes, nothing is changed.
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


def _pooled(value: Any) -> jax.Array:
    return _float(value).mean(axis=tuple(range(1, value.ndim - 1)))


def _float(value: Any) -> jax.Array:
    return value.astype(jnp.float32)


def _padded(batch: np.ndarray, size: int, preprocess) -> jax.Array:
    # Every batch has one size, so that a model is one program.
    missing = size - len(batch)
    if missing:
        batch = np.concatenate([batch, np.repeat(batch[:1], missing, axis=0)])
    # Not `jnp.asarray`, which compiles a program for every shape that it is given.
    return jax.device_put(preprocess(batch))
