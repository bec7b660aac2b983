"""Channels that start afresh in place of being removed: same plan, same shapes.

What writes a cut channel (its filter, and the bias, scale and statistics that follow
it) is drawn anew at the scale of the layer's kept channels; what reads it stays. So a
network keeps its capacity, and nothing of what the channel said.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fuprune.surgery.arrays import Cuts, Path, by_path, names


def start_afresh(
    cuts: Cuts, variables: Any, written: Mapping[Path, int], key: jax.Array
) -> Any:
    """The variables with the writers of cut channels drawn anew, in the same shapes.

    Entries of a kernel are normal, with the mean and deviation of the layer's kept
    filters; those of a vector are the kept mean.

    Args:
      cuts: what a plan leaves of each variable.
      variables: those of the network before the cut.
      written: the axis of the output channels, by the path of a layer's kernel.
      key: seeds the draws; those of one leaf depend on no other.
    """
    cuts_at = by_path(cuts)
    leaves, structure = jax.tree_util.tree_flatten_with_path(variables)
    result = []
    for number, (key_path, leaf) in enumerate(leaves):
        path, shape = names(key_path), np.shape(leaf)
        reads = sum(size > 1 for size in shape) > 1 or path in written
        for cut in cuts_at.get(path, ()):
            axis = cut.axis + len(shape)
            # Of a matrix only the writer's side: the other side reads.
            if not reads or axis == written.get(path):
                leaf_key = jax.random.fold_in(key, number)
                leaf = _redrawn(leaf, axis, np.asarray(cut.kept), leaf_key)
        result.append(leaf)
    return jax.tree_util.tree_unflatten(structure, result)


def _redrawn(leaf, axis: int, kept: np.ndarray, key: jax.Array):
    # On the host, where no shape needs a program of its own.
    array = np.array(leaf)
    alive = np.take(array, kept, axis=axis)
    gone = np.setdiff1d(np.arange(array.shape[axis]), kept)
    shape = [len(gone) if i == axis else n for i, n in enumerate(array.shape)]
    fresh = np.full(shape, alive.mean(), array.dtype)
    if array.ndim > 1:
        # NumPy's generator takes numbers for a seed.
        seed = np.asarray(jax.random.key_data(key)).tolist()
        draws = np.random.default_rng(seed).normal(size=shape)
        fresh = (fresh + alive.std() * draws).astype(array.dtype)
    place = [slice(None)] * array.ndim
    place[axis] = gone  # type: ignore[call-overload]
    array[tuple(place)] = fresh
    return jax.device_put(array, getattr(leaf, "sharding", None))
