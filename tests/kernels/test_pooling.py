"""The pool by its kernel is the pool in JAX, bit for bit, derivatives included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.kernels import library, pooling
from tests.kernels.test_convolution import random

pytestmark = pytest.mark.skipif(not library.available(), reason=str(library.why_not()))
# Sides that are even, odd, and too short for a window.
SHAPES = [(3, 8, 8, 16), (2, 6, 4, 5), (1, 5, 7, 3), (2, 2, 2, 33), (2, 1, 6, 4)]


def values_with_ties(dtype, *shape):
    """Few different values, so that windows have several maxima."""
    return jnp.round(2 * random("values", *shape)).astype(dtype)


def assert_same_bits(actual, expected):
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(
        np.asarray(actual, np.float32), np.asarray(expected, np.float32)
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_maxima_and_gradients_are_those_of_jax(shape, dtype):
    values = values_with_ties(dtype, *shape)
    program = str(jax.make_jaxpr(pooling.max_pool)(values))
    assert ("fuprune_max_pool" in program) == (min(shape[1:3]) > 1)
    for run in (lambda f: f, jax.jit):
        actual, pull_back = jax.vjp(run(pooling.max_pool), values)
        expected, their_pull_back = jax.vjp(pooling.max_pool_in_jax, values)
        assert_same_bits(actual, expected)
        gradient = random("gradient", *actual.shape).astype(dtype)
        assert_same_bits(pull_back(gradient)[0], their_pull_back(gradient)[0])


def test_infinities_and_nan_are_selected_as_jax_does():
    special = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.0, -0.0, 1.0])
    draw = np.random.default_rng(0).integers(0, len(special), (4, 6, 6, 8))
    values = special[draw]
    assert_same_bits(jax.jit(pooling.max_pool)(values), pooling.max_pool_in_jax(values))

    gradient = random("gradient", 4, 3, 3, 8)
    ours, theirs = (
        jax.vjp(pool, values)[1](gradient)[0]
        for pool in (pooling.max_pool, pooling.max_pool_in_jax)
    )
    assert_same_bits(ours, theirs)
