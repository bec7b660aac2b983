import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune.federated import aggregate
from fuprune.federated.aggregate import (
    Aggregation,
    check_statistics,
    clipped_mean,
    coordinate_median,
    is_finite,
    trimmed_mean,
    update_norms,
    weighted_mean,
)
from tests import reference_aggregate as reference

CLIENTS = 7  # one shape, so that every drawn example reuses one compilation
# XLA on CPU takes numbers below 1e-38 for zero, when it sorts them too.
FLOATS = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
RULES = {
    "mean": (jax.jit(weighted_mean), reference.weighted_mean),
    "clipped_mean": (
        jax.jit(lambda u, w: clipped_mean(u, w, clip_norm=2.5)),
        lambda u, w: reference.clipped_mean(u, w, 2.5),
    ),
    "median": (jax.jit(coordinate_median), reference.coordinate_median),
    "trimmed_mean": (
        jax.jit(lambda u, w: trimmed_mean(u, w, trim=0.29)),
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


@settings(max_examples=60)
@given(cohort=cohorts())
def test_median_of_an_odd_number_is_one_of_the_values_sent(cohort):
    stacked, weights = cohort
    weights[0] = 1 if np.sum(weights[1:] > 0) % 2 == 0 else 0
    median = np.asarray(RULES["median"][0](stacked, weights)["kernel"])
    live = stacked["kernel"][weights > 0]
    np.testing.assert_array_equal(median, np.median(live, axis=0))


@settings(max_examples=40)
@given(cohort=cohorts(), order=st.permutations(range(CLIENTS)))
def test_robust_rules_do_not_depend_on_the_order_of_clients(cohort, order):
    stacked, weights = cohort
    weights = (weights > 0).astype(np.float32)
    order = np.array(order)
    for rule in ("median", "trimmed_mean"):
        ours, _ = RULES[rule]
        chex.assert_trees_all_equal(
            ours(jax.tree.map(lambda leaf: leaf[order], stacked), weights[order]),
            ours(stacked, weights),
        )


@settings(max_examples=40)
@given(cohort=cohorts())
def test_clipped_mean_is_never_longer_than_the_clip(cohort):
    mean = RULES["clipped_mean"][0](*cohort)
    assert reference.norm(jax.tree.map(np.asarray, mean)) <= 2.5 * (1 + 1e-5)


@pytest.mark.parametrize("percent", [0, 20, 29, 30, 49])
def test_trimmed_mean_cuts_the_whole_number_below_the_share(percent):
    values = np.arange(100, dtype=np.float32)[:, None] ** 2
    trimmed = jax.jit(lambda weights: trimmed_mean(values, weights, trim=percent / 100))
    for size in (1, 2, 3, 5, 10, 11, 50, 100):
        cut = percent * size // 100
        mean = trimmed(np.float32(np.arange(100) < size))
        np.testing.assert_allclose(mean, values[cut : size - cut].mean(0), rtol=1e-6)


@pytest.mark.parametrize("trim", [-0.1, 0.5, 1.0, float("nan")])
def test_trim_outside_its_range_is_refused(trim):
    with pytest.raises(ValueError, match="must lie in"):
        aggregate.check_aggregation(Aggregation("trimmed_mean", trim=trim))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("rule", RULES)
def test_rules_keep_the_dtype_of_a_leaf(rule, dtype):
    stacked = {"kernel": jnp.ones((CLIENTS, 2, 3), dtype)}
    result = RULES[rule][0](stacked, np.ones(CLIENTS, np.float32))
    assert result["kernel"].dtype == dtype


def test_mean_of_half_precision_is_summed_in_single():
    stacked = jnp.full((1001, 1), 60000.0, jnp.float16)
    assert float(weighted_mean(stacked, jnp.ones(1001))[0]) == 60000.0


def test_norm_does_not_overflow_before_float32_does():
    stacked = {"kernel": np.array([[3e30, 4e30], [3.0, 4.0], [0.0, 0.0]], np.float32)}
    np.testing.assert_allclose(update_norms(stacked), [5e30, 5.0, 0.0], rtol=1e-6)


def let_in(stacked, max_norm):
    """Who is let in, in the words of `uploads`."""
    return jax.vmap(is_finite)(stacked) & (update_norms(stacked) <= max_norm)


def test_the_unfinite_and_the_huge_are_not_let_in():
    stacked = {
        "kernel": np.array([[3, 4], [np.nan, 0], [0, 0], [30, 40]], np.float32),
        "bias": np.array([[0.0], [0.0], [-np.inf], [0.0]], np.float32),
    }
    admitted = jax.jit(lambda u: let_in(u, 5.0))(stacked)
    np.testing.assert_array_equal(admitted, [True, False, False, False])
    np.testing.assert_array_equal(
        jax.vmap(is_finite)(stacked), [True, False, False, True]
    )


@pytest.mark.parametrize("rule", aggregate.RULES)
def test_aggregate_renormalises_over_the_admitted(rule):
    stacked = np.array([[1.0], [np.nan], [3.0], [1e6]], np.float32)
    weights = jnp.where(let_in(stacked, 10.0), 1.0, 0.0)
    mean = aggregate.aggregate(stacked, weights, Aggregation(rule, clip_norm=5.0))
    np.testing.assert_allclose(mean, [2.0])


def test_aggregate_compiles_once_however_many_are_rejected():
    chex.clear_trace_counter()
    compiled = jax.jit(chex.assert_max_traces(aggregate.aggregate, n=1))
    for bad in range(5):
        weights = np.where(np.arange(5) < bad, 0, 1).astype(np.float32)
        mean = compiled(np.ones((5, 3), np.float32), weights)
        np.testing.assert_allclose(mean, np.full(3, float(bad < 5)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rule": "average"}, "'average', but must be one of mean, clipped_mean"),
        ({"rule": None}, "None, but must be one of mean, clipped_mean"),
        ({"rule": "clipped_mean", "clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"rule": "trimmed_mean", "trim": 0.5}, "trim is 0.5"),
        ({"max_update_norm": 0.0}, "max_update_norm is 0.0, .* leave it out"),
        ({"max_update_norm": float("nan")}, "max_update_norm is nan"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_what_is_allowed(options, reason):
    with pytest.raises(ValueError, match=reason):
        aggregate.aggregate(np.ones((2, 1)), jnp.ones(2), Aggregation(**options))


HONEST = {"conv1": np.array([[1, 2], [0, 0], [3, 4]], np.float32)}


class Upload(dict):
    """Class statistics in the form that `ClassActivations` has."""

    total = property(lambda self: self["total"])
    num_examples = property(lambda self: self["num_examples"])


def statistics(total=None, counts=None):
    if total is None:
        total = HONEST
    if counts is None:
        counts = np.array([2, 0, 5], np.int32)
    return Upload(total=total, num_examples=counts)


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        (statistics(counts=np.array([2, 0, -5], np.int32)), "negative count, -5"),
        (statistics(counts=np.array([2, 0, 500], np.int32)), "502 examples are above"),
        (statistics(counts=np.array([2, 0, 5.0], np.float32)), "dtype float32"),
        (statistics(counts=np.array([2, 5], np.int32)), "shape (2,), not (3,)"),
        (statistics(total={"conv1": np.full((3, 2), -1, np.float32)}), "negative sum"),
        (statistics(total={"conv1": np.ones((3, 2), np.float32)}), "without examples"),
        (statistics(total={"conv1": np.ones((2, 3), np.float32)}), "shape (2, 3)"),
        (statistics(total={"conv1": np.ones((3, 2))}), "dtype float64"),
        (statistics(total={"conv1": np.full((3, 2), np.nan, np.float32)}), "NaN"),
        (statistics(total={"conv1": np.full((3, 2), np.inf, np.float32)}), "NaN"),
        (statistics(total={"conv2": np.ones((3, 2), np.float32)}), "conv1 is missing"),
        (statistics(total=[]), "conv1 is missing"),
        (
            statistics(total={"conv1": np.array([[9, 9], [0, 0], [0, 0]], np.float32)}),
            "norm is above 2",
        ),
        ({"total": {}}, "not class statistics"),
        (None, "not class statistics"),
        (statistics(total={}), "conv1 is missing"),
        (statistics(total="conv1"), "conv1 is missing"),
        (statistics(total=HONEST | {"x": np.zeros(1)}), "x is not expected"),
        (statistics(total={1: np.zeros(1), "a": np.zeros(1)}), "not a tree"),
        (statistics(total=HONEST | {"x": {10**5000: np.zeros(1)}}), "not expected"),
        (statistics(total={"conv1": "abc"}), "is a str, not an array"),
        (statistics(total={"conv1": np.array([[None] * 2] * 3)}), "dtype object"),
        (statistics(total={"conv1": np.zeros((3, 2), np.complex64)}), "complex64"),
        (
            statistics(
                total={
                    "conv1": np.ma.masked_invalid(
                        np.array([[1, np.nan], [0, 0], [3, 4]], np.float32)
                    )
                }
            ),
            "1 of 6 NaN",
        ),
    ],
)
def test_door_says_what_is_wrong_with_statistics(upload, reason):
    said = check_statistics(upload, statistics(), 10, clip=2.0)
    assert said is not None and reason in said


def test_door_wants_whole_counts():
    template = statistics(counts=np.array([2, 0, 5], np.float32))
    assert check_statistics(template, template, 7) is None
    half = statistics(counts=np.array([2, 0, 4.5], np.float32))
    assert "whole" in str(check_statistics(half, template, 7))


def test_door_lets_honest_statistics_in():
    assert check_statistics(statistics(), statistics(), 7, clip=2.0) is None


def test_reason_is_one_short_printable_line_whatever_the_client_named_things():
    name = "\n2026 client 3 accepted\x1b[2J" + "x" * 500
    upload = statistics(total=HONEST | {name: np.zeros(1)})
    said = check_statistics(upload, statistics(), 10)
    assert said is not None and said.isprintable() and len(said) < 200


def make_logistic_clients(num_clients=20, examples=40):
    """A two-class problem that every client sees through its own draw."""
    draws = np.random.default_rng(0)
    truth = np.array([2.0, -1.0, 0.5, 1.5, -2.0])
    images = draws.normal(size=(num_clients, examples, 5)).astype(np.float32)
    labels = (images @ truth > 0).astype(np.float32)
    return jnp.asarray(images), jnp.asarray(labels)


def poison_sign_flip(updates, bad):
    return jnp.where(bad[:, None], -8.0 * updates, updates)


def poison_constant(updates, bad):
    return jnp.where(bad[:, None], 50.0, updates)


def train_logistic(rule, poison, bad, rounds=30):
    images, labels = make_logistic_clients()

    def loss(weights, image, label):
        logits = image @ weights
        return jnp.mean(jnp.logaddexp(0, logits) - label * logits)

    @jax.jit
    def step(weights):
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, images, labels)
        updates = poison(-gradients, bad)
        mean = aggregate.aggregate(
            updates, jnp.ones(len(bad)), Aggregation(rule, clip_norm=0.3, trim=0.2)
        )
        return weights + mean

    weights = jnp.zeros(5)
    for _ in range(rounds):
        weights = step(weights)
    return float(jnp.mean((images @ weights > 0) == labels))


@pytest.mark.parametrize("poison", [poison_sign_flip, poison_constant])
def test_a_fifth_of_the_clients_poisoned_breaks_the_mean_and_not_the_others(poison):
    bad = jnp.arange(20) < 4
    nobody = jnp.zeros(20, bool)
    assert train_logistic("mean", poison, nobody) > 0.95
    assert train_logistic("mean", poison, bad) < 0.65
    for rule in ("clipped_mean", "median", "trimmed_mean"):
        assert train_logistic(rule, poison, bad) > 0.9, rule


def test_the_mean_holds_when_the_door_turns_poison_away():
    images, _ = make_logistic_clients()
    updates = poison_constant(jnp.ones((len(images), 5)), jnp.arange(20) < 4)
    admitted = let_in(updates, 10.0)
    mean = aggregate.aggregate(updates, jnp.where(admitted, 1.0, 0.0))
    np.testing.assert_allclose(mean, np.ones(5), rtol=1e-6)
    assert int(jnp.sum(~admitted)) == 4
