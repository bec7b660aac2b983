"""Rules for primitives that move entries about and compute nothing.

See `arithmetic` for what a rule is. These have nothing to note about parameters.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.surgery.arithmetic import MANY_RESTS, Result
from fuprune.surgery.held import Held, hold, is_static, onto, pick, union


def broadcast_in_dim(eqn, operands, notes) -> Result:
    """Axes are added, or axes of size one widened."""
    (held,), shape = operands, tuple(eqn.params["shape"])
    places = eqn.params["broadcast_dimensions"]
    # An axis of size one that is widened is never cut: it has one index for all, and no
    # longer one per channel of a parameter.
    same = {i: j for i, j in enumerate(places) if held.shape[i] == shape[j]}
    result = held.moved(shape, same)
    data = jax.lax.broadcast_in_dim(held.data, result.sizes, places)
    return [result._replace(data=data)]


def transpose(eqn, operands, notes) -> Result:
    """Axes change places."""
    (held,), order = operands, eqn.params["permutation"]
    places = {axis: i for i, axis in enumerate(order)}
    result = held.moved([held.shape[i] for i in order], places)
    return [result._replace(data=jnp.transpose(held.data, order))]


def reshape(eqn, operands, notes) -> Result:
    """Runs of axes become other runs: they may join, or split where products allow."""
    (held,), shape = operands, tuple(eqn.outvars[0].aval.shape)
    if eqn.params.get("dimensions", None) is not None and "new_sizes" in eqn.params:
        return "it changes the order of axes as well"
    kept: list[np.ndarray | None] = [None] * len(shape)
    moved: dict[int, int] = {}  # axes that are the same before and after
    for before, after in _runs(held.shape, shape):
        real_before = [i for i in before if held.shape[i] != 1]
        real_after = [j for j in after if shape[j] != 1]
        # Axes of size one come and go; the one real axis on either side is the same.
        if len(real_before) == len(real_after) == 1:
            moved[real_before[0]] = real_after[0]
            kept[real_after[0]] = held.kept[real_before[0]]
        # Channels joined with pixels, for one: what is stored must stay a product of
        # indices of each axis, because that is all that a held array can say.
        elif any(held.kept[i] is not None for i in before):
            split = _split_indices(
                [held.indices(i) for i in before],
                [held.shape[i] for i in before],
                [shape[j] for j in after],
            )
            if split is None:
                return "a cut axis is split into groups of different sizes"
            for j, indices in zip(after, split, strict=True):
                kept[j] = indices
    # A rest is never stored in part, so it cannot follow a cut that joins or splits.
    if any(n > 1 and i not in moved for i, n in enumerate(np.shape(held.rest))):
        return "the rest varies along an axis that is joined or split"
    result = held.moved(shape, moved)._replace(kept=hold(None, shape, kept, None).kept)
    # With axes of size one more or less, a layer's product is still that.
    layer = held.layer if len(moved) == sum(n != 1 for n in held.shape) else None
    data = jnp.reshape(held.data, result.sizes)
    return [result._replace(data=data, layer=layer)]


def _runs(before, after):
    """The shortest runs of axes of equal size on both sides, in order."""
    i = j = 0
    while i < len(before) and j < len(after):
        start, first = i, j
        left, right = before[i], after[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * before[i], i + 1
            else:
                right, j = right * after[j], j + 1
        yield range(start, i), range(first, j)
    # What is left on either side has size one.
    yield range(i, len(before)), range(j, len(after))


def _split_indices(kept, before, after):
    """Kept indices of the axes `before` as those of `after`, if that is a product."""
    # Every stored entry by its place in the flat array, which a reshape preserves.
    grid = np.meshgrid(*kept, indexing="ij")
    flat = np.ravel_multi_index(grid, before).ravel()
    if not after:
        return []
    split = [np.unique(part) for part in np.unravel_index(flat, after)]
    # The product of these indices covers all stored entries; of equal size, it is them.
    return split if math.prod(map(len, split)) == len(flat) else None


def concatenate(eqn, operands, notes) -> Result:
    """Arrays one after another; what each keeps is shifted to its place."""
    axis, shape = eqn.params["dimension"], eqn.outvars[0].aval.shape
    # A full part has no rest to agree on. None stands for one that is an array.
    rests = {h.rest if is_static(h.rest) else None for h in operands if not h.is_full}
    if len(rests) > 1 or None in rests:
        return "its parts have different rests"
    # Along the other axes all parts must store the same indices.
    kept: list = [
        functools.reduce(union, [h.kept[i] for h in operands])
        for i in range(len(shape))
    ]
    parts, indices, offset = [], [], 0
    for h in operands:
        # Along the joined axis each part stays as it is stored.
        kept[axis] = h.kept[axis]
        parts.append(onto(h, kept))
        indices.append(h.indices(axis) + offset)
        offset += h.shape[axis]
    kept[axis] = np.concatenate(indices)
    data = jnp.concatenate(parts, axis)
    rest = rests.pop() if rests else None
    return [hold(data, shape, kept, rest)]


def split(eqn, operands, notes) -> Result:
    """The inverse of a concatenation."""
    (held,), axis = operands, eqn.params["axis"]
    if not held.has_one_rest:
        return MANY_RESTS
    results, start = [], 0
    for size, atom in zip(eqn.params["sizes"], eqn.outvars, strict=True):
        ranges = [(0, n, 1) for n in held.shape]
        ranges[axis] = (start, start + size, 1)
        part = _sliced(held, ranges, atom.aval.shape)
        if part is None:
            return "it leaves nothing of a cut axis"
        results.append(part)
        start += size
    return results


def slice_(eqn, operands, notes) -> Result:
    """A static slice keeps the kept indices that lie in it."""
    (held,), params, shape = operands, eqn.params, eqn.outvars[0].aval.shape
    if not held.has_one_rest:
        return MANY_RESTS
    strides = params["strides"] or [1] * len(shape)
    ranges = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    part = _sliced(held, ranges, shape)
    return "it leaves nothing of a cut axis" if part is None else [part]


def _sliced(held, ranges, shape) -> Held | None:
    """The part in (start, limit, stride) of each axis, if anything is stored of it."""
    data, kept = held.data, list(held.kept)
    for axis, (start, limit, stride) in enumerate(ranges):
        indices = held.kept[axis]
        if indices is None:
            data = jax.lax.slice_in_dim(data, start, limit, stride, axis)
            continue
        inside = (indices >= start) & (indices < limit)
        inside = np.flatnonzero(inside & ((indices - start) % stride == 0))
        if not len(inside):
            return None
        data = pick(data, inside, axis)
        kept[axis] = (indices[inside] - start) // stride
    return hold(data, shape, kept, held.rest)


def pad(eqn, operands, notes) -> Result:
    """Padding an axis with the rest itself costs nothing: indices are shifted."""
    held, value = operands
    sides, shape = eqn.params["padding_config"], eqn.outvars[0].aval.shape
    if any(min(side) < 0 or side[2] for side in sides) or not value.uniform:
        return "it pads by a value that is not static, or cuts"
    padded = [i for i, side in enumerate(sides) if any(side)]
    if held.is_full and len(padded) == 1:
        # Nothing is computed: what is padded becomes the rest, the data stay.
        kept: list[np.ndarray | None] = [None] * len(shape)
        kept[padded[0]] = np.arange(held.shape[padded[0]]) + sides[padded[0]][0]
        return [hold(held.data, shape, kept, value.rest)]
    if not held.has_one_rest or value.rest != held.rest:
        return f"it pads by {value.rest}, which is not the rest"
    kept, left = list(held.kept), list(sides)
    # A cut axis is padded by its indices alone; only the others grow in the data.
    for axis, (low, _, _) in enumerate(sides):
        if held.kept[axis] is not None:
            kept[axis] = held.kept[axis] + low
            left[axis] = (0, 0, 0)
    data = jax.lax.pad(held.data, jnp.asarray(held.rest, held.data.dtype), left)
    return [hold(data, shape, kept, held.rest)]
