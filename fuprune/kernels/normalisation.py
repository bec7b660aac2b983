"""Batch normalisation in training with the residual sum and ReLU that follow it.

XLA on CPU runs these memory-bound steps as many loops, and recomputes a residual stream
from all its earlier terms in each of them. Here the whole is one kernel of two passes
over memory, and so is its gradient. Derivatives of any order and mode compose: what has
no kernel of its own is differentiated in JAX.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


def implementation(name: str) -> Callable[..., Normalised]:
    """Returns `batch_norm` in JAX ("xla") or by the kernels ("onednn").

    Both are called as ``(inputs, scale, bias, mask=None, residual=None, *, relu=False,
    epsilon=1e-5, places=None, residual_places=None, width=None)``. Where the kernels
    are unavailable, one notice is logged and "xla" is returned.
    """
    if name == "xla":
        return batch_norm_in_jax
    if name == "onednn":
        return batch_norm if library.ready() else batch_norm_in_jax
    raise ValueError(
        f"norm implementation {name!r} is unknown; choose one of "
        f"{', '.join(library.IMPLEMENTATIONS)}."
    )


def batch_norm_in_jax(
    inputs, scale, bias, mask=None, residual=None, *, relu=False, epsilon=1e-5,
    places=None, residual_places=None, width=None,
) -> Normalised:  # fmt: skip
    """What `batch_norm` computes, written in JAX."""
    places = _checked(inputs, places, width)
    mean, variance = moments(inputs, mask)
    outputs = normalise(inputs, mean, variance, scale, bias, epsilon)
    outputs = _widen(outputs, places, width)
    if residual is not None:
        residual_places = _checked(residual, residual_places, width)
        outputs = outputs + _widen(residual, residual_places, width)
    return Normalised(jax.nn.relu(outputs) if relu else outputs, mean, variance)


def batch_norm(
    inputs: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    mask: jax.Array | None = None,
    residual: jax.Array | None = None,
    *,
    relu: bool = False,
    epsilon: float = 1e-5,
    places: Sequence[int] | None = None,
    residual_places: Sequence[int] | None = None,
    width: int | None = None,
) -> Normalised:
    """Normalises by the batch's own moments, adds a residual, applies ReLU.

    All of it is computed in float32; the result has the type of the inputs.

    Args:
      inputs: [N, H, W, C].
      scale: [C].
      bias: [C].
      mask: [N], nonzero for the examples that enter the moments; None if all do. If
        none does, the mean is 0 and the variance 1, so that nothing overflows.
      residual: [N, H, W, R], added after the norm, or None.
      relu: whether a ReLU follows.
      epsilon: added to the variance.
      places: where the C channels go among those of the result, increasing; the others
        are those of the residual alone. By default channel i goes to i.
      residual_places: where the R channels of the residual go in the result,
        increasing; by default channel i goes to i.
      width: channels of the result, by default C.
    """
    width = inputs.shape[-1] if width is None else int(width)
    places = _checked(inputs, places, width)
    if residual is not None:
        residual_places = _checked(residual, residual_places, width)
    operands = [inputs, scale, bias, *([] if residual is None else [residual])]
    if (
        inputs.dtype not in library.DTYPES
        or any(operand.dtype != inputs.dtype for operand in operands[3:])
        or not (scale.dtype == bias.dtype == jnp.float32)
        or inputs.ndim != 4
        or inputs.size == 0
    ):
        return batch_norm_in_jax(
            inputs, scale, bias, mask, residual, relu=relu, epsilon=epsilon,
            places=places, residual_places=residual_places, width=width,
        )  # fmt: skip
    # The mask is data, not a parameter: the primitives have no gradient for it.
    weight = jax.lax.stop_gradient(_weight(inputs, mask))
    operands = library.vary_alike(inputs, scale, bias, weight, *operands[3:])
    results = _forward_p.bind(
        *(jax.lax.expand_dims(operand, (0,)) for operand in operands),
        relu=bool(relu),
        epsilon=float(epsilon),
        places=places,
        residual_places=() if residual is None else residual_places,
        width=width,
    )
    return Normalised(*(jax.lax.squeeze(result, (0,)) for result in results))


def _checked(values, places, width) -> tuple[int, ...]:
    """Where each channel goes among `width`, by default to its own number."""
    channels = values.shape[-1]
    width = channels if width is None else width
    places = tuple(range(channels)) if places is None else tuple(map(int, places))
    increasing = all(a < b for a, b in itertools.pairwise((-1, *places, width)))
    if len(places) != channels or not increasing:
        raise ValueError(
            f"places {places} do not fit {channels} channels into {width}; give one "
            f"increasing number below {width} for each channel."
        )
    return places


def _widen(values, places, width):
    """[..., C] -> [..., width], zeros where no channel goes."""
    if width in (None, values.shape[-1]):
        return values
    wide = jnp.zeros((*values.shape[:-1], width), values.dtype)
    return wide.at[..., np.array(places)].set(values)


def _narrow(values, places):
    """[..., width] -> [..., C], the adjoint of `_widen`."""
    return values if values.shape[-1] == len(places) else values[..., np.array(places)]


def _weight(inputs, mask):
    if mask is None:
        return jnp.ones(inputs.shape[0], jnp.float32)
    return (mask != 0).astype(jnp.float32)


def moments(inputs, mask=None):
    """Mean and biased variance [C] of a batch, float32 at least.

    Args:
      inputs: [N, H, W, C].
      mask: [N], or [N, C] where channels differ in it, nonzero for the examples that
        count; None if all do. Where none does, the mean is 0 and the variance 1.
    """
    values = at_least_float32(inputs)
    if mask is None:
        mean = jnp.mean(values, axis=(0, 1, 2))
        square = jnp.mean(values * values, axis=(0, 1, 2))
        return mean, jnp.maximum(square - mean * mean, 0.0)
    chosen = mask != 0
    number = jnp.sum(chosen, axis=0, dtype=values.dtype)
    pixels = jnp.maximum(number * inputs.shape[1] * inputs.shape[2], 1.0)
    # Selected, not multiplied: what padding holds, even an infinity, stays out.
    selected = chosen.reshape(len(chosen), 1, 1, -1)
    kept = jnp.where(selected, values, 0.0)
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
# Static parameters: relu, epsilon, and the width and both places of `batch_norm`. Data
# are [G, N, H, W, C], outputs [G, N, H, W, width]; a residual, [G, N, H, W, R], where
# there is one, comes last.
#   forward   data, scale, bias, weight, [residual] -> output, mean, variance
#   tangent   data, output, scale, mean, variance, weight, and linear in what follows:
#             tangents of data, scale, bias, [residual] -> those of forward's results
#   backward  the adjoint of tangent: gradients of output, mean, variance, ...
#             -> gradients of data, scale, bias, [residual]
# Only forward and backward have kernels. Each is written in JAX, too, for one problem:
# that is what other platforms run and what higher derivatives are taken of.
# Arguments are many because a primitive takes flat arrays: nothing can group them.


def _forward(data, scale, bias, weight, *residual, **static):
    return tuple(batch_norm_in_jax(data, scale, bias, weight, *residual, **static))


class _Static(NamedTuple):
    """The parameters of all three primitives."""

    relu: bool
    epsilon: float
    places: tuple[int, ...]
    residual_places: tuple[int, ...]
    width: int


def _tangent(
    data, output, scale, mean, variance, weight, d_data, d_scale, d_bias, *d_residual,
    **static,
):  # fmt: skip
    given = _Static(**static)
    data, d_data = at_least_float32(data), at_least_float32(d_data)
    pixels = jnp.maximum(jnp.sum(weight) * data.shape[1] * data.shape[2], 1.0)
    kept = jnp.where((weight != 0)[:, None, None, None], d_data, 0.0)
    d_mean = jnp.sum(kept, axis=(0, 1, 2)) / pixels
    # Padding has no part in the moments but is normalised by them like the rest.
    centred = jnp.where((weight != 0)[:, None, None, None], data - mean, 0.0)
    d_variance = 2.0 * jnp.sum(centred * d_data, axis=(0, 1, 2)) / pixels
    inverse = jax.lax.rsqrt(variance + given.epsilon)
    factor = scale * inverse
    d_factor = d_scale * inverse - 0.5 * factor * inverse * inverse * d_variance
    d_output = d_data * factor + (data - mean) * d_factor + (d_bias - d_mean * factor)
    d_output = _widen(d_output, given.places, given.width)
    if d_residual:
        widened = _widen(d_residual[0], given.residual_places, given.width)
        d_output = d_output + widened
    if given.relu:
        d_output = jnp.where(output > 0, d_output, 0.0)
    return d_output.astype(output.dtype), d_mean, d_variance


def _backward(
    d_output, d_mean, d_variance, data, output, scale, mean, variance, weight,
    *, has_residual, **static,
):  # fmt: skip
    given, dtype = _Static(**static), data.dtype
    data, d_output = at_least_float32(data), at_least_float32(d_output)
    pixels = jnp.maximum(jnp.sum(weight) * data.shape[1] * data.shape[2], 1.0)
    if given.relu:
        d_output = jnp.where(output > 0, d_output, 0.0)
    d_residual = [_narrow(d_output, given.residual_places)] if has_residual else []
    d_output = _narrow(d_output, given.places)
    inverse = jax.lax.rsqrt(variance + given.epsilon)
    factor = scale * inverse
    d_bias = jnp.sum(d_output, axis=(0, 1, 2))
    product = jnp.sum(d_output * (data - mean), axis=(0, 1, 2))
    d_variance = d_variance - 0.5 * inverse * inverse * factor * product
    d_mean = d_mean - factor * d_bias
    # Each real pixel moved both moments, and through them every output.
    through_moments = (d_mean + 2.0 * (data - mean) * d_variance) / pixels
    d_data = d_output * factor + jnp.where(
        (weight != 0)[:, None, None, None], through_moments, 0.0
    )
    d_scale = product * inverse
    d_residual = [values.astype(dtype) for values in d_residual]
    return (d_data.astype(dtype), d_scale, d_bias, *d_residual)


def _attributes(*, relu, epsilon, places, residual_places, **_):
    return {
        "relu": relu,
        "epsilon": np.float32(epsilon),
        "places": np.array(places, np.int64),
        "residual_places": np.array(residual_places, np.int64),
    }


def _make_primitive(
    name: str, function: Callable, like: tuple[int, ...], attributes=_attributes
) -> Any:
    """A primitive that computes ``vmap(function)``, on CPU by a kernel.

    Results have the shapes of the operands that `like` counts, the first of `forward`
    widened; a gradient of the residual, which `has_residual` asks for, comes last.
    """

    def in_jax(*operands, **static):
        return jax.vmap(functools.partial(function, **static))(*operands)

    def abstract(*operands, width, residual_places, has_residual=False, **_):
        def with_channels(operand, channels):
            return operand.update(shape=(*operand.shape[:-1], channels))

        results = [operands[i] for i in like]
        if function is _forward:
            results[0] = with_channels(results[0], width)
        if has_residual:
            results.append(with_channels(operands[0], len(residual_places)))
        return results

    primitive = primitives.make_primitive(
        name, abstract, in_jax, attributes, multiple_results=True
    )

    # The kernel's results, with the tangents of the same function in JAX: enough for
    # derivatives of any order.
    def differentiate(primals, tangents, **static):
        results = primitive.bind(*primals, **static)
        _, tangents = jax.jvp(
            functools.partial(in_jax, **static),
            primals,
            tuple(map(ad.instantiate_zeros, tangents)),
        )
        return results, tangents

    ad.primitive_jvps[primitive] = differentiate
    return primitive


_forward_p = _make_primitive("fuprune_batch_norm_forward", _forward, (0, 1, 1))
# Forward mode has no kernel: training differentiates backwards.
_tangent_p = _make_primitive(
    "fuprune_batch_norm_tangent", _tangent, (1, 2, 2), attributes=None
)
_backward_p = _make_primitive("fuprune_batch_norm_backward", _backward, (3, 5, 5))


def _differentiate_forward(primals, tangents, **static):
    data, scale, bias, weight, *residual = primals
    results = _forward_p.bind(*primals, **static)
    output, mean, variance = results
    d_data, d_scale, d_bias, _, *d_residual = map(ad.instantiate_zeros, tangents)
    return results, _tangent_p.bind(
        data, output, scale, mean, variance, weight, d_data, d_scale, d_bias,
        *d_residual, **static,
    )  # fmt: skip


def _transpose_tangent(
    cotangents, data, output, scale, mean, variance, weight, *linear, **static
):
    results = _backward_p.bind(
        *map(ad.instantiate_zeros, cotangents),
        data,
        output,
        scale,
        mean,
        variance,
        weight,
        has_residual=len(linear) == 4,
        **static,
    )
    gradients = [
        result if ad.is_undefined_primal(operand) else None
        for result, operand in zip(results, linear, strict=True)
    ]
    return [None] * 6 + gradients


ad.primitive_jvps[_forward_p] = _differentiate_forward
ad.primitive_transposes[_tangent_p] = _transpose_tangent
