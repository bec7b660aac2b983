"""Probes of features whose classes lie where they were put."""

import numpy as np
import pytest

from fuprune.audit.probe import (
    few_shot,
    held_out_scores,
    linear_cka,
    placements,
    prototype,
)
from tests import reference_audit


def clusters(separation, per_class=60, seed=0):
    """Features of three classes; the forgotten one is `separation` from class 0."""
    generator = np.random.default_rng(seed)
    centres = np.zeros((3, 8))
    centres[:, 2] = 8.0
    centres[1, 0], centres[2, 1] = 8.0, separation
    labels = np.repeat(np.arange(3), per_class)
    return centres[labels] + generator.normal(0, 1, (len(labels), 8)), labels


def area(features, labels):
    """Its own mean is the share of pairs in order."""
    scores = held_out_scores(features, labels, labels == 2, 0)
    members, others = scores[labels == 2], scores[labels != 2]
    found = placements(members, others).mean()
    assert found == pytest.approx(reference_audit.area_by_pairs(members, others))
    return found


@pytest.mark.parametrize(
    ("separation", "low", "high"), [(12, 0.99, 1), (0, 0.65, 0.85)]
)
def test_separated_class_is_told_and_another_is_not(separation, low, high):
    # At 0 it lies on one of two others, so three pairs in four are in order.
    assert low <= area(*clusters(float(separation))) <= high


def test_class_that_only_its_own_images_explain_is_not_told():
    """Random labels: a probe that was scored on what it saw would tell them."""
    generator = np.random.default_rng(0)
    features = generator.normal(0, 1, (300, 60))
    assert abs(area(features, generator.integers(0, 3, 300)) - 0.5) < 0.12


def test_probes_are_functions_of_their_seed_and_blind_to_scale():
    features, labels = clusters(2.0)
    for probe in (
        lambda x, seed: held_out_scores(x, labels, labels == 2, seed),
        lambda x, seed: few_shot(x, labels, (2,), seed),
        lambda x, seed: prototype(x, labels, (2,), seed),
    ):
        np.testing.assert_array_equal(probe(features, 3), probe(features, 3))
        np.testing.assert_allclose(probe(features, 3), probe(features * 8, 3))


@pytest.mark.parametrize("probe", [few_shot, prototype])
def test_a_few_images_find_a_separated_class(probe):
    far, near, none = (
        np.mean(probe(*clusters(at, 200), (2,), 0)) for at in (12.0, 3.0, 0.0)
    )
    assert far > 0.95 and none < 0.6 and none < near < far


def test_cka_is_that_of_the_gram_matrices_and_blind_to_rotation():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(20, 4)), generator.normal(size=(20, 7))
    assert linear_cka(x, y) == pytest.approx(reference_audit.kernel_cka(x, y))
    turned = x @ np.linalg.qr(generator.normal(size=(4, 4)))[0] * 3 + 1
    assert linear_cka(x, turned) == pytest.approx(1)
    flat = np.ones((20, 3))
    assert linear_cka(flat, flat) == 1 and linear_cka(flat, x) == 0
