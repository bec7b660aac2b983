import numpy as np
import pytest

from fuprune.audit import membership
from tests import reference_audit


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
