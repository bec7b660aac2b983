"""The maximum over windows of 2x2 pixels, on CPU by a kernel.

XLA computes it well in float32. In bfloat16 it widens and rounds every value that it
selects, which takes as long as a convolution. A training step of VGG11 (batches of 32
images, one core, processor time, medians of eight) took 1.08x as long without it
in bfloat16, and 1.01x in float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from fuprune.kernels import library, primitives


def implementation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Returns a function like `max_pool_in_jax`: that itself, or one with a kernel."""
    return library.choose(name, max_pool, max_pool_in_jax)


def max_pool_in_jax(values: jax.Array) -> jax.Array:
    """Takes the maximum over 2x2 windows of [B, H, W, C]; a side of 1 stays 1."""
    for axis in (1, 2):
        pairs = values.shape[axis] // 2
        if pairs:
            shape = (*values.shape[:axis], pairs, 2, *values.shape[axis + 1 :])
            whole = jax.lax.slice_in_dim(values, 0, 2 * pairs, axis=axis)
            # Split, because its gradient puts the halves back side by side. That of
            # strided slices adds arrays.
            even, odd = (
                jnp.squeeze(half, axis + 1)
                for half in jax.lax.split(whole.reshape(shape), (1, 1), axis + 1)
            )
            # Compared and selected, so that each gradient goes to exactly one pixel.
            # XLA's windowed maximum has a far slower gradient, and that of jnp.max
            # looks for the maximum again: NaN if recomputing the map rounds otherwise.
            values = jnp.where(even >= odd, even, odd)
    return values


def max_pool(values: jax.Array) -> jax.Array:
    """Computes `max_pool_in_jax`, by the kernel where there is one."""
    covered = values.dtype in library.DTYPES and min(values.shape) > 0
    if not covered or min(values.shape[1:3]) < 2:
        return max_pool_in_jax(values)
    return primitives.bind_one(_forward_p, values)


# The primitives, with G independent problems on the leading axis:
#   forward   data [G, N, H, W, C] -> output [G, N, H // 2, W // 2, C]
#   tangent   data, tangent of data -> tangent of output; linear in the second
#   backward  data, gradient of output -> gradient of data; the adjoint of tangent
# Where the maxima are does not change with the data but at ties, so that tangent and
# backward have no derivative with respect to the data.


def _tangent(data, d_data):
    return jax.jvp(max_pool_in_jax, (data,), (d_data,))[1]


def _backward(data, d_output):
    return jax.vjp(max_pool_in_jax, data)[1](d_output)[0]


def _pooled(data, *_):
    groups, examples, rows, columns, channels = data.shape
    return data.update(shape=(groups, examples, rows // 2, columns // 2, channels))


_forward_p = primitives.make_primitive(
    "fuprune_max_pool_forward", _pooled, max_pool_in_jax, dict
)
# Forward mode has no kernel: training differentiates backwards.
_tangent_p = primitives.make_primitive(
    "fuprune_max_pool_tangent", _pooled, _tangent, None
)
_backward_p = primitives.make_primitive(
    "fuprune_max_pool_backward", lambda data, _: data, _backward, dict
)
ad.defjvp(_forward_p, lambda tangent, data: _tangent_p.bind(data, tangent))
ad.primitive_transposes[_tangent_p] = lambda cotangent, data, _: (
    None,
    _backward_p.bind(data, ad.instantiate_zeros(cotangent)),
)
