"""The simulated secure sum: fixed point, modulo 2^64, as the masked one decodes it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.unlearning.activations import ClassActivations
from fuprune.unlearning.secure_sum import SCALE, encode, secure_sum


def test_sum_is_the_plain_sum_to_rounding():
    draws = np.random.default_rng(0)
    uploads = [
        ClassActivations(
            total={"conv1": draws.uniform(-100, 100, (3, 4)).astype(np.float32)},
            num_examples=draws.integers(0, 50, 3).astype(np.float32),
        )
        for _ in range(6)
    ]
    result = secure_sum(uploads)
    plain = jax.tree.map(lambda *leaves: np.sum(np.float64(leaves), axis=0), *uploads)
    assert isinstance(result, ClassActivations)
    # half a step of rounding from each client, then the sum's own float32 rounding
    chex.assert_trees_all_close(
        jax.tree.map(np.float64, result), plain, atol=6 / SCALE / 2, rtol=2e-7
    )
    np.testing.assert_array_equal(result.num_examples, plain.num_examples)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_values_that_would_wrap_are_refused(value):
    uploads = [np.array([0.0, value])] + [np.zeros(2)] * 2
    with pytest.raises(ValueError, match="3 clients can sum values of up to"):
        secure_sum(uploads)


@pytest.mark.parametrize("num_clients", [2, 3, 100])
def test_the_largest_values_let_in_sum_without_wrapping(num_clients):
    limit = (2**63 - 1) // num_clients
    largest = np.nextafter(float(limit), 0)
    values = np.array([largest, -largest]) / SCALE
    words = encode(values, num_clients=num_clients)
    total = np.zeros(2, np.uint64)
    for _ in range(num_clients):
        total = total + words
    exact = num_clients * int(largest)
    assert total.view(np.int64).tolist() == [exact, -exact]


@pytest.mark.parametrize("num_clients", [0, 1])
def test_a_sum_of_one_is_refused_because_it_hides_nothing(num_clients):
    with pytest.raises(ValueError, match="at least 2"):
        secure_sum([jnp.ones(1)] * num_clients)
