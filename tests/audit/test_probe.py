import numpy as np
import pytest

from fuprune.audit.options import ProbeOptions
from fuprune.audit.probe import few_shot_recognition, held_out_scores
from fuprune.audit.roc import area_under, roc_curve

OPTIONS = ProbeOptions(draws=5, companions=30)
CLASSIFIERS = ("linear", "neighbours", "network")


def clusters(separation, per_class=60, seed=0):
    """Features of three classes; the forgotten one is `separation` from class 0."""
    generator = np.random.default_rng(seed)
    centres = np.zeros((3, 8))
    centres[1, 0], centres[2, 1] = 8.0, separation
    labels = np.repeat(np.arange(3), per_class)
    return centres[labels] + generator.normal(0, 1, (len(labels), 8)), labels


def area(features, labels, classifier):
    forgotten = labels == 2
    scores = held_out_scores(features, labels, forgotten, classifier, OPTIONS, 0)
    return area_under(roc_curve(scores[forgotten], scores[~forgotten]))


def few_shot(separation):
    return few_shot_recognition(*clusters(separation), (2,), OPTIONS, 0).mean()


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_separated_class_is_told_entirely(classifier):
    assert area(*clusters(12.0), classifier) > 0.99


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_class_that_only_its_own_images_explain_is_not_told(classifier):
    """Random labels: a classifier that was scored on what it saw would tell them."""
    generator = np.random.default_rng(0)
    features = generator.normal(0, 1, (300, 60))
    labels = generator.integers(0, 3, 300)
    assert abs(area(features, labels, classifier) - 0.5) < 0.12


def test_neighbours_and_networks_see_what_no_line_separates():
    """The forgotten class surrounds the others: a ring around a disc."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 80)
    radius = np.where(labels == 2, 4.0, 1.0) + generator.normal(0, 0.3, 240)
    angle = generator.uniform(0, 2 * np.pi, 240)
    features = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    assert area(features, labels, "linear") < 0.7
    assert area(features, labels, "neighbours") > 0.95
    assert area(features, labels, "network") > 0.9


def test_few_shots_recover_a_separated_class_and_chance_otherwise():
    assert few_shot(12.0) > 0.95
    assert few_shot(0.0) < 0.6
    assert few_shot(3.0) < few_shot(12.0) - 0.05


def test_images_that_a_head_was_taught_are_not_asked():
    features, labels = clusters(12.0, per_class=3)
    options = OPTIONS._replace(shots=3)
    found = few_shot_recognition(features, labels, (2,), options, 0)
    assert np.isnan(found).all()


def test_probes_are_a_function_of_their_seed():
    features, labels = clusters(2.0)
    again = [
        held_out_scores(features, labels, labels == 2, "network", OPTIONS, 3)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*again)


def test_unknown_classifier_is_named():
    with pytest.raises(ValueError, match="'forest'"):
        area(*clusters(1.0), "forest")


@pytest.mark.parametrize("per_class", [1, 2])
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_fewer_images_than_neighbours_or_folds_are_still_scored(classifier, per_class):
    features, labels = clusters(12.0, per_class)
    forgotten = labels == 2
    scores = held_out_scores(features, labels, forgotten, classifier, OPTIONS, 0)
    assert scores.shape == (3 * per_class,) and np.isfinite(scores).all()
