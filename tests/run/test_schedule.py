"""The learning rate over rounds."""

import pytest

from fuprune.run.build import Schedule


def learning_rates(rounds, kind, warmup):
    rate = Schedule(rounds, 0.1, kind, warmup).by_round()
    return [float(rate(number)) for number in range(rounds)]


@pytest.mark.parametrize(("rounds", "warmup"), [(1, 1), (2, 2), (3, 20)])
def test_a_warm_up_longer_than_the_rounds_ends_with_them(rounds, warmup):
    """Budgets are cut after the config was checked, by a short retraining for one."""
    expected = [0.1 * (n + 1) / rounds for n in range(rounds)]
    assert learning_rates(rounds, "warmup_cosine", warmup) == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [0, 1, 3, 6])
def test_warm_up_never_starts_at_rate_zero(warmup):
    """A first round at rate 0 would be a round for nothing."""
    ramp = learning_rates(7, "warmup_cosine", warmup)[: warmup + 1]
    expected = [0.1 * (n + 1) / (warmup + 1) for n in range(warmup + 1)]
    assert ramp == pytest.approx(expected)
