"""Errors against the spread of repeated samples, and against loops."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.extra import numpy as hnp

from fuprune.audit.probe import Probes, _area_draft
from fuprune.audit.roc import find_by_attack
from fuprune.audit.sampling import area_error, paired_error, placements
from tests import reference_audit

SCORES = hnp.arrays(
    np.float64, st.integers(1, 20), elements=st.integers(-4, 4).map(float)
)


@hypothesis.given(SCORES, SCORES)
def test_placements_average_to_the_area(members, non_members):
    below, above = placements(members, non_members)
    expected = reference_audit.area_by_pairs(members, non_members)
    assert below.mean() == pytest.approx(expected)
    assert above.mean() == pytest.approx(expected)


def test_area_error_matches_delongs_loop():
    generator = np.random.default_rng(0)
    members = generator.normal(1, 1, (4, 15))
    non_members = generator.normal(0, 1, (4, 25))
    expected = reference_audit.delong_error(members, non_members)
    # Half an image is added in either group, for four models against all four.
    added = (1 + 1 / 4) / (1 + 1 / 3) * (0.5 / 15**2 + 0.5 / 25**2)
    found = area_error(
        [placements(*pair) for pair in zip(members, non_members, strict=True)]
    )
    assert found**2 - added == pytest.approx(expected**2)


def test_area_error_is_the_spread_over_samples_of_images():
    """Two models that share most of what makes an image hard."""
    generator = np.random.default_rng(0)

    def draw():
        hard = [generator.normal(1, 1, 80), generator.normal(0, 1, 120)]
        return [
            [group + generator.normal(0, 0.5, group.size) for group in hard]
            for _ in range(3)
        ]

    differences, errors = [], []
    for _ in range(400):
        (a, b, further) = draw()
        placed = [placements(*one) for one in (a, b, further)]
        areas = [members.mean() for members, _ in placed]
        differences.append(areas[2] - (areas[0] + areas[1]) / 2)
        errors.append(area_error(placed[:2]))
    assert np.mean(errors) == pytest.approx(np.std(differences), rel=0.2)


def test_paired_error_is_the_spread_over_samples_of_images():
    generator = np.random.default_rng(0)
    differences, errors = [], []
    for _ in range(600):
        ease = generator.uniform(0, 1, 150)
        right = generator.random((4, 150)) < ease
        differences.append(right[3].mean() - right[:3].mean())
        errors.append(paired_error(right[:3]))
    assert np.mean(errors) == pytest.approx(np.std(differences), rel=0.1)


def test_models_that_agree_everywhere_still_have_an_error():
    assert 0 < paired_error(np.ones((3, 50))) < 0.05
    assert 0 < area_error([(np.ones(50), np.ones(50))] * 3) < 0.05
    assert paired_error(np.ones((1, 50))) == 0


def scored(seed):
    """`[6]` members and `[9]` non-members, mostly in the right order."""
    generator = np.random.default_rng(seed)
    return generator.normal(1.5, 1, 6), generator.normal(0, 1, 9)


def test_attacks_and_probes_are_given_the_paired_error_of_their_areas():
    """Not the error of an area of one half, which knows nothing of the models."""
    scores = {
        name: scored(i)
        for i, name in enumerate(("raw", "retrained_0", "retrained_1", "retrained_2"))
    }
    retrained = [scores[f"retrained_{i}"] for i in range(3)]
    expected = area_error([placements(*one) for one in retrained])
    (attack,) = find_by_attack("loss", scores, kind="membership", attacker="one").tests
    assert attack.resolution == expected
    place = ("linear", "last")
    found = {
        name: Probes({place: placements(*pair)}, np.zeros(1))
        for name, pair in scores.items()
    }
    probe = _area_draft(found, "probe", [place], "Is it there?")
    np.testing.assert_allclose(probe.resolution, expected, rtol=1e-12)
    # Telling less than retraining does is a trace as well.
    assert probe.higher_is == attack.higher_is == "two_sided"
    np.testing.assert_allclose(
        [probe.values["raw"], *probe.retrained],
        [attack.values["raw"], *attack.retrained],
        rtol=1e-12,
    )
