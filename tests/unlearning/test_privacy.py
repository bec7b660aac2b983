"""Noise of known size, what it costs, and what the server sees of protected sums."""

import math
import sys
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fuprune.errors import InputError
from fuprune.options import make
from fuprune.unlearning.activations import ClassActivations, merge_activations
from fuprune.unlearning.privacy import (
    COUNT_SHARE,
    NoiseScales,
    Options,
    Protection,
    add_noise,
    clip_scale,
    epsilon_of,
    noise_scales,
    protect_statistics,
    suppress_small,
)
from fuprune.unlearning.secure_sum import SCALE, encode, secure_sum
from tests import reference_unlearning

EPSILONS = st.floats(0.01, 20.0)
DELTAS = st.floats(-12.0, -1.0).map(lambda power: 10.0**power)
KEY = jax.random.key(0)


class Collected(NamedTuple):
    uploads: list


def make_statistics(seed=0, examples=60):
    """Class sums of random examples with two layers."""
    draws = np.random.default_rng(seed)
    member = np.eye(3)[draws.integers(0, 3, examples)]
    layers = {
        "conv1": draws.random((examples, 4)),
        "conv2": draws.random((examples, 2)),
    }
    total = {layer: np.float32(member.T @ a) for layer, a in layers.items()}
    return ClassActivations(total, np.float32(member.sum(axis=0)))


def calibrated(epsilon, delta, sensitivity=1.0):
    """The noise of one number that stands for totals and counts together."""
    scales = noise_scales(epsilon, delta, clip=sensitivity)
    return scales.total * math.sqrt(1 - COUNT_SHARE)


@pytest.mark.parametrize(
    ("epsilon", "sigma"),
    # Roots of Theorem 8 found with mpmath in 50 digits.
    [(1.0, 3.7306316348159), (0.5, 7.0318266755825), (8.0, 0.6002290721990)],
)
def test_noise_has_known_values(epsilon, sigma):
    assert calibrated(epsilon, 1e-5) == pytest.approx(sigma, rel=1e-8)


@settings(max_examples=60)
@given(epsilon=EPSILONS, delta=DELTAS, sensitivity=st.floats(1e-3, 1e3))
def test_calibrated_noise_costs_what_was_asked_and_no_less(epsilon, delta, sensitivity):
    sigma = calibrated(epsilon, delta, sensitivity)
    assert reference_unlearning.gaussian_delta(epsilon, sensitivity / sigma) <= delta
    less = sensitivity / (0.999 * sigma)
    assert reference_unlearning.gaussian_delta(epsilon, less) > delta
    assert epsilon_of(sigma / sensitivity, delta) == pytest.approx(epsilon, rel=1e-6)


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(0, 1e6, width=32), min_size=2, max_size=6),
    clip=st.floats(0.1, 10.0),
)
def test_one_clipped_example_moves_the_sums_by_no_more_than_the_clip(values, clip):
    activations = np.array([[x, x / 2, 3.0] for x in values])
    norms = np.linalg.norm(activations, axis=1)
    scales = np.asarray(clip_scale(jnp.asarray(norms, jnp.float32), clip))
    lengths = np.linalg.norm(activations * scales[:, None], axis=1)
    assert np.all(lengths <= clip * (1 + 1e-5))
    np.testing.assert_array_equal(
        clip_scale(jnp.array([0.0, 0.5, np.inf]), 1.0), [1, 1, 0]
    )


@settings(max_examples=40)
@given(epsilon=EPSILONS, clip=st.floats(0.1, 100.0), releases=st.integers(1, 10))
def test_statement_gives_back_the_budget_that_set_the_noise(epsilon, clip, releases):
    options = make(Options, dict(epsilon=epsilon, clip=clip))
    said = protect_statistics(options, releases=releases).statement
    assert said["epsilon"] == pytest.approx(epsilon, rel=1e-6)


def test_best_distinguisher_gains_delta_and_no_more():
    """The likelihood-ratio test between neighbours, on half a million releases."""
    epsilon, delta, trials = 1.0, 0.02, 500_000
    scales = noise_scales(epsilon, delta, clip=2.0)
    without = ClassActivations({"conv1": jnp.zeros((trials, 1))}, jnp.zeros(trials))
    having = ClassActivations({"conv1": jnp.full((trials, 1), 2.0)}, jnp.ones(trials))

    def log_ratio(statistics, key):
        seen = add_noise(statistics, key=key, scales=scales)
        total, count = seen.total["conv1"][:, 0], seen.num_examples
        return np.float64(
            (total**2 - (total - 2.0) ** 2) / (2 * scales.total**2)
            + (count**2 - (count - 1.0) ** 2) / (2 * scales.num_examples**2)
        )

    event_having = np.mean(log_ratio(having, jax.random.key(1)) > epsilon)
    event_without = np.mean(log_ratio(without, jax.random.key(2)) > epsilon)
    gained = event_having - math.exp(epsilon) * event_without
    assert gained == pytest.approx(delta, abs=0.002)  # five standard errors


def test_noise_is_gaussian_of_the_asked_size_and_independent_by_layer():
    zeros = {"conv1": jnp.zeros((40, 100)), "conv2": jnp.zeros((40, 100))}
    zeros = ClassActivations(zeros, jnp.zeros(4000))
    noised = add_noise(zeros, key=KEY, scales=NoiseScales(3.0, 0.5))
    drawn = [np.ravel(noised.total[k]) / 3.0 for k in ("conv1", "conv2")]
    drawn.append(np.asarray(noised.num_examples) / 0.5)
    assert all(stats.kstest(one, "norm").pvalue > 1e-3 for one in drawn)
    assert np.all(np.abs(np.corrcoef(drawn) - np.eye(3)) < 0.06)


@pytest.mark.parametrize("secure", [False, True])
def test_noised_protection_has_at_least_the_noise_it_promises(secure):
    total = {"conv1": np.full((40, 50), 1e4, np.float32)}
    uploads = [ClassActivations(total, np.full(40, 1e4, np.float32))] * 4
    protect = Protection(secure=secure, scales=NoiseScales(3.0, 2.0))
    seen = protect.show(Collected(uploads), KEY)
    # All four stayed: a share more than a sum of three, the fewest, takes for granted.
    expected = 3.0 * (math.sqrt(4 / 3) if secure else 1.0)
    noise = np.ravel(seen.total["conv1"]) - 4e4
    assert stats.kstest(noise / expected, "norm").pvalue > 1e-3
    assert np.std(noise) == pytest.approx(expected, rel=0.07)


def test_noised_statistics_are_possible_ones_and_depend_on_the_key():
    protect = Protection(scales=NoiseScales(50.0, 50.0))
    given = Collected([make_statistics(examples=6)])
    first, second, again = (
        protect.show(given, jax.random.key(number)) for number in (0, 1, 0)
    )
    for noised in (first, second):
        chex.assert_tree_all_finite(noised)
        assert all(float(jnp.min(v)) >= 0 for v in noised.total.values())
        assert float(jnp.min(noised.num_examples)) >= 1.0
    assert not np.array_equal(first.total["conv1"], second.total["conv1"])
    chex.assert_trees_all_equal(first, again)


@settings(max_examples=40)
@given(counts=st.lists(st.integers(0, 9), min_size=3), min_count=st.integers(0, 9))
def test_rows_of_few_examples_are_zeroed_and_the_others_untouched(counts, min_count):
    counts = np.array(counts, np.float32)
    total = np.arange(1, 2 * len(counts) + 1, dtype=np.float32).reshape(-1, 2)
    kept = suppress_small(ClassActivations({"conv1": total}, counts), min_count)
    stays = counts >= min_count
    np.testing.assert_array_equal(kept.num_examples, counts * stays)
    np.testing.assert_array_equal(kept.total["conv1"], total * stays[:, None])


@pytest.mark.parametrize("protection", [{}, dict(scales=NoiseScales(1e-6, 1e-6))])
def test_server_scores_the_same_means_from_a_protected_sum(protection):
    given = Collected([make_statistics(seed) for seed in range(6)])
    chex.assert_trees_all_equal(Protection().show(given, KEY), given.uploads)
    seen = Protection(secure=True, **protection).show(given, KEY)
    assert isinstance(seen, ClassActivations)
    means = merge_activations(seen), merge_activations(given.uploads)
    chex.assert_trees_all_close(*means, atol=1e-5)
    nothing = Protection(secure=True, **protection).show(Collected([]), KEY)
    with pytest.raises(InputError, match="no client's statistics arrived"):
        merge_activations(nothing)


def test_without_noise_clients_suppress_and_with_noise_the_sum_is_suppressed():
    rare = ClassActivations({"conv1": np.ones((2, 3), np.float32)}, np.float32([2, 50]))
    given, scales = Collected([rare] * 4), NoiseScales(1e-6, 1e-6)
    seen = Protection(min_count=5).show(given, KEY)
    assert all(np.array_equal(u.num_examples, [0, 50]) for u in seen)
    for min_count, expected in ((5, [8, 200]), (9, [0, 200])):
        seen = Protection(min_count=min_count, scales=scales).show(given, KEY)
        np.testing.assert_allclose(seen.num_examples, expected, rtol=1e-4)


def test_a_missing_package_is_one_sentence_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'fuprune\[privacy\]'\.$"):
        noise_scales(1.0, 1e-5, clip=1.0)


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
