"""The kernels on bfloat16: what float32 computes from the same values, rounded once."""

import functools
import os
import subprocess
import sys

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from fuprune.kernels import convolution, library, normalisation
from fuprune.models import zoo
from tests import reference_kernels
from tests.kernels.test_convolution import SMALL, layer, random
from tests.kernels.test_normalisation import operands, scattered
from tests.models import drawing

pytestmark = pytest.mark.skipif(not library.available(), reason=str(library.why_not()))
# Half of the distance between two bfloat16, and what float32 sums lose on the way.
HALF_A_STEP = 2.0**-8 * 1.01


def half(tree):
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def assert_rounded(actual, expected, lost=1e-5):
    """Each value is the bfloat16 nearest to a float64 one, or to one close to it.

    Args:
      actual: bfloat16.
      expected: float64, not rounded.
      lost: of the largest value, by the sums in float32.
    """
    assert actual.dtype == jnp.bfloat16
    expected = np.asarray(expected, np.float64)
    error = np.abs(np.asarray(actual, np.float64) - expected)
    allowed = HALF_A_STEP * np.abs(expected) + lost * np.max(np.abs(expected))
    np.testing.assert_array_less(error, allowed)


@pytest.mark.parametrize(
    ("examples", "size", "channels", "features", "kernel", "strides"),
    [
        (3, 32, 3, 16, 3, (1, 1)),
        (3, 16, 17, 5, 3, (2, 2)),
        (2, 9, 16, 16, 1, (2, 1)),
        (4, 2, 256, 256, 3, (1, 1)),  # by matrix products in float32
        (4, 4, 256, 128, 3, (1, 1)),  # the gradient of the kernel, in bfloat16
    ],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_convolution_and_its_gradients_are_rounded_once(
    examples, size, channels, features, kernel, strides, mixed
):
    data = half(random("data", examples, size, size, channels))
    weights = half(random("kernel", kernel, kernel, channels, features))
    if mixed:  # the same values, in float32
        weights = weights.astype(jnp.float32)
    padding = ((1, 1), (1, 1)) if kernel == 3 else ((0, 0), (0, 0))

    apply = layer(convolution.convolve, strides, padding)
    assert "fuprune_conv_forward" in str(jax.make_jaxpr(apply)(data, weights))
    output, pull_back = jax.vjp(apply, data, weights)
    assert_rounded(output, reference_kernels.convolve(data, weights, strides, padding))
    cotangent = half(random("cotangent", *output.shape))
    gradients = jax.jit(pull_back)(cotangent)
    expected = reference_kernels.convolve_pullback(
        data, weights, strides, padding, cotangent
    )
    assert_rounded(gradients[0], expected[0])
    if mixed:
        assert gradients[1].dtype == jnp.float32
        largest = np.max(np.abs(expected[1]))
        np.testing.assert_allclose(gradients[1], expected[1], atol=1e-5 * largest)
    else:
        assert_rounded(gradients[1], expected[1])


def test_values_pass_unchanged_and_ties_go_to_the_even():
    special = jnp.array([0.0, -0.0, 1.0, 3.0e38, 1e-30, jnp.inf, -jnp.inf, jnp.nan])
    # Of two channels, because processors multiply pairs: with an odd number, the last
    # channel's partner is the next pixel times zero, and infinity times zero is NaN.
    data = jnp.stack([half(special), jnp.zeros(8, jnp.bfloat16)], -1)[None, None]
    first = half(jnp.array([1.0, 0.0])).reshape(1, 1, 2, 1)
    apply = layer(convolution.convolve, padding="VALID")
    same = apply(data, first)
    np.testing.assert_array_equal(
        np.asarray(same[..., 0], np.float32), np.asarray(data[..., 0], np.float32)
    )
    finite = half(special[:5]).reshape(1, 1, 5, 1)
    one = jnp.ones((1, 1, 1, 1), jnp.bfloat16)
    same = apply(finite, one)
    np.testing.assert_array_equal(
        np.asarray(same, np.float32), np.asarray(finite, np.float32)
    )
    # 1 + 2^-8 lies between 1 and 1 + 2^-7, 1 + 3 * 2^-8 between that and 1 + 2^-6.
    pairs = half(jnp.array([[1.0, 2.0**-8], [1 + 2.0**-7, 2.0**-8], [1.0, 2.0**-7]]))
    both = jnp.ones((1, 1, 2, 1), jnp.bfloat16)
    sums = apply(pairs.reshape(1, 1, 3, 2), both)
    expected = [1.0, 1 + 2.0**-6, 1 + 2.0**-7]
    np.testing.assert_array_equal(np.asarray(sums, np.float32).ravel(), expected)


def norm_in_float64(data, scale, bias, residual, mask, stream):
    """The definition, with `width` channels in the result."""
    data, scale, bias, residual = (
        np.asarray(x, np.float64) for x in (data, scale, bias, residual)
    )
    kept = data[np.asarray(mask) != 0]
    mean, variance = kept.mean(axis=(0, 1, 2)), kept.var(axis=(0, 1, 2))
    values = (data - mean) / np.sqrt(variance + 1e-5) * scale + bias
    result = np.zeros((*data.shape[:-1], stream.width))
    result[..., list(stream.places)] += values
    result[..., list(stream.residual_places)] += residual
    return np.maximum(result, 0), mean, variance


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 9), st.integers(1, 9)
)
def test_a_norm_is_rounded_once_wherever_its_channels_go(channels, held, more, size):
    stream = scattered(channels, held, max(channels, held) + more)
    data, scale, bias, residual = operands(
        (3, size, 4, channels), residual=True, held=held
    )
    data, residual, mask = half(data), half(residual), jnp.array([1.0, 0.0, 2.0])
    given = (data, scale, bias, mask, residual)
    actual = normalisation.batch_norm(*given, relu=True, stream=stream)
    assert "fuprune" in str(
        jax.make_jaxpr(lambda *x: normalisation.batch_norm(*x, stream=stream))(*given)
    )
    outputs, mean, variance = norm_in_float64(data, scale, bias, residual, mask, stream)
    assert_rounded(actual.outputs, outputs, lost=1e-4)
    assert actual.mean.dtype == actual.variance.dtype == jnp.float32
    np.testing.assert_allclose(actual.mean, mean, atol=1e-5)
    np.testing.assert_allclose(actual.variance, variance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [5, 16, 300])  # in blocks of a part of an example
@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_of_a_norm_is_that_of_the_widened_values(channels, relu):
    stream = scattered(channels, channels + 1, channels + 4)
    data, scale, bias, residual = operands(
        (3, 12, 12, channels), residual=True, held=channels + 1
    )
    data, residual, mask = half(data), half(residual), jnp.array([1.0, 0.0, 2.0])
    shape = (*data.shape[:-1], stream.width)
    cotangent = half(random("cotangent", *shape))

    def pull_back(norm, data, residual):
        def apply(data, scale, bias, residual):
            return norm(
                data, scale, bias, mask, residual, relu=relu, stream=stream
            ).outputs

        outputs, back = jax.vjp(apply, data, scale, bias, residual)
        return outputs, back(cotangent.astype(outputs.dtype))

    outputs, actual = jax.jit(pull_back, static_argnums=0)(
        normalisation.batch_norm, data, residual
    )
    wide = data.astype(jnp.float32), residual.astype(jnp.float32)
    expected_outputs, expected = pull_back(normalisation.batch_norm_in_jax, *wide)
    assert_rounded(outputs, expected_outputs)
    for i in (0, 3):
        assert_rounded(actual[i], expected[i], lost=1e-4)
    for i in (1, 2):
        assert actual[i].dtype == jnp.float32
        scale_of = np.max(np.abs(expected[i]))
        np.testing.assert_allclose(actual[i], expected[i], atol=1e-4 * scale_of)


def test_a_network_trains_as_it_does_with_xla():
    """Logits, gradients and statistics are as near to float32 as XLA's bfloat16 is."""
    labels = jnp.arange(8) % 3
    images = random("images", 8, 32, 32, 3)
    model = zoo.create("resnet8", num_classes=3)
    variables = jax.jit(model.init)(jax.random.key(0), images)

    # XLA rounds what the program rounds, also between operations that it joins.
    @functools.partial(
        jax.jit,
        static_argnames="model",
        compiler_options={"xla_allow_excess_precision": False},
    )
    def step(model):
        def loss(params):
            logits, state = drawing.apply_in_training(
                model, variables, params, images, None
            )
            rows = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
            return -jnp.mean(rows), (logits, state)

        return jax.value_and_grad(loss, has_aux=True)(variables["params"])

    def distance(a, b):
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        squares = [(jnp.sum((x - y) ** 2), jnp.sum(y**2)) for x, y in pairs]
        return float(np.sqrt(sum(x for x, _ in squares) / sum(y for _, y in squares)))

    exact = step(model)
    ours, theirs = (
        step(model.clone(dtype=jnp.bfloat16, conv=conv)) for conv in ("onednn", "xla")
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(ours, exact)
    assert 0 < distance(ours, exact) < 1.2 * distance(theirs, exact)


def test_a_processor_without_bfloat16_computes_the_same():
    """oneDNN is told to leave new instructions alone, in a process of its own."""
    program = (
        "import numpy as np; from fuprune.kernels import convolution, library\n"
        "from tests.kernels.test_convolution import SMALL, layer\n"
        "output = layer(convolution.convolve)(*(x.astype('bfloat16') for x in SMALL))\n"
        "assert not library.multiplies_bfloat16()\n"
        "print(float(np.abs(np.asarray(output, np.float64)).sum()))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    expected = reference_kernels.convolve(*half(SMALL), (1, 1), ((1, 1), (1, 1)))
    assert float(output) == pytest.approx(np.abs(expected).sum(), rel=1e-3)
