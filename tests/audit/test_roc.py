import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax_privacy import auditing
from scipy import stats

from fuprune.audit import roc as roc_lib
from tests import reference_audit

scores = hnp.arrays(
    np.float64, st.integers(1, 30), elements=st.integers(-5, 5).map(float)
)


@hypothesis.given(scores, scores)
def test_area_is_the_share_of_pairs_in_the_right_order(members, non_members):
    area = roc_lib.area_under(roc_lib.roc_curve(members, non_members))
    assert area == pytest.approx(reference_audit.area_by_pairs(members, non_members))


@hypothesis.given(scores, scores)
def test_curve_agrees_with_jax_privacys_auditor(members, non_members):
    # That auditor lets an attacker randomise between two thresholds: it works on the
    # concave hull of the curve. The hull of ours must be the same curve.
    auditor = auditing.CanaryScoreAuditor(members, non_members)
    roc = roc_lib.roc_curve(members, non_members)
    hull = np.array(reference_audit.concave_hull(*roc))
    assert np.trapezoid(hull[:, 1], hull[:, 0]) == pytest.approx(auditor.attack_auroc())
    for rate in (0.01, 0.3, 1.0):
        reached = auditor.tpr_at_given_fpr(rate)
        assert roc_lib.true_positives_at(roc, rate) <= reached + 1e-9
        # The hull at x from below; a vertical start makes the last y of x=0 count.
        best = max(
            y1 + (y2 - y1) * (rate - x1) / (x2 - x1)
            for (x1, y1), (x2, y2) in zip(hull, hull[1:], strict=False)
            if x1 <= rate <= x2 and x2 > x1
        )
        assert best == pytest.approx(reached)


def test_smooth_scores_give_jax_privacys_area_and_low_rates_directly():
    generator = np.random.default_rng(0)
    members = generator.normal(1.5, 1, 100_000)
    non_members = generator.normal(0, 1, 100_000)
    roc = roc_lib.roc_curve(members, non_members)
    auditor = auditing.CanaryScoreAuditor(members, non_members)
    assert roc_lib.area_under(roc) == pytest.approx(auditor.attack_auroc(), abs=1e-3)
    assert roc_lib.area_under(roc) == pytest.approx(
        stats.norm.cdf(1.5 / np.sqrt(2)), abs=3e-3
    )
    for rate in (0.01, 0.001):
        found = roc_lib.true_positives_at(roc, rate)
        assert found == pytest.approx(float(auditor.tpr_at_given_fpr(rate)), abs=0.01)
        assert found == pytest.approx(
            stats.norm.sf(stats.norm.isf(rate) - 1.5), abs=0.02
        )


def test_separated_scores_are_told_apart_and_equal_ones_are_not():
    apart = roc_lib.roc_curve([2.0, 3.0], [0.0, 1.0])
    assert roc_lib.area_under(apart) == 1
    assert roc_lib.true_positives_at(apart, 0.0) == 1
    tied = roc_lib.roc_curve([1.0, 1.0], [1.0])
    assert roc_lib.area_under(tied) == 0.5
    assert roc_lib.true_positives_at(tied, 0.5) == 0


def test_thinned_curve_keeps_ends_and_shape():
    generator = np.random.default_rng(0)
    roc = roc_lib.roc_curve(generator.normal(1, 1, 3000), generator.random(3000))
    thin = roc_lib.thin(roc)
    assert len(thin.false_positives) <= 101
    assert (thin.false_positives[0], thin.true_positives[0]) == (0, 0)
    assert (thin.false_positives[-1], thin.true_positives[-1]) == (1, 1)
    assert roc_lib.area_under(thin) == pytest.approx(roc_lib.area_under(roc), abs=0.01)
    assert roc_lib.thin(thin) is thin


def test_empty_or_undefined_scores_are_refused():
    with pytest.raises(ValueError, match="members holds 0 scores"):
        roc_lib.roc_curve([], [1.0])
    with pytest.raises(ValueError, match="1 of them NaN"):
        roc_lib.roc_curve([1.0], [np.nan])


def test_equal_scores_are_no_result():
    assert roc_lib.is_constant((np.full(3, 0.2), np.full(5, 0.2)))
    assert not roc_lib.is_constant((np.array([0.2, 0.3]), np.full(5, 0.2)))
