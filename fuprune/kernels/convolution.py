"""Convolutions for CPU through oneDNN, as JAX primitives that drop into ``nn.Conv``.

XLA's CPU convolution is two to three times slower than oneDNN's, and ten to twenty
times inside ``scan``, ``map`` and ``while`` loops, which is where local client steps
run. The three primitives here (a convolution and its two gradients) are bilinear and
closed under transposition, so ``jvp``, ``grad``, ``grad`` of ``grad`` and ``vmap`` all
compose. Whatever they do not cover goes to ``jax.lax.conv_general_dilated``.

A batch split over devices is for ``shard_map``: a jit that shards by itself knows
nothing of the inside of these primitives, and gathers what it should have split.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax.interpreters import ad, batching

from fuprune.kernels import library, primitives

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def implementation(name: str) -> Callable[..., jax.Array]:
    """Returns XLA's own convolution ("xla") or :func:`convolve` ("onednn")."""
    return library.choose(name, convolve, jax.lax.conv_general_dilated)


def promotion(name: str) -> Callable[..., list[Any]]:
    """Returns the ``promote_dtype`` of an ``nn.Conv`` with that implementation.

    :func:`convolve` takes float32 kernels as they are where the data become bfloat16.
    """
    return library.choose(name, _promote_data, promote_dtype)


def _promote_data(data, kernel, bias, *, dtype):
    found = promote_dtype(data, kernel, bias, dtype=dtype)
    mixed = dtype == jnp.bfloat16 and kernel.dtype == jnp.float32
    return [found[0], kernel, found[2]] if mixed else found


def convolve(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **options: Any,
) -> jax.Array:
    """Convolves like ``jax.lax.conv_general_dilated``, with oneDNN where it can.

    That is: CPU, float32 or bfloat16 (summed in float32), NHWC data [N, H, W, I], HWIO
    kernel [KH, KW, I, O], any strides and padding, no dilation, one group. Everything
    else is XLA's. A float32 kernel may convolve bfloat16 data: it is rounded on the
    way, its gradient is not, and XLA's slow conversions are saved.
    """
    mixed = lhs.dtype == jnp.bfloat16 and rhs.dtype == jnp.float32
    if (lhs.dtype == rhs.dtype or mixed) and _is_covered(lhs, rhs, **options):
        strides = tuple(map(int, window_strides))
        if isinstance(padding, str):
            pairs = jax.lax.padtype_to_pads(
                lhs.shape[1:3], rhs.shape[:2], strides, padding
            )
        else:
            pairs = padding
        pairs = tuple((int(low), int(high)) for low, high in pairs)
        output = _output_shape(lhs.shape, rhs.shape, strides=strides, padding=pairs)
        sizes = (*lhs.shape, *rhs.shape, *output)
        # oneDNN takes neither empty arrays nor padding that crops.
        if min(sizes) > 0 and min(min(pair) for pair in pairs) >= 0:
            lhs, rhs = library.vary_alike(lhs, rhs)
            return _one_problem(lhs, rhs, strides=strides, padding=pairs)
    rhs = rhs.astype(lhs.dtype) if mixed else rhs
    return jax.lax.conv_general_dilated(lhs, rhs, window_strides, padding, **options)


def _is_covered(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    **others: Any,
) -> bool:
    del precision  # float32 is what all sums are in
    numbers = functools.partial(jax.lax.conv_dimension_numbers, lhs.shape, rhs.shape)
    return (
        lhs.ndim == rhs.ndim == 4
        and lhs.dtype in library.DTYPES
        and preferred_element_type in (None, lhs.dtype)
        and feature_group_count == batch_group_count == 1
        and set((*(lhs_dilation or ()), *(rhs_dilation or ()))) <= {1}
        and not others
        and numbers(dimension_numbers) == numbers(_LAYOUT)
    )


# Traced once for all layers of the same shape, as the norms are.
@functools.partial(jax.jit, static_argnames=("strides", "padding"))
def _one_problem(data, kernel, *, strides, padding):
    return primitives.bind_one(
        _forward_p,
        data,
        kernel,
        strides=strides,
        padding=padding,
        data_size=data.shape[1:3],
        kernel_size=kernel.shape[:2],
        kernel_dtype=kernel.dtype,
    )


# The primitives. Shapes, with G independent problems on the leading axis:
#   data [G, N, H, W, I]    kernel [G, KH, KW, I, O]    output [G, N, P, Q, O]
# Static parameters: strides, padding ((low, high) per axis), data_size (H, W),
# kernel_size (KH, KW) and kernel_dtype; the last three name what a gradient's operands
# do not tell. The functions are of one problem, in JAX.


def _forward(data, kernel, *, strides, padding, **_):
    return jax.lax.conv_general_dilated(
        data, kernel.astype(data.dtype), strides, padding, dimension_numbers=_LAYOUT
    )


def _data_gradient(output, kernel, **static):
    shape = _data_shape(output.shape, kernel.shape, **static)
    data = jax.ShapeDtypeStruct(shape, output.dtype)
    # XLA's own adjoint, so that the fallback agrees with what it replaces.
    transpose = jax.linear_transpose(lambda x: _forward(x, kernel, **static), data)
    return transpose(output)[0]


def _kernel_gradient(data, output, **static):
    shape = _kernel_shape(data.shape, output.shape, **static)
    kernel = jax.ShapeDtypeStruct(shape, static["kernel_dtype"])
    transpose = jax.linear_transpose(lambda w: _forward(data, w, **static), kernel)
    return transpose(output)[0]


# The shapes of results, with or without the leading axis.


def _output_shape(data, kernel, *, strides, padding, **_):
    one = data[-4:], kernel[-4:]
    found = jax.lax.conv_general_shape_tuple(*one, strides, padding, _LAYOUT)
    return (*data[:-4], *map(int, found))


def _data_shape(output, kernel, *, data_size, **_):
    return (*output[:-3], *data_size, kernel[-2])


def _kernel_shape(data, output, *, kernel_size, **_):
    return (*data[:-4], *kernel_size, data[-1], output[-1])


def _attributes(*, strides, padding, **_):
    return {
        "strides": np.array(strides, np.int64),
        "padding": np.array(padding, np.int64).reshape(-1),
    }


def _fold_batch(primitive: Any, operands, dimensions, **static):
    """The batching rule of what has one kernel for all: the batch joins the examples.

    [B, G, N, ...] is then one problem with more examples, and no kernel is copied.
    """
    (first, second), (axis, second_axis) = operands, dimensions
    if second_axis is not None:
        return primitives.batch(primitive, operands, dimensions, **static)
    size = first.shape[axis]
    first = jnp.moveaxis(first, axis, 1)
    folded = first.reshape(first.shape[0], -1, *first.shape[3:])
    result = primitive.bind(folded, second, **static)
    return result.reshape(result.shape[0], size, -1, *result.shape[2:]), 1


def _make_primitive(name, shape, function) -> Any:
    def abstract(first, second, **static):
        dtype = static["kernel_dtype"] if shape is _kernel_shape else first.dtype
        return first.update(
            shape=shape(first.shape, second.shape, **static), dtype=dtype
        )

    return primitives.make_primitive(name, abstract, function, _attributes)


_forward_p = _make_primitive("fuprune_conv_forward", _output_shape, _forward)
_data_gradient_p = _make_primitive(
    "fuprune_conv_data_gradient", _data_shape, _data_gradient
)
_kernel_gradient_p = _make_primitive(
    "fuprune_conv_kernel_gradient", _kernel_shape, _kernel_gradient
)
for _p in (_forward_p, _data_gradient_p):
    batching.primitive_batchers[_p] = functools.partial(_fold_batch, _p)

# Each is linear in either operand, and the adjoint of each is one of the three.
ad.defbilinear(
    _forward_p,
    lambda output, data, kernel, **s: _data_gradient_p.bind(output, kernel, **s),
    lambda output, data, kernel, **s: _kernel_gradient_p.bind(data, output, **s),
)
ad.defbilinear(
    _data_gradient_p,
    lambda data, output, kernel, **s: _forward_p.bind(data, kernel, **s),
    lambda data, output, kernel, **s: _kernel_gradient_p.bind(data, output, **s),
)
ad.defbilinear(
    _kernel_gradient_p,
    lambda kernel, data, output, **s: _data_gradient_p.bind(output, kernel, **s),
    lambda kernel, data, output, **s: _forward_p.bind(data, kernel, **s),
)
