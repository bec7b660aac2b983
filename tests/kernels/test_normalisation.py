import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.kernels import library, normalisation
from tests.kernels.test_convolution import assert_close, needs_onednn, random


def operands(shape, *, residual, held=None):
    scale, bias = random("scale", shape[-1]), random("bias", shape[-1])
    held = shape[-1] if held is None else held
    rest = (random("residual", *shape[:-1], held),) if residual else ()
    return random("data", *shape) + 0.5, scale, bias, *rest


def loss(batch_norm, *, mask=None, relu=True, stream=None):
    """A scalar that depends on all three results, curved in each."""

    def apply(data, scale, bias, *residual):
        result = batch_norm(
            data, scale, bias, mask, *residual, relu=relu, stream=stream
        )
        return (
            jnp.mean(jnp.sin(result.outputs))
            + jnp.sum(result.mean**2)
            + jnp.sum(jnp.cos(result.variance))
        )

    return apply


def both(transform, arguments, **options):
    return tuple(
        jax.jit(transform(loss(function, **options)))(*arguments)
        for function in (normalisation.batch_norm, normalisation.batch_norm_in_jax)
    )


MASK = jnp.array([1.0, 0.0, 2.0])


def scattered(channels, held, width):
    """Places for so many channels of the data and of the residual."""
    draw = np.random.default_rng(width).choice
    places = tuple(np.sort(draw(width, channels, replace=False)).tolist())
    residual_places = tuple(np.sort(draw(width, held, replace=False)).tolist())
    return normalisation.Stream(places, residual_places, width)


@needs_onednn
@pytest.mark.parametrize("channels", [1, 5, 16, 17, 40, 509])
def test_values_equal_the_definition(channels):
    data, scale, bias, residual = operands((3, 5, 4, channels), residual=True)
    actual = jax.jit(normalisation.batch_norm, static_argnames="relu")(
        data, scale, bias, MASK, residual, relu=True
    )
    kept = np.asarray(data, np.float64)[[0, 2]]
    mean, variance = kept.mean((0, 1, 2)), kept.var((0, 1, 2))
    outputs = (data - mean) / np.sqrt(variance + 1e-5) * scale + bias + residual
    expected = normalisation.Normalised(np.maximum(outputs, 0), mean, variance)
    assert_close(actual, jax.tree.map(lambda x: x.astype(np.float32), expected))


@needs_onednn
@pytest.mark.parametrize(
    ("channels", "held", "width"),
    [(1, 1, 2), (5, 9, 11), (8, 16, 16), (16, 30, 32), (17, 3, 40), (20, 64, 64)],
)
def test_channels_go_to_their_places(channels, held, width):
    arguments = operands((3, 5, 4, channels), residual=True, held=held)
    data, scale, bias, residual = arguments
    stream = scattered(channels, held, width)
    actual = normalisation.batch_norm(data, scale, bias, MASK, residual, stream=stream)
    plain = normalisation.batch_norm(data, scale, bias, MASK)
    outputs = np.zeros((3, 5, 4, width), np.float32)
    outputs[..., list(stream.places)] += plain.outputs
    outputs[..., list(stream.residual_places)] += residual
    assert_close(actual, plain._replace(outputs=outputs), tolerance=1e-6)
    places = tuple(range(4))
    assert_close(
        *both(
            lambda f: jax.value_and_grad(f, places), arguments, mask=MASK, stream=stream
        )
    )


@needs_onednn
@pytest.mark.parametrize("relu", [True, False])
def test_channels_are_moved_in_blocks_and_without_a_residual(relu):
    """More pixels than a block has, and not a whole number of blocks."""
    arguments = operands((3, 19, 17, 12), residual=False)
    assert_close(
        *both(
            lambda f: jax.value_and_grad(f, (0, 1, 2)),
            arguments,
            mask=MASK,
            relu=relu,
            stream=scattered(12, 0, 33),
        )
    )


@needs_onednn
def test_padding_does_not_reach_the_moments():
    data, scale, bias = operands((3, 4, 4, 5), residual=False)
    spoilt = data.at[1].set(jnp.inf)
    one = normalisation.batch_norm(data, scale, bias, MASK)
    other = normalisation.batch_norm(spoilt, scale, bias, MASK)
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.variance, other.variance)
    np.testing.assert_array_equal(one.outputs[0], other.outputs[0])


@needs_onednn
def test_nothing_but_padding_stays_finite():
    data, scale, bias = operands((3, 4, 4, 5), residual=False)
    nothing = jnp.zeros(3)
    for function in (normalisation.batch_norm, normalisation.batch_norm_in_jax):
        result = function(data, scale, bias, nothing)
        np.testing.assert_array_equal(result.mean, np.zeros(5))
        np.testing.assert_array_equal(result.variance, np.ones(5))
        gradients = jax.grad(loss(function, mask=nothing), (0, 1, 2))(data, scale, bias)
        chex.assert_tree_all_finite((result, gradients))


@needs_onednn
def test_nan_is_not_hidden_by_the_relu():
    data, scale, bias = operands((3, 4, 4, 5), residual=False)
    result = normalisation.batch_norm(
        data.at[0, 0, 0, 2].set(jnp.nan), scale, bias, relu=True
    )
    assert jnp.isnan(result.outputs[..., 2]).all()
    assert jnp.isfinite(result.outputs[..., 3]).all()


@needs_onednn
def test_number_of_threads_does_not_change_one_bit():
    data, scale, bias, residual = operands((16, 32, 32, 17), residual=True)
    gradient = jax.jit(jax.value_and_grad(loss(normalisation.batch_norm), (0, 1, 2, 3)))
    results = []
    try:
        for threads in (1, 2, 3):
            library.set_threads(threads)
            results.append(jax.device_get(gradient(data, scale, bias, residual)))
    finally:
        library.set_threads(1)
    chex.assert_trees_all_equal(*results)
