import math
import sys
from typing import NamedTuple

import chex
import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fuprune.errors import InputError
from fuprune.unlearning.activations import ClassActivations, merge_activations
from fuprune.unlearning.privacy import (
    COUNT_SHARE,
    NoiseScales,
    Protection,
    add_noise,
    clip_scale,
    describe_privacy,
    epsilon_of,
    noise_scales,
    suppress_small,
)
from tests import reference_unlearning

EPSILONS = st.floats(0.01, 20.0)
DELTAS = st.floats(-12.0, -1.0).map(lambda power: 10.0**power)


def statistics_of(activations, labels, num_classes=3):
    """Class sums of examples: {layer: [N, C_l]} and [N] -> ClassActivations."""
    member = np.eye(num_classes)[labels].reshape(len(labels), num_classes)
    return ClassActivations(
        {layer: np.float32(member.T @ a) for layer, a in activations.items()},
        np.float32(member.sum(axis=0)),
    )


def make_statistics(seed=0, examples=60):
    draws = np.random.default_rng(seed)
    activations = {
        "conv1": draws.uniform(0, 1, (examples, 4)),
        "conv2": draws.uniform(0, 1, (examples, 2)),
    }
    return statistics_of(activations, draws.integers(0, 3, examples))


class Collected(NamedTuple):
    uploads: list


def calibrated(epsilon, delta, sensitivity=1.0):
    """The noise of one number that stands for totals and counts together."""
    scales = noise_scales(epsilon, delta, clip=sensitivity)
    return scales.total * math.sqrt(1 - COUNT_SHARE)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma"),
    # Roots of Theorem 8 found with mpmath in 50 digits.
    [
        (1.0, 1e-5, 3.7306316348159),
        (0.5, 1e-5, 7.0318266755825),
        (8.0, 1e-5, 0.6002290721990),
    ],
)
def test_noise_has_known_values(epsilon, delta, sigma):
    assert calibrated(epsilon, delta) == pytest.approx(sigma, rel=1e-8)


@settings(max_examples=60)
@given(epsilon=EPSILONS, delta=DELTAS, sensitivity=st.floats(1e-3, 1e3))
def test_calibrated_noise_costs_what_was_asked_and_no_less(epsilon, delta, sensitivity):
    sigma = calibrated(epsilon, delta, sensitivity)
    assert reference_unlearning.gaussian_delta(epsilon, sensitivity / sigma) <= delta
    less = sensitivity / (0.999 * sigma)
    assert reference_unlearning.gaussian_delta(epsilon, less) > delta
    assert epsilon_of(sigma / sensitivity, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("releases", [1, 3, 10])
@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_accountant_agrees_with_those_for_any_mechanism(sigma, releases):
    ours = epsilon_of(sigma, 1e-5, releases=releases)
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.GaussianDpEvent(sigma), releases
    )
    renyi = rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    assert ours <= renyi <= 1.5 * ours
    tight = pld.PLDAccountant(value_discretization_interval=1e-3)
    assert tight.compose(event).get_epsilon(1e-5) == pytest.approx(ours, rel=0.01)


@settings(max_examples=60)
@given(
    values=st.lists(
        st.floats(0, 1e6, width=32).map(lambda x: [x, x / 2, 3.0]),
        min_size=2,
        max_size=6,
    ),
    clip=st.floats(0.1, 10.0),
    label=st.integers(0, 2),
)
def test_one_clipped_example_moves_the_sums_by_no_more_than_the_clip(
    values, clip, label
):
    activations = np.array(values, np.float64)
    norms = np.linalg.norm(activations, axis=1)
    scales = np.asarray(clip_scale(jnp.asarray(norms, jnp.float32), clip))
    clipped = activations * scales[:, None]
    labels = np.arange(len(values)) % 3
    labels[-1] = label
    rows = {"conv1": clipped[:, :1], "conv2": clipped[:, 1:]}
    fewer = {layer: a[:-1] for layer, a in rows.items()}
    member = np.eye(3)[labels]
    squares = sum(
        np.sum((member.T @ rows[k] - member[:-1].T @ fewer[k]) ** 2) for k in rows
    )
    assert math.sqrt(squares) <= clip * (1 + 1e-5)
    assert np.abs(member.sum(0) - member[:-1].sum(0)).sum() == 1


@settings(max_examples=40)
@given(epsilon=EPSILONS, clip=st.floats(0.1, 100.0), releases=st.integers(1, 10))
def test_statement_gives_back_the_budget_that_set_the_noise(epsilon, clip, releases):
    scales = noise_scales(epsilon, 1e-5, clip=clip, releases=releases)
    said = describe_privacy(scales, 1e-5, clip=clip, releases=releases)
    assert said["epsilon"] == pytest.approx(epsilon, rel=1e-6)
    assert said["sigma_total"] == scales.total


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
    zeros = ClassActivations(
        {"conv1": jnp.zeros((40, 100)), "conv2": jnp.zeros((40, 100))}, jnp.zeros(4000)
    )
    noised = add_noise(zeros, key=jax.random.key(0), scales=NoiseScales(3.0, 0.5))
    first, second = (np.ravel(noised.total[k]) for k in ("conv1", "conv2"))
    assert stats.kstest(first / 3.0, "norm").pvalue > 1e-3
    assert stats.kstest(second / 3.0, "norm").pvalue > 1e-3
    assert stats.kstest(np.asarray(noised.num_examples) / 0.5, "norm").pvalue > 1e-3
    for one, other in [(first, second), (first, np.ravel(noised.num_examples))]:
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.06


def privatise(statistics, key, scales):
    """What a server that is trusted with the sum makes of it."""
    return Protection(scales=scales).show(Collected([statistics]), key)


def test_privatised_statistics_are_possible_ones_and_depend_on_the_key():
    statistics = make_statistics(examples=6)
    scales = NoiseScales(50.0, 50.0)
    first = privatise(statistics, jax.random.key(0), scales)
    second = privatise(statistics, jax.random.key(1), scales)
    for noised in (first, second):
        assert isinstance(noised, ClassActivations)
        chex.assert_tree_all_finite(noised)
        assert all(float(jnp.min(v)) >= 0 for v in noised.total.values())
        assert float(jnp.min(noised.num_examples)) >= 1.0
    assert not np.array_equal(first.total["conv1"], second.total["conv1"])
    again = privatise(statistics, jax.random.key(0), scales)
    chex.assert_trees_all_equal(first, again)


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    min_count=st.integers(0, 9),
)
def test_rows_of_few_examples_are_zeroed_and_the_others_untouched(counts, min_count):
    counts = np.array(counts, np.float32)
    statistics = ClassActivations(
        {"conv1": np.arange(1, 7, dtype=np.float32).reshape(3, 2)}, counts
    )
    kept = suppress_small(statistics, min_count)
    for row, number in enumerate(counts):
        if number < min_count:
            assert kept.num_examples[row] == 0
            assert not np.any(kept.total["conv1"][row])
        else:
            assert kept.num_examples[row] == number
            np.testing.assert_array_equal(
                kept.total["conv1"][row], statistics.total["conv1"][row]
            )


def collected(num_clients=6):
    return Collected([make_statistics(seed, 60) for seed in range(num_clients)])


def plain(uploads):
    return jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *uploads)


def test_protection_of_nothing_passes_the_uploads_on():
    before = collected()
    seen = Protection().show(before, jax.random.key(0))
    chex.assert_trees_all_equal(seen, before.uploads)


@pytest.mark.parametrize("scales", [None, NoiseScales(1e-6, 1e-6)])
def test_server_scores_the_same_means_from_a_protected_sum(scales):
    before = collected()
    seen = Protection(secure=True, scales=scales).show(before, jax.random.key(0))
    chex.assert_trees_all_close(
        merge_activations(seen), merge_activations(before.uploads), atol=1e-5
    )


@pytest.mark.parametrize("protection", [{}, {"scales": NoiseScales(1.0, 1.0)}])
def test_without_statistics_there_is_nothing_to_merge(protection):
    seen = Protection(secure=True, **protection).show(Collected([]), jax.random.key(0))
    with pytest.raises(InputError, match="no client's statistics arrived"):
        merge_activations(seen)


@pytest.mark.parametrize("secure", [False, True])
def test_noised_protection_has_at_least_the_noise_it_promises(secure):
    uploads = [
        ClassActivations(
            {"conv1": np.full((40, 50), 1e4, np.float32)}, np.full(40, 1e4, np.float32)
        )
    ] * 4
    scales = NoiseScales(3.0, 2.0)
    protect = Protection(secure=secure, scales=scales)
    seen = protect.show(Collected(uploads), jax.random.key(0))
    # All four stayed: a share more than a sum of three, the fewest, takes for granted.
    expected = scales.total * (math.sqrt(4 / 3) if secure else 1.0)
    noise = np.ravel(seen.total["conv1"]) - 4e4
    assert stats.kstest(noise / expected, "norm").pvalue > 1e-3
    assert np.std(noise) == pytest.approx(expected, rel=0.07)


def test_without_noise_clients_suppress_and_with_noise_the_sum_is_suppressed():
    rare = ClassActivations({"conv1": np.ones((2, 3), np.float32)}, np.float32([2, 50]))
    before = Collected([rare] * 4)
    seen = Protection(min_count=5).show(before, jax.random.key(0))
    assert all(np.array_equal(u.num_examples, [0, 50]) for u in seen)
    seen = Protection(min_count=5, scales=NoiseScales(1e-6, 1e-6)).show(
        before, jax.random.key(0)
    )
    np.testing.assert_allclose(seen.num_examples, [8, 200], rtol=1e-4)
    seen = Protection(min_count=9, scales=NoiseScales(1e-6, 1e-6)).show(
        before, jax.random.key(0)
    )
    np.testing.assert_allclose(seen.num_examples, [0, 200], rtol=1e-4)


def test_a_missing_package_is_one_sentence_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'fuprune\[privacy\]'\.$"):
        noise_scales(1.0, 1e-5, clip=1.0)
