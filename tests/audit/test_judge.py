"""The judge: intervals of textbooks, error rates by simulation, and its words."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from fuprune.audit.judge import Measure, compare, holm, judge
from fuprune.audit.record import DIFFERENT, EQUIVALENT, NO_DIFFERENCE, NO_POWER

RETRAINED = [0.1, 0.2, 0.3, 0.4]


def measure(values, retrained=RETRAINED, *, name="a", **fields) -> Measure:
    fields = {"headline": True, "kind": "accuracy", "question": "?", **fields}
    return Measure(name=name, retrained=retrained, models={"mine": values}, **fields)


def compared(values, retrained=RETRAINED, level=0.05, **fields) -> Any:
    return compare(measure(values, retrained, **fields), "mine", level)


def test_interval_is_that_of_the_two_sample_t_test():
    own = [0.5, 0.45, 0.7]
    found = compared(own)
    expected: Any = stats.ttest_ind(own, RETRAINED)
    low, high = expected.confidence_interval(0.95)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.difference - found.half_width == pytest.approx(low)
    assert found.difference + found.half_width == pytest.approx(high)


def test_one_seed_is_held_against_the_interval_for_one_more_retrained_model():
    found = compared([0.9])
    spread = np.std(RETRAINED, ddof=1)
    assert found.difference == pytest.approx(0.9 - 0.25)
    half = stats.t.ppf(0.975, 3) * spread * np.sqrt(1 + 1 / 4)
    assert found.half_width == pytest.approx(half)


def test_interval_is_never_narrower_than_the_images_allow():
    for retrained in ([0.0] * 4, RETRAINED):
        found = compared([0.01], retrained, error=0.5)
        assert found.half_width == pytest.approx(stats.norm.ppf(0.975) * 0.5)
        assert found.p_value > 0.4
    # Without a spread between seeds, the images alone decide.
    far = compared([2.0], [0.0] * 4, error=0.5)
    assert far.p_value == pytest.approx(2 * stats.norm.sf(2.0 / 0.5))
    # Three seeds answer for the same images; their mean is as sure as three models'.
    three = compared([0.01] * 3, [0.0] * 4, error=0.5)
    ratio = np.sqrt((1 / 3 + 1 / 4) / (1 + 1 / 4))
    assert three.half_width == pytest.approx(stats.norm.ppf(0.975) * 0.5 * ratio)


def test_no_spread_says_nothing_but_that_equals_are_equal():
    assert compared([0.1], [0.1]) is None
    assert compared([None]) is None
    assert compared([0.1], [0.0, 0.0, 0.0]) is None
    assert compared([0.3], [0.3, 0.1 + 0.2, 0.3]) == (0.0, 0.0, 1.0)
    assert compared([0.1], [0.1, 0.2], leave_one_out=True) is None
    (row,) = judge([measure([0.1], [0.0, 0.0])])
    assert row.models["mine"].note.startswith("the retrained models agree exactly")
    (row,) = judge([measure([0.1], [0.0])])
    assert row.models["mine"].note == "1 retrained models show no spread; 2 are needed"
    assert row.verdict("mine") == "" and row.models["mine"].different is None


def test_mean_distances_to_the_others_get_their_shared_terms_back():
    """If a distance is the sum of two parts, the judge sees the parts' own spread."""
    parts, own = np.asarray([0.3, 0.5, 0.1, 0.7, 0.4]), 0.9
    others = [(parts.sum() - part) / 4 for part in parts]
    retrained = [part + other for part, other in zip(parts, others, strict=True)]
    found = compared([own + parts.mean()], retrained, leave_one_out=True)
    expected = compared([own], parts.tolist())
    assert found.half_width == pytest.approx(expected.half_width)
    assert found.difference == pytest.approx(expected.difference)


def test_holm_is_the_textbook_procedure():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_only_the_headline_is_judged_and_shares_one_error():
    near = [0.6]
    alone: Any = judge([measure(near)])[0].models["mine"]
    family = [measure(near), *(measure([0.25], name=f"b{i}") for i in range(6))]
    together: Any = judge(family)[0].models["mine"]
    described = judge([measure(near), measure(near, name="c", headline=False)])
    assert together.p_value == pytest.approx(7 * alone.p_value)
    assert described[0].models["mine"].p_value == alone.p_value
    assert described[1].models["mine"].difference is None
    assert described[1].margin is None


@pytest.mark.parametrize(
    ("harm", "value", "different"),
    [
        *[("higher", 0.9, True), ("higher", -0.4, False)],
        *[("lower", 0.9, False), ("lower", -0.4, True)],
        *[("either", 5.0, True), ("either", -5.0, True)],
    ],
)
def test_only_the_harmful_side_counts(harm, value, different):
    (row,) = judge([measure([value], harm=harm)])
    assert row.models["mine"].different is different
    assert row.models["mine"].note == ""


def test_equivalent_is_the_whole_interval_within_the_margin():
    retrained = list(np.linspace(0, 1, 20))
    half = compared([0.5], retrained).half_width
    for margin, equivalent in ((half * 1.01, True), (half * 0.99, False)):
        (row,) = judge([measure([0.5], retrained, margin=margin)])
        assert row.models["mine"].equivalent is equivalent
        assert row.verdict("mine") == (EQUIVALENT if equivalent else NO_DIFFERENCE)
    # On either side, and by the range of the retrained models if nothing is said.
    for off in (-0.05, 0.05):
        (row,) = judge([measure([0.5 + off], retrained, margin=half + 0.04)])
        assert row.models["mine"].equivalent is False
    (row,) = judge([measure([0.5] * 9, retrained)])
    assert row.margin == 1.0 and row.models["mine"].equivalent
    assert judge([measure([0.5], [0.0, 1.0])])[0].margin == 1.0


def test_measure_that_does_not_see_the_raw_model_has_no_power():
    blind = measure([0.25])._replace(models={"mine": [0.25], "raw": [0.3]})
    sighted = blind._replace(models={"mine": [0.25], "raw": [9.0]})
    assert judge([blind])[0].verdict("mine") == NO_POWER
    assert judge([sighted])[0].verdict("mine") == NO_DIFFERENCE
    assert judge([blind._replace(needs_raw=False)])[0].verdict("mine") == NO_DIFFERENCE
    both = blind._replace(models={"mine": [9.0], "raw": [0.3]})
    assert judge([both])[0].verdict("mine") == DIFFERENT


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_honest_model_differs_anywhere_in_one_audit_in_twenty(seeds):
    """Ten retrained models and a candidate drawn alike, seven measures, 1,500 draws."""
    generator = np.random.default_rng(0)
    failed = 0
    for _ in range(1500):
        draws = generator.normal(size=(7, 10 + seeds))
        rows = judge(
            [
                measure(d[10:].tolist(), d[:10].tolist(), name=str(i))
                for i, d in enumerate(draws)
            ]
        )
        failed += any(row.models["mine"].different for row in rows)
    # 99.9% of binomial draws at 5% lie below the upper bound; Holm is hardly lower.
    assert stats.binom.ppf(0.001, 1500, 0.035) < failed
    assert failed < stats.binom.ppf(0.999, 1500, 0.05)
