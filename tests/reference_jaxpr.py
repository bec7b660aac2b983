"""Programs of JAX run by NumPy, in double precision and without compiling anything.

A plan gives a network shapes that no other plan gives, and compiling one takes longer
than everything else. Here a traced program costs its tracing alone, so many plans can
be tried on deep networks; no rounding hides a difference, either.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core


def evaluate(program: Any, *arrays: Any) -> list[np.ndarray]:
    """Returns what a closed jaxpr gives, with every float as float64.

    Args:
      program: of `jax.make_jaxpr`.
      *arrays: one for each input.
    """
    return _run(program.jaxpr, program.consts, arrays)


def trace(function: Callable, *arguments: Any) -> Callable:
    """Returns a function of trees, traced once and then run by `evaluate`.

    Args:
      function: of trees of arrays.
      *arguments: such trees, or their shapes.
    """
    program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)

    def run(*arguments):
        results = evaluate(program, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run


def _run(jaxpr, constants, arrays):
    values = {}

    def read(atom):
        value = atom.val if isinstance(atom, core.Literal) else values[atom]
        return _double(value)

    values.update(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arrays, strict=True))
    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        name, inner = eqn.primitive.name, _inner(eqn.params)
        if name == "scan":
            results = _scan(*operands, **eqn.params)
        elif inner is not None:
            results = _run(*inner, operands)
        else:
            results = RULES[name](*operands, **eqn.params)
        results = results if eqn.primitive.multiple_results else [results]
        for var, result in zip(eqn.outvars, results, strict=True):
            assert np.shape(result) == var.aval.shape, (name, np.shape(result))
            values[var] = result
    return [read(atom) for atom in jaxpr.outvars]


def _scan(*arrays, jaxpr, length, num_consts, num_carry, **params):
    """A loop without stacked operands or results."""
    assert (
        len(arrays) == num_consts + num_carry == num_consts + len(jaxpr.jaxpr.outvars)
    )
    constants, carry = arrays[:num_consts], arrays[num_consts:]
    for _ in range(length):
        carry = _run(jaxpr.jaxpr, jaxpr.consts, [*constants, *carry])
    return carry


def _double(value):
    value = np.asarray(value)
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def _inner(params):
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if name in params:
            return getattr(params[name], "jaxpr", params[name]), params[name].consts
    return None


def _elementwise(function):
    return lambda *arrays, **params: function(*arrays)


def _reduce(function):
    return lambda array, *, axes, **params: function(array, axis=tuple(axes))


def _convert(array, *, new_dtype, **params):
    kind = np.dtype(new_dtype)
    return array.astype(np.float64 if kind.kind == "f" else kind)


def _select(which, *cases):
    return np.choose(which.astype(int), cases)


def _broadcast(array, *, shape, broadcast_dimensions, **params):
    sizes = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        sizes[place] = array.shape[axis]
    return np.broadcast_to(array.reshape(sizes), shape)


def _slice(array, *, start_indices, limit_indices, strides):
    strides = strides or [1] * array.ndim
    places = zip(start_indices, limit_indices, strides, strict=True)
    return array[tuple(slice(*place) for place in places)]


def _split(array, *, sizes, axis):
    return np.split(array, np.cumsum(sizes)[:-1], axis)


def _concatenate(*arrays, dimension):
    return np.concatenate(arrays, dimension)


def _pad(array, value, *, padding_config):
    """Zeros between entries, then outside; negative sides are cut off."""
    for axis, (low, high, inside) in enumerate(padding_config):
        size = array.shape[axis]
        spread = np.full(
            (*array.shape[:axis], max(0, size + (size - 1) * inside),
             *array.shape[axis + 1 :]), value, array.dtype,
        )  # fmt: skip
        spread[(slice(None),) * axis + (slice(None, None, inside + 1),)] = array
        sides = [(0, 0)] * array.ndim
        sides[axis] = (max(low, 0), max(high, 0))
        array = np.pad(spread, sides, constant_values=value)
        end = array.shape[axis] + min(high, 0)
        array = array[(slice(None),) * axis + (slice(-min(low, 0), end),)]
    return array


def _pick(array, *, index, axis):
    """`fuprune.surgery.held.pick`: zeros where an index is negative."""
    index = np.asarray(index)
    taken = np.take(array, np.maximum(index, 0), axis)
    inside = (index >= 0).reshape([-1] + [1] * (array.ndim - axis - 1))
    return np.where(inside, taken, 0)


def _dot(left, right, *, dimension_numbers, **params):
    contracted, batched = dimension_numbers
    assert not batched[0]
    return np.tensordot(left, right, contracted)


def _convolution(
    image, kernel, *, window_strides, padding, lhs_dilation, rhs_dilation,
    dimension_numbers, feature_group_count, batch_group_count, **params,
):  # fmt: skip
    """Windows of the image times the kernel, group by group."""
    assert batch_group_count == 1
    lhs, rhs, out = dimension_numbers
    image = image.transpose(lhs[0], *lhs[2:], lhs[1])
    kernel = kernel.transpose(*rhs[2:], rhs[1], rhs[0])
    rank = len(window_strides)
    config = [
        (*side, dilation - 1)
        for side, dilation in zip(padding, lhs_dilation, strict=True)
    ]
    image = _pad(image, 0.0, padding_config=[(0, 0, 0), *config, (0, 0, 0)])
    reach = [
        1 + (n - 1) * dilation
        for n, dilation in zip(kernel.shape, rhs_dilation, strict=False)
    ]
    windows = np.lib.stride_tricks.sliding_window_view(
        image, reach, axis=tuple(range(1, rank + 1))
    )  # [B, places..., C, window...]
    step = tuple(slice(None, None, n) for n in window_strides)
    hole = tuple(slice(None, None, n) for n in rhs_dilation)
    windows = windows[(slice(None), *step, slice(None), *hole)]
    axes = (*range(rank + 2, 2 * rank + 2), rank + 1)
    pairs = zip(
        np.split(windows, feature_group_count, rank + 1),
        np.split(kernel, feature_group_count, -1),
        strict=True,
    )
    result = np.concatenate(
        [np.tensordot(*pair, (axes, tuple(range(rank + 1)))) for pair in pairs], -1
    )
    order = np.argsort((out[0], *out[2:], out[1]))
    return result.transpose(order)


RULES = {
    "abs": _elementwise(np.abs),
    "add": _elementwise(np.add),
    "add_any": _elementwise(np.add),
    "and": _elementwise(np.logical_and),
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "convert_element_type": _convert,
    "copy": _elementwise(np.copy),
    "div": _elementwise(np.divide),
    "dot_general": _dot,
    "eq": _elementwise(np.equal),
    "exp": _elementwise(np.exp),
    "ge": _elementwise(np.greater_equal),
    "gt": _elementwise(np.greater),
    "integer_pow": lambda x, *, y: x**y,
    "log": _elementwise(np.log),
    "logistic": _elementwise(lambda x: 1 / (1 + np.exp(-x))),
    "lt": _elementwise(np.less),
    "max": _elementwise(np.maximum),
    "mul": _elementwise(np.multiply),
    "ne": _elementwise(np.not_equal),
    "neg": _elementwise(np.negative),
    "or": _elementwise(np.logical_or),
    "pad": _pad,
    "pick": _pick,
    "reduce_max": _reduce(np.max),
    "reduce_or": _reduce(np.any),
    "reduce_sum": _reduce(np.sum),
    "reshape": lambda x, *, new_sizes, **params: x.reshape(new_sizes),
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "rsqrt": _elementwise(lambda x: 1 / np.sqrt(x)),
    "select_n": _elementwise(_select),
    "slice": _slice,
    "split": _split,
    "sqrt": _elementwise(np.sqrt),
    "square": _elementwise(np.square),
    "squeeze": lambda x, *, dimensions: np.squeeze(x, tuple(dimensions)),
    "stop_gradient": _elementwise(np.asarray),
    "sub": _elementwise(np.subtract),
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
}
