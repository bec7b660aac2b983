import numpy as np
import pytest
from scipy import stats

from fuprune.audit import likelihood_ratio, roc


def gaussian_world(shift, num_references, num_images=4000):
    """Scores of images of different difficulty; being trained on adds `shift`."""
    generator = np.random.default_rng(0)
    difficulty = generator.normal(0, 5, num_images)
    trained = np.arange(num_images) < num_images // 2
    scores = difficulty + shift * trained + generator.normal(0, 1, num_images)
    members = generator.random((num_references, num_images)) < 0.5
    members[0], members[1] = True, False
    references = difficulty + shift * members + generator.normal(0, 1, members.shape)
    return scores, trained, references, members


def area(ratios, trained):
    curve = roc.roc_curve(ratios[trained], ratios[~trained])
    return roc.area_under(curve), roc.true_positives_at(curve, 0.01)


def test_online_ratio_reaches_the_closed_form_of_two_gaussians():
    scores, trained, references, members = gaussian_world(1.5, 200)
    found, low = area(
        likelihood_ratio.online_scores(scores, references, members), trained
    )
    assert found == pytest.approx(stats.norm.cdf(1.5 / np.sqrt(2)), abs=0.015)
    assert low == pytest.approx(stats.norm.sf(stats.norm.isf(0.01) - 1.5), abs=0.05)


def test_offline_ratio_reaches_the_closed_form_with_many_references():
    scores, trained, references, members = gaussian_world(1.5, 200)
    outs = references - 1.5 * members
    found, _ = area(likelihood_ratio.offline_scores(scores, outs), trained)
    assert found == pytest.approx(stats.norm.cdf(1.5 / np.sqrt(2)), abs=0.015)


def test_ratio_sees_what_a_threshold_on_the_score_does_not():
    scores, trained, references, members = gaussian_world(1.5, 8)
    ratio, _ = area(
        likelihood_ratio.online_scores(scores, references, members), trained
    )
    threshold, _ = area(scores, trained)
    assert threshold < 0.62 < 0.75 < ratio


def test_online_ratio_is_the_difference_of_log_densities():
    scores = np.array([0.3])
    references = np.concatenate([np.linspace(1, 2, 20), np.linspace(-1, 0.5, 20)])
    members = (np.arange(40) < 20)[:, None]
    inside, outside = references[:20], references[20:]
    expected = stats.norm.logpdf(
        0.3, inside.mean(), inside.std(ddof=1)
    ) - stats.norm.logpdf(0.3, outside.mean(), outside.std(ddof=1))
    found = likelihood_ratio.online_scores(scores, references[:, None], members)
    assert found[0] == pytest.approx(expected)


def test_one_reference_is_enough_for_the_offline_order():
    found = likelihood_ratio.offline_scores([1.0, 5.0], [[0.0, 4.5]])
    assert found[0] > found[1]


def test_missing_references_are_reported():
    with pytest.raises(ValueError, match="no reference model"):
        likelihood_ratio.online_scores([1.0], [[0.0]], [[True]])


def test_every_model_is_attacked_with_the_same_number_of_references():
    generator = np.random.default_rng(0)
    scores = generator.normal(0, 1, 6)
    references = list(generator.normal(0, 1, (4, 6)))
    by_hand = np.zeros(6)
    for left_out in range(4):
        three = [one for i, one in enumerate(references) if i != left_out]
        by_hand += likelihood_ratio.offline_scores(scores, three) / 4
    found = likelihood_ratio.mean_offline_scores(scores, references, 3)
    np.testing.assert_allclose(found, by_hand)
    np.testing.assert_allclose(
        likelihood_ratio.mean_offline_scores(scores, references[:3], 3),
        likelihood_ratio.offline_scores(scores, references[:3]),
    )
