"""Distances of answers against loops, and measures whose value is known."""

import numpy as np
import pytest

from fuprune.audit import answers
from fuprune.audit.measures import paired_error, to_retraining
from tests import reference_audit


def logits(seed, rows=4, classes=5):
    return np.random.default_rng(seed).normal(0, 3, (rows, classes))


def test_divergences_are_those_of_the_formulas():
    own, other = logits(0), logits(1)
    found = answers.jensen_shannon(own, other)
    expected = [
        reference_audit.jensen_shannon(*p) for p in zip(own, other, strict=True)
    ]
    np.testing.assert_allclose(found, expected)
    p, q = (np.array([reference_audit.softmax(r) for r in x]) for x in (own, other))
    np.testing.assert_allclose(
        answers.total_variation(own, other), np.abs(p - q).sum(axis=1) / 2
    )


def test_scores_of_the_label_are_finite_also_for_masked_logits():
    masked, labels = np.array([[2.0, -np.inf, 1.0]]), np.array([1])
    assert np.isfinite(answers.label_score(masked, labels)).all()
    assert answers.margin(masked, labels) == -answers.MARGIN_LIMIT
    p = reference_audit.softmax([2.0, 0.5, 1.0])[0]
    found = answers.margin([[2.0, 0.5, 1.0]], [0])
    assert found[0] == pytest.approx(np.log(p / (1 - p)))


def test_klom_is_half_for_one_more_model_and_the_formula_for_a_shift():
    generator = np.random.default_rng(0)
    # Images differ; models scatter with deviation 2 around each image's mean.
    images = generator.normal(0, 10, 4000)
    models = {
        f"retrained_{i}": images + generator.normal(0, 2, 4000) for i in range(50)
    }
    models["honest"] = images + generator.normal(0, 2, 4000)
    models["shifted"] = images + 6
    found = answers.klom(models)
    assert found["honest"] == pytest.approx(0.5, abs=0.05)
    assert found["retrained_0"] == pytest.approx(0.5, abs=0.05)
    assert found["shifted"] == pytest.approx(6**2 / (2 * 2**2), rel=0.05)
    assert answers.klom({"a": images, "retrained_0": images}) == {}


def test_tug_of_war_is_the_product_of_the_gaps():
    def hits(share):
        return np.arange(100) < 100 * share

    forgotten = {"mine": hits(0.5), "retrained_0": hits(0.0), "retrained_1": hits(0.0)}
    test = {"mine": hits(0.8), "retrained_0": hits(0.9), "retrained_1": hits(0.9)}
    found = answers.tug_of_war(forgotten, test)
    assert found["mine"] == pytest.approx(0.5 * 0.9)
    assert found["retrained_0"] == 1.0


def test_means_to_retraining_leave_the_model_itself_out():
    found = {"mine": 1.0, "retrained_0": 2.0, "retrained_1": 4.0, "retrained_2": 9.0}
    means = to_retraining(found, lambda a, b: abs(a - b))
    assert means["mine"] == pytest.approx((1 + 3 + 8) / 3)
    assert means["retrained_1"] == pytest.approx((2 + 5) / 2)
    assert to_retraining({"retrained_0": 1.0}, lambda a, b: 0.0) == {}
    assert to_retraining(found, lambda a, b: None) == dict.fromkeys(found)


def test_error_over_images_is_what_other_images_would_change():
    """Models that differ image by image at random: the error is their real spread."""
    generator = np.random.default_rng(0)
    n, size = 5, 400
    errors, spread = [], []
    for _ in range(200):
        right = generator.random((n + 1, size)) < 0.7
        errors.append(paired_error(list(right[:n]), added=0.0))
        spread.append(right[n].mean() - right[:n].mean())
    assert np.mean(errors) == pytest.approx(np.std(spread), rel=0.15)
    same = [np.ones(size)] * n
    assert 0 < paired_error(same) < 2 / size and paired_error(same, added=0.0) == 0
    assert paired_error([np.ones(3)]) == 0 == paired_error([np.ones(0)] * 3)
