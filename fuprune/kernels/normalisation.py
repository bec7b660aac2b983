"""Batch normalisation in training with the residual sum and ReLU that follow it.

XLA on CPU runs these memory-bound steps as many loops, and recomputes a residual stream
from all its earlier terms in each of them. Here the whole is one kernel of two passes
over memory, and so is its gradient. Derivatives of any order and mode compose: what has
no kernel of its own is differentiated in JAX.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from fuprune.kernels import library, primitives


class Normalised(NamedTuple):
    """A normalised batch and the moments it was normalised with."""

    outputs: jax.Array  # [N, H, W, C]
    mean: jax.Array  # [C]
    variance: jax.Array  # [C], biased


class Stream(NamedTuple):
    """Where channels go in what a layer returns; static."""

    places: tuple[int, ...]  # of the C channels of the inputs, increasing
    residual_places: tuple[int, ...]  # of the R channels of the residual, increasing
    width: int  # channels of the result; those without a place in it are zero


def implementation(name: str) -> Callable[..., Normalised]:
    """Returns `batch_norm` in JAX ("xla") or by the kernels ("onednn")."""
    return library.choose(name, batch_norm, batch_norm_in_jax)


def batch_norm(
    inputs: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    mask: jax.Array | None = None,
    residual: jax.Array | None = None,
    *,
    relu: bool = False,
    epsilon: float = 1e-5,
    stream: Stream | None = None,
    kernels: bool = True,
) -> Normalised:
    """Normalises by the batch's own moments, adds a residual, applies ReLU.

    All of it is computed in float32; the result has the type of the inputs.

    Args:
      inputs: [N, H, W, C].
      scale: [C].
      bias: [C].
      mask: [N], nonzero for the examples that enter the moments; None if all do.
      residual: [N, H, W, R], added after the norm, or None.
      relu: whether a ReLU follows.
      epsilon: added to the variance.
      stream: where the channels go; by default channel i to i, of both.
      kernels: whether a kernel computes it where there is one for such inputs.
    """
    if stream is None:
        stream = _straight(inputs.shape[-1])
    if residual is None:
        stream = stream._replace(residual_places=())
    others = () if residual is None else (residual,)
    covered = (
        kernels
        and inputs.dtype in library.DTYPES
        and all(other.dtype == inputs.dtype for other in others)
        and scale.dtype == bias.dtype == jnp.float32
        and inputs.ndim == 4
        and inputs.size > 0
    )
    if not covered:
        mean, variance = moments(inputs, mask)
        outputs = normalise(inputs, mean, variance, scale, bias, epsilon)
        return Normalised(combine(outputs, residual, relu, stream), mean, variance)
    weight = jnp.ones(len(inputs)) if mask is None else mask != 0
    # The mask is data, not a parameter: the primitives have no gradient for it.
    weight = jax.lax.stop_gradient(weight.astype(jnp.float32))
    operands = library.vary_alike(inputs, scale, bias, weight, *others)
    static = {"relu": bool(relu), "epsilon": float(epsilon), "stream": stream}
    return Normalised(*primitives.bind_one(_forward_p, *operands, **static))


batch_norm_in_jax = functools.partial(batch_norm, kernels=False)


def _straight(channels: int) -> Stream:
    own = tuple(range(channels))
    return Stream(own, own, channels)


def combine(outputs, residual, relu: bool, stream: Stream | None = None):
    """A layer's outputs [..., C] added to what the stream [..., width] held before."""
    if stream is None:
        stream = _straight(outputs.shape[-1])
    outputs = widen(outputs, stream.places, stream.width)
    if residual is not None:
        outputs = outputs + widen(residual, stream.residual_places, stream.width)
    return jax.nn.relu(outputs) if relu else outputs


def widen(values, places: Sequence[int], width: int):
    """[..., C] -> [..., width]: channels at increasing places, zeros elsewhere."""
    channels = len(places)
    if channels == width:
        return values
    first, last = int(places[0]), int(places[-1])
    if last - first == channels - 1:
        sides = (first, width - 1 - last)
        return jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [sides])
    # A product with zeros and ones, which JAX differentiates in every mode and to any
    # order; a gather is no faster, and its gradient is a scatter, which is slow.
    matrix = jnp.asarray(np.equal.outer(places, range(width)), values.dtype)
    # Exact only if the factors are not rounded on the way.
    return jnp.dot(values, matrix, precision=jax.lax.Precision.HIGHEST)


def moments(inputs, mask=None):
    """Mean and biased variance [C] of a batch [N, H, W, C], float32 at least.

    Where no example counts in the mask [N], the mean is 0 and the variance 1.
    """
    values = at_least_float32(inputs)
    if mask is None:
        mean = jnp.mean(values, axis=(0, 1, 2))
        square = jnp.mean(values * values, axis=(0, 1, 2))
        return mean, jnp.maximum(square - mean * mean, 0.0)
    chosen = mask != 0
    number = jnp.sum(chosen, dtype=values.dtype)
    pixels = jnp.maximum(number * inputs.shape[1] * inputs.shape[2], 1.0)
    # Selected, not multiplied: what padding holds, even an infinity, stays out.
    kept = jnp.where(chosen[:, None, None, None], values, 0.0)
    mean = jnp.sum(kept, axis=(0, 1, 2)) / pixels
    square = jnp.sum(kept * kept, axis=(0, 1, 2)) / pixels
    variance = jnp.maximum(square - mean * mean, 0.0)
    return mean, jnp.where(number > 0, variance, 1.0)


def normalise(inputs, mean, variance, scale, bias, epsilon):
    """Inputs [..., C] with those moments taken out, scaled and shifted; same type."""
    factor = scale * jax.lax.rsqrt(variance + epsilon)
    outputs = at_least_float32(inputs) * factor + (bias - mean * factor)
    return outputs.astype(inputs.dtype)


def at_least_float32(values):
    """Values in float32, or in float64 if that is what they are."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


# The primitives, with G independent problems on the leading axis of every operand.
# Static parameters: relu, epsilon and stream of `batch_norm`. Data are [G, N, H, W, C],
# outputs [G, N, H, W, width]; a residual, [G, N, H, W, R], where there is one (where
# the stream has places for it), comes last.
#   forward   data, scale, bias, weight, [residual] -> output, mean, variance
#   tangent   data, output, scale, mean, variance, weight, and linear in what follows:
#             tangents of data, scale, bias, [residual] -> those of forward's results
#   backward  the adjoint of tangent: gradients of output, mean, variance, ...
#             -> gradients of data, scale, bias, [residual]
# Only forward and backward have kernels. Each is a function of JAX, too, for one
# problem: that is what other platforms run and what higher derivatives are taken of.
# Arguments are many because a primitive takes flat arrays: nothing can group them.


def _forward(data, scale, bias, weight, *residual, **static):
    return tuple(batch_norm_in_jax(data, scale, bias, weight, *residual, **static))


def _tangent(
    data, output, scale, mean, variance, weight, d_data, d_scale, d_bias, *d_residual,
    relu, epsilon, stream,
):  # fmt: skip
    data, d_data = at_least_float32(data), at_least_float32(d_data)
    pixels = jnp.maximum(jnp.sum(weight) * data.shape[1] * data.shape[2], 1.0)
    real = (weight != 0)[:, None, None, None]
    d_mean = jnp.sum(jnp.where(real, d_data, 0.0), axis=(0, 1, 2)) / pixels
    # Padding has no part in the moments but is normalised by them like the rest.
    centred = jnp.where(real, data - mean, 0.0)
    d_variance = 2.0 * jnp.sum(centred * d_data, axis=(0, 1, 2)) / pixels
    inverse = jax.lax.rsqrt(variance + epsilon)
    factor = scale * inverse
    d_factor = d_scale * inverse - 0.5 * factor * inverse * inverse * d_variance
    d_output = d_data * factor + (data - mean) * d_factor + (d_bias - d_mean * factor)
    residual = d_residual[0] if d_residual else None
    d_output = combine(d_output, residual, False, stream)
    if relu:
        d_output = jnp.where(output > 0, d_output, 0.0)
    return d_output.astype(output.dtype), d_mean, d_variance


def _backward(
    d_output, d_mean, d_variance, data, output, scale, mean, variance, weight,
    *, stream, **static,
):  # fmt: skip
    held = len(stream.residual_places)
    shape = (*output.shape[:-1], held)
    residual = [jax.ShapeDtypeStruct(shape, data.dtype)] if held else []
    transpose = jax.linear_transpose(
        lambda *linear: _tangent(
            data, output, scale, mean, variance, weight, *linear, stream=stream,
            **static,
        ),
        *(data, scale, scale, *residual),
    )  # fmt: skip
    return transpose((d_output, d_mean, d_variance))


def _attributes(*, relu, epsilon, stream):
    return {
        "relu": relu,
        "epsilon": np.float32(epsilon),
        "places": np.array(stream.places, np.int64),
        "residual_places": np.array(stream.residual_places, np.int64),
    }


def _with_channels(operand, channels):
    return operand.update(shape=(*operand.shape[:-1], channels))


def _abstract_backward(
    d_output, d_mean, d_variance, data, output, scale, *_, stream, **static
):
    held = len(stream.residual_places)
    residual = [_with_channels(d_output, held)] if held else []
    return [data, scale, scale, *residual]


_forward_p = primitives.make_primitive(
    "fuprune_batch_norm_forward",
    lambda data, scale, bias, *_, stream, **static: (
        [_with_channels(data, stream.width), scale, bias]
    ),
    _forward,
    _attributes,
    multiple_results=True,
)
# Forward mode has no kernel: training differentiates backwards.
_tangent_p = primitives.make_primitive(
    "fuprune_batch_norm_tangent",
    lambda data, output, scale, mean, variance, *_, **static: [output, mean, variance],
    _tangent,
    None,
    multiple_results=True,
)
_backward_p = primitives.make_primitive(
    "fuprune_batch_norm_backward",
    _abstract_backward,
    _backward,
    _attributes,
    multiple_results=True,
)


def _differentiate_forward(primals, tangents, **static):
    data, scale, bias, weight, *_ = primals
    results = _forward_p.bind(*primals, **static)
    output, mean, variance = results
    d_data, d_scale, d_bias, _, *d_residual = map(ad.instantiate_zeros, tangents)
    return results, _tangent_p.bind(
        data, output, scale, mean, variance, weight, d_data, d_scale, d_bias,
        *d_residual, **static,
    )  # fmt: skip


def _transpose_tangent(cotangents, *operands, **static):
    known, linear = operands[:6], operands[6:]
    cotangents = map(ad.instantiate_zeros, cotangents)
    results = _backward_p.bind(*cotangents, *known, **static)
    gradients = [
        result if ad.is_undefined_primal(operand) else None
        for result, operand in zip(results, linear, strict=True)
    ]
    return [None] * 6 + gradients


ad.primitive_jvps[_forward_p] = _differentiate_forward
ad.primitive_transposes[_tangent_p] = _transpose_tangent
