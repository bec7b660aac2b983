"""Where one more retrained model lies."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import stats

from fuprune.audit.spread import (
    ANGULAR,
    LOGARITHMIC,
    excess,
    interval,
    make_null,
    p_value,
)
from tests.audit.judging import draft, interval_of, judged


def test_two_sided_interval_is_students_for_one_new_draw():
    # t(0.975, 2) = 4.302653; mean 2, deviation 1, sqrt(1 + 1/3).
    low, high = interval_of([1.0, 2.0, 3.0])
    half = 4.302652729 * 1.0 * np.sqrt(4 / 3)
    np.testing.assert_allclose([low, high], [2 - half, 2 + half], rtol=1e-8)


def test_one_sided_interval_is_open_to_the_harmless_side():
    # t(0.95, 2) = 2.919986.
    half = 2.91998558 * np.sqrt(4 / 3)
    low, high = interval_of([1.0, 2.0, 3.0], higher_is="worse")
    assert low is None
    np.testing.assert_allclose(high, 2 + half, rtol=1e-8)
    low, high = interval_of([1.0, 2.0, 3.0], higher_is="better")
    assert high is None
    np.testing.assert_allclose(low, 2 - half, rtol=1e-8)


def test_interval_is_never_narrower_than_the_sample_resolves():
    low, high = interval_of([0.5, 0.5, 0.5], resolution=0.1)
    np.testing.assert_allclose([low, high], [0.5 - 0.195996, 0.5 + 0.195996], rtol=1e-5)


@pytest.mark.parametrize("step", [0.1, 1 / 3])
def test_models_that_agree_exactly_say_nothing_about_one_more(step):
    """Distances of few images come in coarse steps, and three may agree by luck."""
    options = {"positive_control": "raw", "allowance": None}
    found = judged({"a": 2 * step, "raw": 3 * step}, [step] * 3, **options)
    assert found.verdicts == {"a": "cannot tell", "raw": "cannot tell"}
    assert found.interval is None and found.smallest_difference is None
    assert any("agree exactly" in note for note in found.notes)
    # The images' own error is something to hold a model against.
    found = judged(
        {"a": 2 * step, "raw": 3 * step}, [step] * 3, resolution=1e-3, **options
    )
    assert found.verdicts == {"a": "fail", "raw": "fail"}


def test_angular_interval_stays_between_zero_and_one():
    low, high = interval_of([0.9, 0.95, 0.99], scale=ANGULAR)
    assert 0.5 < low < 0.9 and 0.99 < high <= 1.0
    # Seven standard errors of 1% below a rate of 0.98 are further than above 0.5.
    near, middle = (
        make_null(draft([m - 1e-9, m + 1e-9], scale=ANGULAR, resolution=0.01))
        for m in (0.98, 0.5)
    )
    assert excess(near, 0.91) / near.resolution < excess(middle, 0.43) / 0.01
    assert interval_of([0.0, 0.0], scale=ANGULAR, resolution=0.02)[1] < 0.1


def test_interval_keeps_to_the_bounds():
    assert interval_of([0.0, 1.0], bounds=(0.0, 1.0)) == [0.0, 1.0]


def test_logarithmic_interval_is_symmetric_in_ratios_and_positive():
    low, high = interval_of([10.0, 20.0, 40.0], scale=LOGARITHMIC)
    assert low > 0
    np.testing.assert_allclose(low * high, 20.0**2, rtol=1e-9)


@pytest.mark.parametrize("n", [3, 5])
def test_leave_one_out_interval_covers_a_further_model_as_often_as_it_says(n):
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        own = generator.normal(1.0, 0.2, n + 1)
        distances = own[:, None] + own[None, :]
        reference = [
            np.mean([distances[i, j] for j in range(n) if j != i]) for i in range(n)
        ]
        candidate = np.mean(distances[n, :n])
        null = make_null(draft(reference, leave_one_out=True))
        covered += p_value(null, candidate) > 0.1
    assert abs(covered / 2000 - 0.9) < 0.025


NUMBERS = st.floats(-5, 5).map(lambda x: round(x, 3))


@hypothesis.given(
    st.lists(NUMBERS, min_size=2, max_size=6),
    NUMBERS,
    st.sampled_from(["worse", "better", "two_sided"]),
    st.floats(0.0, 2.0),
    st.sampled_from([0.6, 0.9, 0.95, 0.99]),
)
def test_a_value_is_outside_the_interval_just_when_its_p_value_is_small(
    retrained, value, higher_is, resolution, confidence
):
    null = make_null(draft(retrained, higher_is=higher_is, resolution=resolution))
    hypothesis.assume(null is not None)
    low, high = interval(null, 1 - confidence)
    edge = min(abs(value - end) for end in (low, high) if end is not None)
    hypothesis.assume(edge > 1e-6)
    outside = (low is not None and value < low) or (high is not None and value > high)
    assert outside == (p_value(null, value) < 1 - confidence)


def test_p_values_of_further_draws_are_uniform():
    generator = np.random.default_rng(0)
    found = []
    for _ in range(1500):
        *retrained, value = generator.normal(3, 2, 5)
        found.append(p_value(make_null(draft(retrained)), value))
    assert stats.kstest(found, "uniform").pvalue > 0.01
