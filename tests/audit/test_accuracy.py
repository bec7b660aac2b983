import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from fuprune.audit import accuracy


def test_equal_answers_have_no_distance():
    right, images = np.array([9, 8, 0]), np.array([10, 10, 10])
    assert accuracy.accuracy_divergence(right, right, images) == 0
    assert accuracy.greatest_difference(right, right, images) == 0


def test_divergence_matches_a_computation_by_hand():
    # (k + 1/2) / (n + 1): 8.5/11 and 3.5/11 against 5.5/11 twice.
    p = np.array([8.5, 3.5]) / 12
    expected = np.sum(p * np.log(p / 0.5))
    found = accuracy.accuracy_divergence([8, 3], [5, 5], [10, 10])
    assert found == pytest.approx(expected)


def test_divergence_is_large_where_only_retraining_forgot():
    images = np.full(3, 1000)
    forgot, remembers = np.array([900, 900, 0]), np.array([900, 900, 900])
    kept = accuracy.accuracy_divergence(remembers, forgot, images)
    lost = accuracy.accuracy_divergence(forgot, remembers, images)
    assert np.isfinite(kept) and kept > 4 * lost


@hypothesis.given(st.integers(10, 10_000))
def test_divergence_hangs_on_the_number_of_images_and_on_no_constant(images):
    per_class = np.full(2, images)
    found = accuracy.accuracy_divergence([images, images], [images, 0], per_class)
    p = np.array([0.5, 0.5])
    q = np.array([images + 0.5, 0.5]) / (images + 1)
    assert found == pytest.approx(np.sum(p * np.log(p / q)))
    assert found < 0.5 * np.log(images + 1)


def test_classes_without_test_images_are_left_out():
    images = np.array([4, 0, 4])
    assert accuracy.greatest_difference([2, 0, 4], [1, 0, 4], images) == 0.25
    assert len(accuracy.accuracy_distribution([2, 0, 4], images)) == 2


def test_noise_alone_reaches_less_on_a_larger_test_set():
    def reach(images):
        retrained = [np.array([0.9, 0.8]) * images, np.array([0.95, 0.75]) * images]
        return accuracy.sampling_excess(
            accuracy.greatest_difference,
            retrained,
            np.array([images, images]),
            generator=np.random.default_rng(0),
            confidence=0.95,
        )

    assert reach(20) > 2 * reach(2000) > 0
