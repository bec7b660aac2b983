import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import stats

from fuprune.audit import membership
from fuprune.audit.membership import confidence_lost, interpolation_terms
from fuprune.audit.roc import area_under, is_constant, roc_curve
from tests import reference_audit
from tests.audit.conftest import run_audit


def test_scores_follow_their_definitions():
    logits = np.array([[2.0, 0.5, -1.0], [0.0, 0.1, 3.0]])
    labels = np.array([0, 1])
    p = np.array([reference_audit.softmax(row) for row in logits])
    own = p[[0, 1], labels]
    np.testing.assert_allclose(membership.loss_score(logits, labels), np.log(own))
    np.testing.assert_allclose(
        membership.confidence_score(logits, labels), np.log(p.max(axis=1))
    )
    np.testing.assert_allclose(
        membership.entropy_score(logits, labels), np.sum(p * np.log(p), axis=1)
    )
    np.testing.assert_allclose(
        membership.modified_entropy_score(logits, labels),
        [-reference_audit.modified_entropy(logits[i], labels[i]) for i in range(2)],
    )
    np.testing.assert_allclose(
        membership.logit_confidence(logits, labels), np.log(own / (1 - own))
    )


@pytest.mark.parametrize("score", [*membership.SCORES.values()])
def test_scores_stay_finite_for_a_masked_logit(score):
    logits = np.array([[-np.inf, 1.0, 2.0], [300.0, -300.0, -np.inf]])
    assert np.isfinite(score(logits, np.array([0, 2]))).all()
    assert np.isfinite(membership.logit_confidence(logits, np.array([0, 2]))).all()


def test_confidence_lost_by_removed_images_only_is_found_at_the_analytic_rate():
    """Images differ widely, so that one model alone says little."""
    generator = np.random.default_rng(0)
    before = generator.normal(0, 5, 40_000)
    removed = np.arange(40_000) < 20_000
    after = before - 1.5 * removed + generator.normal(0, 1, 40_000)
    lost = confidence_lost(before, after)
    found = area_under(roc_curve(lost[removed], lost[~removed]))
    assert found == pytest.approx(stats.norm.cdf(1.5 / np.sqrt(2)), abs=0.01)
    alone = area_under(roc_curve(-after[removed], -after[~removed]))
    assert alone < 0.62


def test_a_model_does_not_differ_from_itself():
    before = np.random.default_rng(0).normal(0, 1, 20)
    lost = confidence_lost(before, before)
    assert is_constant((lost[:10], lost[10:]))


@hypothesis.given(st.floats(-0.5, 1.5), st.integers(0, 100))
def test_an_interpolated_model_has_the_share_it_was_made_with(share, seed):
    inside, outside = np.random.default_rng(seed).normal(0, 3, (2, 30))
    between = outside + share * (inside - outside)
    found = interpolation_terms(between, inside, outside).sum()
    assert found == pytest.approx(share, abs=1e-9)


def test_equal_ends_have_no_share():
    ends = np.ones(4)
    np.testing.assert_array_equal(interpolation_terms(ends, ends, ends), np.zeros(4))


def test_the_raw_model_has_the_whole_share_and_retrained_ones_none(world):
    (test,) = run_audit(world, kinds=("interpolated",)).tests
    assert test.values["raw"] == pytest.approx(1.0)
    assert abs(test.values["honest"]) < 0.4
    assert abs(np.mean(test.retrained)) < 0.2
    assert test.verdicts["raw"] == "fail"
    # A masked logit is further from the raw model than any retrained one.
    assert test.values["mask_logit"] < -1
    assert test.verdicts["mask_logit"] == "fail"
