"""What models say about images: logits, and what they see at three depths.

Both are one program per network and shape, which all models of that shape share.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit.options import Model
from fuprune.errors import InputError
from fuprune.models.adapt import adapt, own_variables
from fuprune.models.ensemble import Ensemble, member_of
from fuprune.surgery import observe
from fuprune.surgery.trace import names

BATCH = 256
# After a third of the layers, after two thirds, and what the last layer reads.
DEPTHS = ("early", "middle", "last")
Preprocess = Callable[[np.ndarray], Any]
Path = tuple[str, ...]


def prepare(name: str, model: Model) -> tuple[Any, dict[str, Any]]:
    """The network in the form of `models.adapt`, its variables as device arrays.

    Raises:
      InputError: the network cannot be hashed, which jit needs.
    """
    module, variables = model
    network = adapt(module)
    try:
        hash(module if isinstance(module, nn.Module) else network)
    except TypeError as error:
        raise InputError(
            f"the module of {name!r} cannot be hashed ({error}), which jit needs; make "
            "its attributes tuples and numbers"
        ) from error
    # Through the host, so that wherever a model comes from, it is the same program.
    found = jax.device_get(dict(own_variables(module, variables)))
    return network, jax.device_put(found)


def logits_of(
    model: Model, images: np.ndarray, preprocess: Preprocess, size: int = BATCH
) -> np.ndarray:
    """`[N, U]` on all images, in batches of one size."""
    pieces = [
        _logits(*model, batch)[:count]
        for batch, count in _batches(images, preprocess, size)
    ]
    return np.concatenate([np.asarray(piece) for piece in pieces])


@functools.partial(jax.jit, static_argnums=0)
def _logits(network: Any, variables: Any, images) -> jax.Array:
    return network.apply(variables, images, train=False).astype(jnp.float32)


def depths_of(
    model: Model, images: np.ndarray, preprocess: Preprocess, size: int = BATCH
) -> dict[str, np.ndarray]:
    """Depth -> `[N, D]` what layers give there, averaged over space.

    A network without layers before the last has the last depth alone, and one whose
    logits do not come from a dense layer has them for features.
    """
    pieces = [
        jax.tree.map(lambda x, n=count: np.asarray(x)[:n], _depths(*model, batch))
        for batch, count in _batches(images, preprocess, size)
    ]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)


@functools.partial(jax.jit, static_argnums=0)
def _depths(network: Any, variables: Any, images) -> dict[str, jax.Array]:
    if isinstance(network, Ensemble):
        members = [
            _depths(adapt(network.member), member_of(variables, i), images)
            for i in range(network.size)
        ]
        return jax.tree.map(lambda *x: jnp.concatenate(x, axis=-1), *members)
    seen = observe(network, variables, images)
    layers = list(seen.outputs.values())
    found = {"last": seen.logits if seen.features is None else seen.features}
    if layers:
        found["early"] = layers[(len(layers) - 1) // 3]
        found["middle"] = layers[2 * (len(layers) - 1) // 3]
    return {
        depth: jnp.mean(x.astype(jnp.float32), axis=tuple(range(1, x.ndim - 1)))
        for depth, x in found.items()
    }


class _Shape(NamedTuple):
    """What tracing needs to know of variables and images, hashable."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]


def heads_of(model: Model, images) -> tuple[Path, ...]:
    """Paths in "params" of the dense layers that give logits, one per member.

    There are none if the logits do not come from such layers. Of the preprocessed
    images only the shape of one matters.
    """
    network, variables = model
    if isinstance(network, Ensemble):
        inner = heads_of((adapt(network.member), member_of(variables, 0)), images)
        members = (f"shard_{i}" for i in range(network.size))
        return tuple((member, *path) for member in members for path in inner)
    leaves, structure = jax.tree.flatten(variables)
    shapes = tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)
    image = (tuple(images.shape[1:]), images.dtype)
    return _find_heads(network, _Shape(structure, shapes), image)


# Tracing takes a good part of a second, and an audit has many models of one shape.
@functools.lru_cache(maxsize=64)
def _find_heads(network: Any, shape: _Shape, image: Any) -> tuple[Path, ...]:
    found: list[Path] = []

    def look(variables, images):
        # By the closure: a path is no array that `eval_shape` could return.
        head = observe(network, variables, images).head
        found.extend(() if head is None else (tuple(head),))

    leaves = [jax.ShapeDtypeStruct(*leaf) for leaf in shape.leaves]
    # Two images: a network may squeeze the axis of a batch of one.
    pair = jax.ShapeDtypeStruct((2, *image[0]), image[1])
    jax.eval_shape(look, jax.tree.unflatten(shape.structure, leaves), pair)
    return tuple(found)


def with_rows(
    variables: Mapping[str, Any],
    heads: Sequence[Path],
    change: Callable[[np.ndarray], np.ndarray],
) -> dict[str, Any]:
    """Variables with the last layers' kernels and biases changed, `[..., U]` each."""

    def changed(place, leaf):
        # On the host, where no program is compiled for each shape.
        inside = names(place)[:-1] in heads
        return jax.device_put(change(np.array(leaf))) if inside else leaf

    params = jax.tree_util.tree_map_with_path(changed, variables["params"])
    return {**variables, "params": params}


def with_fresh_rows(
    variables: Mapping[str, Any], heads: Sequence[Path], classes: Sequence[int]
) -> dict[str, Any]:
    """Variables whose last layers have the mean of the other rows for the classes."""

    def change(array: np.ndarray) -> np.ndarray:
        others = np.delete(array, list(classes), axis=-1)
        array[..., list(classes)] = others.mean(axis=-1, keepdims=True)
        return array

    return with_rows(variables, heads, change)


def _batches(images: np.ndarray, preprocess: Preprocess, size: int):
    """Preprocessed batches of one size, the last one padded, and their true sizes."""
    for start in range(0, len(images), size):
        batch = images[start : start + size]
        count = len(batch)
        if count < size:
            batch = np.concatenate([batch, np.repeat(batch[:1], size - count, axis=0)])
        # Not `jnp.asarray`, which compiles a program for every shape it is given.
        yield jax.device_put(preprocess(batch)), count
