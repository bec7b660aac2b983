import functools
import logging
import zlib

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from fuprune.kernels import convolution, library
from tests import reference_kernels

NUMBERS = ("NHWC", "HWIO", "NHWC")
# Not jax.lax.Precision.HIGHEST's job on CPU: both sides are plain float32 sums, in
# different orders.
TOLERANCE = 1e-5

needs_onednn = pytest.mark.skipif(
    not library.available(), reason=str(library.why_not())
)


def random(name, *shape):
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return jnp.asarray(generator.standard_normal(shape, np.float32))


def assert_close(actual, expected, tolerance=TOLERANCE):
    """Compares trees relative to each leaf's largest entry, zeros to 1e-6."""

    def compare(a, b):
        scale = float(jnp.max(jnp.abs(b))) or 1e-6
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)

    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    jax.tree.map(compare, actual, expected)


def both(function, *arguments):
    """``function(convolution)`` with oneDNN and with XLA, on the same arguments."""
    return tuple(
        jax.jit(function(convolution.implementation(name)))(*arguments)
        for name in ("onednn", "xla")
    )


def layer(convolve, strides=(1, 1), padding="SAME"):
    def apply(data, kernel):
        return convolve(data, kernel, strides, padding, dimension_numbers=NUMBERS)

    return apply


def curved(convolve, strides=(1, 1), padding="SAME"):
    """A scalar whose second derivatives are all there."""
    apply = layer(convolve, strides, padding)
    return lambda data, kernel: jnp.mean(jnp.sin(apply(data, kernel)))


def primitive_names(function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments))


SMALL = (random("data", 3, 8, 8, 3), random("kernel", 3, 3, 3, 5))
pads = st.integers(0, 4)


@needs_onednn
@hypothesis.settings(max_examples=15)
@hypothesis.given(
    batch=st.integers(1, 4),
    size=st.tuples(st.integers(5, 33), st.integers(5, 33)),
    channels=st.sampled_from([1, 3, 5, 16, 17, 32, 40]),
    features=st.sampled_from([1, 3, 5, 16, 17, 32, 40]),
    kernel=st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2, 3, 5])),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.tuples(pads, pads), st.tuples(pads, pads)),
)
def test_values_and_gradients_equal_the_definition(
    batch, size, channels, features, kernel, strides, padding
):
    data = random("data", batch, *size, channels)
    weights = random("kernel", *kernel, channels, features)
    cotangent = random(
        "cotangent", batch, *output_size(size, kernel, strides, padding), features
    )

    @jax.jit
    def value_and_pullback(data, weights, cotangent):
        convolve = layer(convolution.implementation("onednn"), strides, padding)
        output, pullback = jax.vjp(convolve, data, weights)
        return output, *pullback(cotangent)

    expected = (
        reference_kernels.convolve(data, weights, strides, padding),
        *reference_kernels.convolve_pullback(
            data, weights, strides, padding, cotangent
        ),
    )
    assert_close(
        value_and_pullback(data, weights, cotangent),
        tuple(array.astype(np.float32) for array in expected),
    )


def output_size(size, kernel, strides, padding):
    return [
        (s + sum(p) - k) // stride + 1
        for s, k, stride, p in zip(size, kernel, strides, padding, strict=True)
    ]


@needs_onednn
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    ("size", "kernel", "channels", "strides", "padding"),
    [
        ((2, 2), (3, 3), (128, 256), (1, 1), ((1, 1), (1, 1))),
        ((4, 4), (3, 3), (256, 256), (1, 1), ((1, 1), (1, 1))),
        ((8, 8), (3, 3), (128, 128), (1, 1), ((1, 1), (1, 1))),
        ((8, 7), (3, 3), (256, 128), (2, 2), ((1, 1), (0, 1))),
        ((1, 1), (3, 3), (128, 128), (1, 1), ((1, 1), (1, 1))),  # one tap of nine
        ((3, 1), (5, 4), (128, 130), (1, 2), ((3, 2), (1, 4))),  # taps with no pixel
        ((5, 3), (1, 1), (129, 128), (2, 1), ((0, 0), (0, 0))),
    ],
)
def test_few_pixels_with_many_channels_equal_xla(
    images, size, kernel, channels, strides, padding
):
    """These go by matrix products, one per place in the kernel."""
    data = random("data", images, *size, channels[0])
    weights = random("weights", *kernel, *channels)

    def all_three(convolve):
        def run(data, weights):
            output, pullback = jax.vjp(layer(convolve, strides, padding), data, weights)
            # Not a function of the output, whose rounding it would multiply.
            return output, pullback(random("cotangent", *output.shape))

        return run

    assert_close(*both(all_three, data, weights))
    # Several problems in one call, as under vmap over clients with their own kernels.
    several = random("more", 2, *data.shape), random("kernels", 2, *weights.shape)
    assert_close(*both(lambda c: jax.vmap(all_three(c)), *several))


@pytest.mark.parametrize(
    ("data_shape", "kernel_shape", "options"),
    [
        ((2, 8, 8, 4), (3, 3, 4, 4), {"rhs_dilation": (2, 2)}),
        (
            (2, 8, 8, 4),
            (3, 3, 4, 4),
            {"lhs_dilation": (2, 2), "padding": ((1, 1), (1, 1))},
        ),
        ((2, 8, 8, 4), (3, 3, 2, 4), {"feature_group_count": 2}),
        ((2, 8, 8, 4), (3, 3, 4, 4), {"padding": ((-1, 0), (0, 0))}),
        ((2, 4, 8, 8), (4, 4, 3, 3), {"dimension_numbers": ("NCHW", "OIHW", "NCHW")}),
        ((2, 8, 4), (3, 4, 4), {"dimension_numbers": ("NHC", "HIO", "NHC")}),
        ((0, 8, 8, 4), (3, 3, 4, 4), {}),
        ((2, 8, 8, 0), (3, 3, 0, 4), {}),
        ((2, 8, 8, 4), (3, 3, 4, 0), {}),
        ((2, 2, 2, 4), (3, 3, 4, 4), {"padding": "VALID"}),
    ],
)
def test_what_the_binding_does_not_cover_goes_to_xla(data_shape, kernel_shape, options):
    data, weights = random("data", *data_shape), random("kernel", *kernel_shape)
    options = {"dimension_numbers": NUMBERS, "padding": "SAME"} | options
    strides = (1,) * (len(data_shape) - 2)
    expected = jax.lax.conv_general_dilated(data, weights, strides, **options)
    run = functools.partial(convolution.convolve, window_strides=strides, **options)
    assert "fuprune" not in primitive_names(run, data, weights)
    actual = run(data, weights)
    np.testing.assert_array_equal(actual, expected)


def test_missing_library_falls_back_to_xla_with_one_notice(without_onednn, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert convolution.implementation("onednn") is jax.lax.conv_general_dilated
    notices = [r for r in caplog.records if "oneDNN" in r.getMessage()]
    assert len(notices) == 1
    assert "there is no oneDNN" in notices[0].getMessage()
    assert not library.available()
    assert library.why_not() == "there is no oneDNN"
