"""What a cut does to variables: entries are taken out, or filled with a constant.

Wiring and tracing both say what a plan leaves as a `PlannedCut`, so that everything
which has the shape of variables is cut in one way.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fuprune.errors import InputError

Path = tuple[str, ...]
Axes = tuple[tuple[int, tuple[int, ...]], ...]  # (axis, kept indices) pairs
# Of each cut variable its path, its whole shape, and its axes.
PathCuts = tuple[tuple[Path, tuple[int, ...], Axes], ...]


class PlannedCut(NamedTuple):
    """A plan worked out for a network."""

    network: Any  # with fewer channels
    cuts: PathCuts  # positions in the variables at hand
    shapes: Mapping[Path, tuple[int, ...]]  # of all variables at hand

    def variables(self, variables: Any, fill: bool = False) -> Any:
        """The variables cut, or with `fill` masked; refuses those of another model."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
            path = names(path)
            if path in self.shapes:
                _check_shape(path, leaf, self.shapes[path])
            elif path[0] in ("params", "batch_stats"):
                raise InputError(
                    f"tree holds {'/'.join(path)}, which is no layer of the model; pass"
                    " the variables of this model."
                )
        return cut_tree(self.cuts, variables, fill)

    def moments(self, opt_state: Any, fill: bool = False) -> Any:
        """The state of an optax optimizer cut, or with `fill` masked.

        A moment is a leaf of the state whose path ends as that of a parameter, and
        whose shape does; counters and hyperparameters pass. A state that keeps
        parameters in another shape is refused.
        """
        shapes = {p[1:]: shape for p, shape in self.shapes.items() if p[0] == "params"}
        axes_of = {path[1:]: axes for path, _, axes in self.cuts if path[0] == "params"}
        size = sum(map(math.prod, shapes.values()))

        def cut_leaf(path, leaf):
            path = names(path)
            # An optimizer's state holds trees of moments below names of its own, so the
            # longest end of a path that is a parameter's tells which moment it is.
            ends = (path[start:] for start in range(len(path)))
            inner = next((end for end in ends if end in shapes), None)
            if inner is not None and np.size(leaf) > 1:
                _check_shape(path, leaf, shapes[inner])
                dead = 0 if fill else None
                return cut_array(leaf, shapes[inner], axes_of.get(inner, ()), dead)
            # As `optax.flatten` keeps them; passed on uncut, they would no longer fit.
            if inner is None and np.ndim(leaf) and np.size(leaf) == size:
                raise InputError(
                    f"optimizer state holds all {size} parameters in one array of"
                    f" shape {leaf.shape}, which cannot be cut; start it afresh after"
                    " the cut."
                )
            return leaf

        return jax.tree_util.tree_map_with_path(cut_leaf, opt_state)


def _check_shape(path, leaf, shape):
    if np.shape(leaf)[max(0, np.ndim(leaf) - len(shape)) :] != shape:
        raise InputError(
            f"{'/'.join(path)} has shape {np.shape(leaf)}, but its last axes must be"
            f" {shape} for this model; start that state afresh after the cut."
        )


def names(path) -> Path:
    """Returns a tree path as plain strings."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def dead_value(path: Path) -> int:
    """Returns what a parameter holds for a dead channel: 1 for a variance, else 0.

    A variance of 1 is that of a fresh norm, and keeps its division harmless.
    """
    return 1 if path and "var" in path[-1] else 0


def cut_tree(cuts: PathCuts, tree: Any, fill: bool = False) -> Any:
    """Takes the kept entries of the leaves at the paths of `cuts`, or fills others."""
    cut_at = {path: (shape, axes) for path, shape, axes in cuts}

    def cut_leaf(path, leaf):
        path = names(path)
        if path not in cut_at:
            return leaf
        return cut_array(leaf, *cut_at[path], dead_value(path) if fill else None)

    return jax.tree_util.tree_map_with_path(cut_leaf, tree)


def cut_array(
    array: Any, shape: tuple[int, ...], axes: Axes, dead: float | None = None
) -> Any:
    """An array cut along some axes.

    Args:
      array: of NumPy or JAX, traced or not; without axes to cut it comes back as it is.
      shape: whose axes are meant; the array may have more of them in front.
      axes: (axis, kept positions) of each axis to cut.
      dead: what the other entries are filled with; None takes them out.
    """
    if not axes:
        return array
    numpy = jnp if isinstance(array, Tracer) else np
    result = array if numpy is jnp else np.asarray(array)
    for axis, positions in axes:
        axis += array.ndim - len(shape)
        if dead is None:
            result = numpy.take(result, np.asarray(positions), axis=axis)
            continue
        kept = np.isin(np.arange(array.shape[axis]), positions)
        # Broadcasts along the axes behind; those in front need nothing.
        kept = kept.reshape([-1] + [1] * (array.ndim - axis - 1))
        result = numpy.where(kept, result, np.asarray(dead, array.dtype))
    if isinstance(array, Tracer) or not isinstance(array, jax.Array):
        return result
    # Cut on the host, where a hundred different shapes need no compilation, and sent
    # back to wherever the array was.
    return jax.device_put(result, array.sharding)
