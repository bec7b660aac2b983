import numpy as np
import pytest

from fuprune.audit.probe import linear_probe


def clusters(separation, per_class=60, seed=0):
    """Features of three classes; the forgotten one is `separation` from class 0."""
    generator = np.random.default_rng(seed)
    centres = np.zeros((3, 8))
    centres[1, 0], centres[2, 1] = 8.0, separation
    labels = np.repeat(np.arange(3), per_class)
    return centres[labels] + generator.normal(0, 1, (len(labels), 8)), labels


def probed(separation):
    features, labels = clusters(separation)
    test_features, test_labels = clusters(separation, seed=1)
    return linear_probe(
        features,
        labels,
        test_features,
        test_labels,
        (2,),
        generator=np.random.default_rng(0),
        draws=5,
    )


def test_separated_class_is_recovered_entirely():
    found = probed(12.0)
    assert found.accuracy == pytest.approx(1.0, abs=0.02)
    assert found.area == pytest.approx(1.0, abs=0.01)
    assert found.few_shot_accuracy > 0.95


def test_class_without_features_is_recovered_by_chance_only():
    found = probed(0.0)
    assert found.accuracy < 0.75
    assert found.few_shot_accuracy < 0.6


def test_few_shots_need_more_separation_than_the_whole_set():
    found = probed(3.0)
    assert found.few_shot_accuracy < found.accuracy - 0.05


def test_probe_is_a_function_of_its_seed():
    assert probed(2.0) == probed(2.0)
