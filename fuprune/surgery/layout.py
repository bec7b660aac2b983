"""Rules for primitives that move entries about and compute nothing.

See `arithmetic` for what a rule is. These have nothing to note about parameters.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.surgery.arithmetic import Result, Rule
from fuprune.surgery.held import (
    Held,
    is_static,
    normal,
    onto,
    pick,
    union,
    whole,
)


def broadcast_in_dim(eqn, operands, notes) -> Result:
    """Axes are added, or axes of size one widened."""
    (held,), shape = operands, tuple(eqn.params["shape"])
    places = eqn.params["broadcast_dimensions"]
    # An axis of size one that is widened is never cut: it has one index for all, and no
    # longer one per channel of a parameter.
    moved = {i: j for i, j in enumerate(places) if held.shape[i] == shape[j]}
    kept: list[np.ndarray | None] = [None] * len(shape)
    for axis, place in moved.items():
        kept[place] = held.kept[axis]
    sizes = [n if k is None else len(k) for n, k in zip(shape, kept, strict=True)]
    rest = held.rest
    if np.ndim(rest):
        new = [i for i in range(len(shape)) if i not in places]
        rest = jnp.expand_dims(rest, new)  # places always increase
    origins = held.origins_at(moved)
    data = jax.lax.broadcast_in_dim(held.data, sizes, places)
    return [Held(data, shape, tuple(kept), rest, origins, held.uniform)]


def transpose(eqn, operands, notes) -> Result:
    """Axes change places."""
    (held,), order = operands, eqn.params["permutation"]
    # An array of rests has as many axes as the whole array, some of size one.
    rest = jnp.transpose(held.rest, order) if np.ndim(held.rest) else held.rest
    return [
        Held(
            jnp.transpose(held.data, order),
            tuple(held.shape[i] for i in order),
            tuple(held.kept[i] for i in order),
            rest,
            held.origins_at({axis: i for i, axis in enumerate(order)}),
            held.uniform,
        )
    ]


def reshape(eqn, operands, notes) -> Result:
    """Runs of axes become other runs: they may join, or split where products allow."""
    (held,), shape = operands, tuple(eqn.outvars[0].aval.shape)
    if eqn.primitive.name == "reshape" and eqn.params["dimensions"] is not None:
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
                [held.kept[i] for i in before],
                [held.shape[i] for i in before],
                [shape[j] for j in after],
            )
            if split is None:
                return "a cut axis is split into groups of different sizes"
            for j, indices in zip(after, split, strict=True):
                kept[j] = indices
    rest = held.rest
    if np.ndim(rest):
        rest_shape = [1] * len(shape)
        for i, n in enumerate(np.shape(rest)):
            # A rest is never stored in part, so it cannot follow such a cut.
            if n > 1 and i not in moved:
                return "the rest varies along an axis that is joined or split"
            if i in moved:
                rest_shape[moved[i]] = n
        rest = jnp.reshape(rest, rest_shape)
    sizes = [n if k is None else len(k) for n, k in zip(shape, kept, strict=True)]
    data, origins = jnp.reshape(held.data, sizes), held.origins_at(moved)
    # With axes of size one more or less, a layer's product is still that.
    layer = held.layer if len(moved) == sum(n != 1 for n in held.shape) else None
    return [Held(data, shape, normal(kept, shape), rest, origins, held.uniform, layer)]


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
    indices = [
        np.arange(n) if k is None else k for k, n in zip(kept, before, strict=True)
    ]
    # Every stored entry by its place in the flat array, which a reshape preserves.
    grid = np.meshgrid(*indices, indexing="ij")
    flat = np.ravel_multi_index(grid, before).ravel()
    if not after:
        return []
    split = [np.unique(part) for part in np.unravel_index(flat, after)]
    # The product of these indices covers all stored entries; of equal size, it is them.
    return split if math.prod(map(len, split)) == len(flat) else None


def concatenate(eqn, operands, notes) -> Result:
    """Arrays one after another; what each keeps is shifted to its place."""
    axis, shape = eqn.params["dimension"], tuple(eqn.outvars[0].aval.shape)
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
    return [Held(data, shape, normal(kept, shape), rest)]


def split(eqn, operands, notes) -> Result:
    """The inverse of a concatenation."""
    (held,), axis = operands, eqn.params["axis"]
    if held.is_full:
        parts = eqn.primitive.bind(held.data, **eqn.params)
        return [whole(part) for part in parts]
    if not is_static(held.rest):
        return "the rest is not one number"
    results, start = [], 0
    for size, atom in zip(eqn.params["sizes"], eqn.outvars, strict=True):
        stored = held.indices(axis)
        inside = np.flatnonzero((stored >= start) & (stored < start + size))
        if not len(inside):
            return "it leaves nothing of a cut axis"
        kept = list(held.kept)
        if held.kept[axis] is not None:
            kept[axis] = stored[inside] - start
        data = pick(held.data, inside, axis)
        shape = tuple(atom.aval.shape)
        results.append(Held(data, shape, normal(kept, shape), held.rest))
        start += size
    return results


def pad(eqn, operands, notes) -> Result:
    """Padding an axis with the rest itself costs nothing: indices are shifted."""
    held, value = operands
    sides, shape = eqn.params["padding_config"], tuple(eqn.outvars[0].aval.shape)
    padded = [i for i, side in enumerate(sides) if any(side)]
    plain = all(min(side) >= 0 and not side[2] for side in sides)
    if held.is_full and not (value.uniform and plain and len(padded) == 1):
        data = eqn.primitive.bind(held.data, value.data, **eqn.params)
        return [whole(data)]
    if held.is_full:
        # Nothing is computed: what is padded becomes the rest, the data stay.
        axis = padded[0]
        kept = [None] * len(shape)
        kept[axis] = np.arange(held.shape[axis]) + sides[axis][0]
        return [Held(held.data, shape, normal(kept, shape), value.rest)]
    if not (plain and value.uniform and is_static(held.rest)):
        return "it pads by a value that is not static, or cuts"
    if value.rest != held.rest:
        return f"it pads by {value.rest}, and the rest is {held.rest}"
    kept, left = list(held.kept), list(sides)
    # A cut axis is padded by its indices alone; only the others grow in the data.
    for axis, (low, _, _) in enumerate(sides):
        if held.kept[axis] is not None:
            kept[axis] = held.kept[axis] + low
            left[axis] = (0, 0, 0)
    fill = jnp.asarray(held.rest, held.data.dtype)
    data = jax.lax.pad(held.data, fill, left)
    return [Held(data, shape, normal(kept, shape), held.rest)]


def slice_(eqn, operands, notes) -> Result:
    """A static slice keeps the kept indices that lie in it."""
    (held,), params = operands, eqn.params
    shape = tuple(eqn.outvars[0].aval.shape)
    starts, limits = list(params["start_indices"]), list(params["limit_indices"])
    strides = list(params["strides"] or [1] * len(shape))
    if not (held.is_full or is_static(held.rest)):
        return "the rest is not one number"
    data, kept = held.data, list(held.kept)
    for axis, indices in enumerate(held.kept):
        if indices is None:
            continue
        shifted = indices - starts[axis]
        inside = (shifted >= 0) & (indices < limits[axis])
        inside = np.flatnonzero(inside & (shifted % strides[axis] == 0))
        if not len(inside):
            return "it leaves nothing of a cut axis"
        data = pick(data, inside, axis)
        kept[axis] = shifted[inside] // strides[axis]
        # Picked already: the slice below takes all that is left along this axis.
        starts[axis], limits[axis], strides[axis] = 0, len(inside), 1
    data = jax.lax.slice(data, starts, limits, strides)
    rest = held.rest if not held.is_full or held.uniform else None
    kept = normal(kept, shape)
    return [Held(data, shape, kept, rest, uniform=held.uniform)]


def gather(eqn, operands, notes) -> Result:
    """Entries by number, as in resizing a map: the cut axes must be taken as they are.

    An index outside the array gives the fill value along the cut axis as well, so the
    rest must be zero if such an index is filled.
    """
    (held, indices), params = operands, dict(eqn.params)
    if held.is_full and indices.is_full:
        return [whole(eqn.primitive.bind(held.data, indices.data, **params))]
    if not indices.is_full or not is_static(held.rest):
        return "its indices are cut, or the rest is not one number"
    if params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP and held.rest != 0:
        return "an index outside the array would not give the rest"
    numbers, sizes = params["dimension_numbers"], list(params["slice_sizes"])
    shape = tuple(eqn.outvars[0].aval.shape)
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    left = [axis for axis in range(len(held.shape)) if axis not in gone]
    kept: list[np.ndarray | None] = [None] * len(shape)
    for axis, ids in enumerate(held.kept):
        if ids is None:
            continue
        if axis in (*gone, *numbers.start_index_map) or sizes[axis] != held.shape[axis]:
            return "it takes entries of a cut axis by number"
        sizes[axis] = len(ids)
        # Offset dimensions are the operand's remaining axes, in their order.
        kept[numbers.offset_dims[left.index(axis)]] = ids
    params["slice_sizes"] = tuple(sizes)
    data = eqn.primitive.bind(held.data, indices.data, **params)
    return [Held(data, shape, normal(kept, shape), held.rest)]


def rev(eqn, operands, notes) -> Result:
    """Axes are reversed, and the kept indices with them."""
    (held,), axes = operands, eqn.params["dimensions"]
    if not (held.is_full or is_static(held.rest)):
        return "the rest is not one number"
    kept = [
        # Turned round as well, because kept indices always increase.
        held.shape[i] - 1 - k[::-1] if k is not None and i in axes else k
        for i, k in enumerate(held.kept)
    ]
    data = jax.lax.rev(held.data, axes)
    rest = None if held.is_full else held.rest
    return [Held(data, held.shape, tuple(kept), rest)]


RULES: dict[str, Rule] = {
    "broadcast_in_dim": broadcast_in_dim,
    "concatenate": concatenate,
    "gather": gather,
    "pad": pad,
    "reshape": reshape,
    "rev": rev,
    "slice": slice_,
    "split": split,
    "squeeze": reshape,
    "transpose": transpose,
}
