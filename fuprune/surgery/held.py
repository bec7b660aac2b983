"""Arrays of which only some indices are stored.

A held array stands for a whole one. Along each axis it stores only the `kept` indices;
everywhere else the whole array equals `rest`, nearly always one number. A channel that
was cut is an index that is not kept, with rest 0 after its convolution, 0.5 after a
sigmoid, and so on. `onto` is the only function that moves stored indices about.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fuprune.surgery.arrays import Path

Kept = tuple[np.ndarray | None, ...]  # per axis increasing indices, None for all
Pair = tuple[Path, int]  # a parameter, and one of its axes


class Origin(NamedTuple):
    """Where a parameter's axis has got to, index by index, in an array made from it."""

    axis: int  # of the array
    pure: bool  # whether nothing but parameters varies along this axis


class Held(NamedTuple):
    """An array held by the kept indices of each axis, and the rest."""

    data: Any  # what is stored: shape[i], or len(kept[i]) where the axis is cut
    shape: tuple[int, ...]  # of the whole array
    kept: Kept
    # The value elsewhere: a NumPy scalar, or an array with axes of the sizes in `shape`
    # or of size one. Of an array that is held in full, while it is explored what a cut
    # brings about: the value its parameters would give a dead channel, if there is one.
    rest: Any = None
    origins: Mapping[Pair, Origin] = {}  # the parameters this array is made of
    uniform: bool = False  # whether every entry equals `rest`
    layer: Path | None = None  # kernel whose product this is, bias aside
    sees_images: bool = False  # whether it depends on the images

    @property
    def is_full(self) -> bool:
        """Whether every index of every axis is stored."""
        return all(kept is None for kept in self.kept)

    @property
    def sizes(self) -> list[int]:
        """The shape of what is stored."""
        pairs = zip(self.shape, self.kept, strict=True)
        return [n if kept is None else len(kept) for n, kept in pairs]

    @property
    def has_zero_rest(self) -> bool:
        """Whether the rest is known to be zero before anything runs."""
        return is_static(self.rest) and not np.any(self.rest)

    @property
    def has_one_rest(self) -> bool:
        """Whether it is cut, and its rest one number."""
        return not self.is_full and is_static(self.rest)

    def indices(self, axis: int) -> np.ndarray:
        """The stored indices of an axis, all of them if it is not cut."""
        kept = self.kept[axis]
        return np.arange(self.shape[axis]) if kept is None else kept

    def moved(self, shape: Sequence[int], places: Mapping[int, int]) -> "Held":
        """The array, data aside, with these axes at other places of a whole shape.

        Axes that are not named are gone, and a rest does not vary along them.
        """
        kept: list[np.ndarray | None] = [None] * len(shape)
        sizes, rest = [1] * len(shape), self.rest
        for axis, place in places.items():
            kept[place] = self.kept[axis]
        if np.ndim(rest):
            for axis, place in places.items():
                sizes[place] = rest.shape[axis]
            order = sorted(range(rest.ndim), key=lambda axis: places.get(axis, -1))
            rest = jnp.transpose(rest, order).reshape(sizes)
        origins = {
            pair: Origin(places[origin.axis], origin.pure)
            for pair, origin in self.origins.items()
            if origin.axis in places
        }
        return hold(self.data, shape, kept, rest)._replace(
            origins=origins, uniform=self.uniform
        )


def hold(data: Any, shape: Sequence[int], kept: Sequence[Any], rest: Any) -> Held:
    """Returns an array held by indices that may be all of an axis."""
    return Held(data, tuple(shape), normal(kept, shape), rest)


def whole(data: Any, rest: Any = None) -> Held:
    """Returns an array held in full."""
    shape = tuple(np.shape(data))
    return Held(data, shape, (None,) * len(shape), rest)


def is_static(rest: Any) -> bool:
    """Whether a rest is a number on the host, known while the network is traced."""
    return isinstance(rest, np.generic | np.ndarray) and not np.ndim(rest)


def normal(kept: Sequence[Any], shape: Sequence[int]) -> Kept:
    """Returns kept indices with None wherever all are kept."""
    return tuple(
        None if indices is None or len(indices) == size else np.asarray(indices)
        for indices, size in zip(kept, shape, strict=True)
    )


def union(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Returns the indices that either keeps."""
    return None if a is None or b is None else np.union1d(a, b)


def intersection(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Returns the indices that both keep, and one at least: no array is empty."""
    if a is None or b is None:
        return b if a is None else a
    both = np.intersect1d(a, b)
    return both if len(both) else a[:1]


def onto(held: Held, kept: Sequence[np.ndarray | None]) -> Any:
    """Returns the data of `held` laid out on other kept indices, the rest filled in."""
    data, missing = held.data, None
    for axis, wanted in enumerate(kept):
        if np.array_equal(held.kept[axis], wanted):  # type: ignore
            continue
        size = held.shape[axis]
        stored = held.indices(axis)
        wanted = np.arange(size) if wanted is None else wanted
        # Where each index is stored, -1 if it is not; `pick` gives 0 for those.
        position = np.full(size, -1)
        position[stored] = np.arange(len(stored))
        data = pick(data, position[wanted], axis)
        outside = position[wanted] < 0
        if outside.any():
            outside = outside.reshape([-1] + [1] * (len(held.shape) - axis - 1))
            missing = outside if missing is None else missing | outside
    # Zeros are what `pick` has filled in already.
    if missing is None or held.has_zero_rest:
        return data
    rest = jnp.asarray(held.rest, data.dtype)
    if rest.ndim:
        # Along axes of size one a rest is the same for every index.
        laid = [k if n > 1 else None for k, n in zip(kept, rest.shape, strict=True)]
        rest = onto(whole(rest), laid)
    return jnp.where(missing, rest, data)


def in_full(held: Held) -> Any:
    """Returns the whole array."""
    return onto(held, (None,) * len(held.shape))


FEW_CHANNELS = 64  # beyond which a product costs more than it saves
pick_p = Primitive("pick")


def pick(array: Any, index: np.ndarray, axis: int) -> Any:
    """Returns entries `index` of an axis, which increase, and 0 for negative ones.

    It is both the gather that narrows and the padding that widens. The transpose of
    one is the other, so that no gradient is a scatter.
    """
    if len(index) == array.shape[axis] and np.array_equal(index, np.arange(len(index))):
        return array
    return pick_p.bind(jnp.asarray(array), index=tuple(map(int, index)), axis=axis)


def _pick(array, *, index, axis, multiplies=False):
    index = np.asarray(index, int)
    real = np.flatnonzero(index >= 0)
    zero = jnp.zeros((), array.dtype)
    if not len(real):
        shape = (*array.shape[:axis], len(index), *array.shape[axis + 1 :])
        return jnp.zeros(shape, array.dtype)
    # One run of neighbours is a slice between zeros, which needs no gather.
    first, last = index[real[0]], index[real[-1]]
    if last - first == real[-1] - real[0] == len(real) - 1:
        part = jax.lax.slice_in_dim(array, int(first), int(last) + 1, axis=axis)
        sides = [(0, 0, 0)] * array.ndim
        sides[axis] = (int(real[0]), len(index) - 1 - int(real[-1]), 0)
        return jax.lax.pad(part, zero, sides)
    is_map = array.ndim >= 3 and axis == array.ndim - 1
    few = min(len(index), array.shape[axis]) <= FEW_CHANNELS
    if multiplies and is_map and few and jnp.issubdtype(array.dtype, jnp.floating):
        # XLA gathers single channels far more slowly on CPUs than it multiplies.
        matrix = jnp.asarray(np.arange(array.shape[axis])[:, None] == index)
        matrix = matrix.astype(array.dtype)
        return jnp.matmul(array, matrix, precision=jax.lax.Precision.HIGHEST)
    taken = jnp.take(array, np.maximum(index, 0), axis=axis, mode="clip")
    inside = (index >= 0).reshape([-1] + [1] * (array.ndim - axis - 1))
    return taken if len(real) == len(index) else jnp.where(inside, taken, zero)


def _pick_on_cpu(array, *, index, axis):
    return _pick(array, index=index, axis=axis, multiplies=True)


def _pick_shape(array, *, index, axis):
    shape = (*array.shape[:axis], len(index), *array.shape[axis + 1 :])
    return array.update(shape=shape, weak_type=False)


def _pick_transpose(cotangent, array, *, index, axis):
    # Indices are distinct, so every entry has at most one cotangent to take.
    inverse = np.full(array.aval.shape[axis], -1)
    index = np.asarray(index, int)
    inverse[index[index >= 0]] = np.flatnonzero(index >= 0)
    return [pick(cotangent, inverse, axis)]


def _pick_batch(arrays, dimensions, *, index, axis):
    (array,), (dimension,) = arrays, dimensions
    # A mapped axis in front of the picked one, or in its place, moves it one on.
    axis = axis + (dimension <= axis)
    return pick_p.bind(array, index=index, axis=axis), dimension


pick_p.def_impl(_pick)
pick_p.def_abstract_eval(_pick_shape)
ad.deflinear2(pick_p, _pick_transpose)
batching.primitive_batchers[pick_p] = _pick_batch
for _function, _platform in ((_pick, None), (_pick_on_cpu, "cpu")):
    mlir.register_lowering(
        pick_p, mlir.lower_fun(_function, multiple_results=False), platform=_platform
    )
