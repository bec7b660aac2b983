"""What a cut does to variables: entries are taken out, filled or drawn anew."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fuprune.errors import InputError

Path = tuple[str, ...]


class Cut(NamedTuple):
    """What is left of one axis of a variable."""

    path: Path
    axis: int  # from the end: an optimizer may keep arrays with more axes in front
    size: int  # of the whole axis
    kept: tuple[int, ...]


Cuts = tuple[Cut, ...]


def names(path) -> Path:
    """Returns a tree path as plain strings."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def dead_value(path: Path) -> int:
    """Returns what a parameter holds for a dead channel: 1 for a variance, else 0.

    A variance of 1 is that of a fresh norm, and keeps its division harmless.
    """
    return 1 if path and "var" in path[-1] else 0


def cut_tree(cuts: Cuts, tree: Any, fill: bool = False) -> Any:
    """Takes the kept entries of variables, or fills the others."""
    cuts_at = by_path(cuts)

    def cut_leaf(path, leaf):
        path = names(path)
        return cut_array(
            leaf, cuts_at.get(path, ()), dead_value(path) if fill else None
        )

    return jax.tree_util.tree_map_with_path(cut_leaf, tree)


def by_path(cuts: Cuts) -> dict[Path, list[Cut]]:
    """The cuts of each variable."""
    found: dict[Path, list[Cut]] = {}
    for cut in cuts:
        found.setdefault(cut.path, []).append(cut)
    return found


def cut_moments(
    cuts: Cuts, shapes: Mapping[Path, tuple[int, ...]], opt_state: Any, fill: bool
) -> Any:
    """Cuts the state of an optax optimizer, whose variables have these shapes.

    A moment is a leaf whose path ends as that of a parameter; counters and
    hyperparameters pass.
    """
    cuts_at = by_path(cuts)

    def cut_leaf(path, leaf):
        # The longest end of a path that is a parameter's tells which moment it is.
        path = names(path)
        ends = (("params", *path[start:]) for start in range(len(path)))
        found = next((end for end in ends if end in shapes), None)
        if found is None or np.size(leaf) <= 1:
            return leaf
        shape = tuple(shapes[found])
        if np.shape(leaf)[max(0, np.ndim(leaf) - len(shape)) :] != shape:
            raise InputError(
                f"{'/'.join(path)} has shape {np.shape(leaf)}, but its last axes must"
                f" be {shape} for this model; start that state afresh after the cut."
            )
        return cut_array(leaf, cuts_at.get(found, ()), 0 if fill else None)

    return jax.tree_util.tree_map_with_path(cut_leaf, opt_state)


def cut_array(array: Any, cuts: Sequence[Cut], dead: float | None = None) -> Any:
    """An array of NumPy or JAX, traced or not, with its cuts made.

    Other entries are taken out, or filled with `dead`.
    """
    if not cuts:
        return array
    numpy = jnp if isinstance(array, Tracer) else np
    result = array if numpy is jnp else np.asarray(array)
    for cut in cuts:
        if dead is None:
            result = numpy.take(result, np.asarray(cut.kept), axis=cut.axis)
            continue
        kept = np.isin(np.arange(array.shape[cut.axis]), cut.kept)
        # Broadcasts along the axes behind; those in front need nothing.
        kept = kept.reshape([-1] + [1] * (-1 - cut.axis))
        result = numpy.where(kept, result, np.asarray(dead, array.dtype))
    if isinstance(array, Tracer) or not isinstance(array, jax.Array):
        return result
    # Cut on the host, where a hundred different shapes need no compilation, and sent
    # back to wherever the array was.
    return jax.device_put(result, array.sharding)


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
