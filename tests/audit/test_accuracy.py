import numpy as np
import pytest

from fuprune.audit import accuracy


def test_confusion_counts_true_by_row_and_predicted_by_column():
    confusion = accuracy.confusion_matrix([0, 0, 1, 2], [0, 1, 1, 0], 3)
    np.testing.assert_array_equal(confusion, [[1, 1, 0], [0, 1, 0], [1, 0, 0]])


def test_accuracies_of_sets_and_classes():
    confusion = np.array([[8, 2, 0], [1, 3, 0], [0, 0, 0]])
    np.testing.assert_allclose(
        accuracy.class_accuracies(confusion), [0.8, 0.75, np.nan]
    )
    assert accuracy.accuracy_on(confusion, [0]) == 0.8
    assert accuracy.accuracy_on(confusion, [0, 1]) == pytest.approx(11 / 14)


def test_equal_accuracies_have_no_distance():
    values = np.array([0.9, 0.8, 0.0])
    assert accuracy.accuracy_divergence(values, values) == 0
    assert accuracy.greatest_difference(values, values) == 0


def test_divergence_matches_a_hand_computation():
    # P = (2/3, 1/3), Q = (1/2, 1/2).
    expected = 2 / 3 * np.log(4 / 3) + 1 / 3 * np.log(2 / 3)
    found = accuracy.accuracy_divergence([0.8, 0.4], [0.9, 0.9])
    assert found == pytest.approx(expected, abs=1e-5)


def test_divergence_is_large_where_only_retraining_forgot():
    forgot, remembers = np.array([0.9, 0.9, 0.0]), np.array([0.9, 0.9, 0.9])
    kept = accuracy.accuracy_divergence(remembers, forgot)
    lost = accuracy.accuracy_divergence(forgot, remembers)
    assert np.isfinite(kept) and kept > 10 * lost


def test_classes_without_test_images_are_left_out():
    a, b = np.array([0.5, np.nan, 1.0]), np.array([0.25, np.nan, 1.0])
    assert accuracy.greatest_difference(a, b) == 0.25
    assert len(accuracy.accuracy_distribution(a)) == 2


def test_noise_alone_reaches_less_on_a_larger_test_set():
    retrained = [np.array([0.9, 0.8]), np.array([0.92, 0.78])]

    def reach(images):
        return accuracy.sampling_excess(
            accuracy.greatest_difference,
            retrained,
            np.array([images, images]),
            generator=np.random.default_rng(0),
            confidence=0.95,
        )

    assert reach(20) > 3 * reach(2000) > 0
