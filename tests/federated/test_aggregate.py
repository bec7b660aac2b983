import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune.federated.aggregate import (
    clipped_mean,
    coordinate_median,
    trimmed_mean,
    weighted_mean,
)
from tests import reference_aggregate as reference

CLIENTS = 7  # one shape, so that every drawn example reuses one compilation
# XLA on CPU takes numbers below 1e-38 for zero, when it sorts them too.
FLOATS = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
RULES = {
    "mean": (jax.jit(weighted_mean), reference.weighted_mean),
    "clipped_mean": (
        jax.jit(clipped_mean(2.5)),
        lambda u, w: reference.clipped_mean(u, w, 2.5),
    ),
    "median": (jax.jit(coordinate_median), reference.coordinate_median),
    "trimmed_mean": (
        jax.jit(trimmed_mean(0.29)),
        lambda u, w: reference.trimmed_mean(u, w, 29),
    ),
}


@st.composite
def cohorts(draw):
    """Updates stacked over clients, and weights of which some are zero."""
    size = CLIENTS * 8
    values = np.array(draw(st.lists(FLOATS, min_size=size, max_size=size)), np.float32)
    values = values.reshape(CLIENTS, 8)
    stacked = {"kernel": values[:, :6].reshape(CLIENTS, 2, 3), "bias": values[:, 6:]}
    weights = draw(
        st.lists(st.sampled_from([0, 0, 1, 3, 40]), min_size=CLIENTS, max_size=CLIENTS)
    )
    return stacked, np.array(weights, np.float32)


def unstack(stacked):
    return [{k: v[i] for k, v in stacked.items()} for i in range(CLIENTS)]


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60)
@given(cohort=cohorts())
def test_rule_equals_its_numpy_twin(rule, cohort):
    stacked, weights = cohort
    ours, twin = RULES[rule]
    expected = twin(unstack(stacked), weights)
    chex.assert_trees_all_close(
        ours(stacked, weights),
        {k: np.float32(v) for k, v in expected.items()},
        rtol=1e-5,
        atol=2e-4,  # seven float32 values of up to 1e3 that may cancel
    )


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=30)
@given(cohort=cohorts(), poison=st.sampled_from([np.nan, np.inf, -np.inf, 3e38]))
def test_clients_of_weight_zero_change_nothing_whatever_they_sent(rule, cohort, poison):
    stacked, weights = cohort
    dead = weights == 0
    poisoned = {
        k: np.where(dead.reshape((-1,) + (1,) * (v.ndim - 1)), np.float32(poison), v)
        for k, v in stacked.items()
    }
    ours, _ = RULES[rule]
    chex.assert_trees_all_equal(ours(poisoned, weights), ours(stacked, weights))


@pytest.mark.parametrize("rule", RULES)
def test_all_zero_weights_give_zeros(rule):
    stacked = {"kernel": np.full((CLIENTS, 2, 3), np.nan, np.float32)}
    stacked["bias"] = np.ones((CLIENTS, 2), np.float32)
    ours, _ = RULES[rule]
    result = ours(stacked, np.zeros(CLIENTS, np.float32))
    chex.assert_trees_all_equal(
        result, {"kernel": np.zeros((2, 3)), "bias": np.zeros(2)}
    )


@pytest.mark.parametrize("percent", [0, 20, 29, 30, 49])
def test_trimmed_mean_cuts_the_whole_number_below_the_share(percent):
    values = np.arange(100, dtype=np.float32)[:, None] ** 2
    rule = trimmed_mean(percent / 100)
    trimmed = jax.jit(lambda weights: rule(values, weights))
    for size in (1, 2, 3, 5, 10, 11, 50, 100):
        cut = percent * size // 100
        mean = trimmed(np.float32(np.arange(100) < size))
        np.testing.assert_allclose(mean, values[cut : size - cut].mean(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "value", "reason"),
    [
        *((trimmed_mean, t, "must lie in") for t in (-0.1, 0.5, 1.0, float("nan"))),
        (clipped_mean, 0.0, "clip_norm is 0.0, but a norm must be positive"),
    ],
)
def test_rules_that_make_no_sense_are_refused(make, value, reason):
    with pytest.raises(ValueError, match=reason):
        make(value)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("rule", RULES)
def test_rules_keep_the_dtype_of_a_leaf(rule, dtype):
    stacked = {"kernel": jnp.ones((CLIENTS, 2, 3), dtype)}
    result = RULES[rule][0](stacked, np.ones(CLIENTS, np.float32))
    assert result["kernel"].dtype == dtype


def test_mean_of_half_precision_is_summed_in_single():
    stacked = jnp.full((1001, 1), 60000.0, jnp.float16)
    assert float(weighted_mean(stacked, jnp.ones(1001))[0]) == 60000.0
