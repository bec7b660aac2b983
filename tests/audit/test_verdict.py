import numpy as np
import pytest

from fuprune.audit.verdict import binomial_error, inside, judge, prediction_interval


def judged(values, retrained, **options):
    options = {"higher_is": "worse", "positive_control": None, **options}
    return judge("figure", values, retrained, kind="k", question="q?", **options)


def test_two_sided_interval_is_students_for_one_new_draw():
    # t(0.975, 2) = 4.302653; mean 2, deviation 1, sqrt(1 + 1/3).
    low, high = prediction_interval([1.0, 2.0, 3.0])
    half = 4.302652729 * 1.0 * np.sqrt(4 / 3)
    np.testing.assert_allclose([low, high], [2 - half, 2 + half], rtol=1e-8)


def test_one_sided_interval_is_open_to_the_harmless_side():
    # t(0.95, 2) = 2.919986.
    half = 2.91998558 * np.sqrt(4 / 3)
    low, high = prediction_interval([1.0, 2.0, 3.0], higher_is="worse")
    assert low is None
    np.testing.assert_allclose(high, 2 + half, rtol=1e-8)
    low, high = prediction_interval([1.0, 2.0, 3.0], higher_is="better")
    assert high is None
    np.testing.assert_allclose(low, 2 - half, rtol=1e-8)


def test_interval_is_never_narrower_than_the_sample_resolves():
    low, high = prediction_interval([0.5, 0.5, 0.5], resolution=0.1)
    np.testing.assert_allclose([low, high], [0.5 - 0.195996, 0.5 + 0.195996], rtol=1e-5)
    assert prediction_interval([0.5, 0.5, 0.5]) == [0.5, 0.5]


def test_interval_holds_what_noise_can_reach_and_keeps_to_the_bounds():
    low, high = prediction_interval([0.0, 0.0], reachable=0.3, bounds=(0.0, 1.0))
    assert (low, high) == (0.0, 0.3)
    assert prediction_interval([0.0, 1.0], bounds=(0.0, 1.0)) == [0.0, 1.0]


def test_logarithmic_interval_is_symmetric_in_ratios_and_positive():
    low, high = prediction_interval([10.0, 20.0, 40.0], logarithmic=True)
    assert low > 0
    np.testing.assert_allclose(low * high, 20.0**2, rtol=1e-9)


@pytest.mark.parametrize("n", [3, 5])
def test_leave_one_out_interval_covers_a_further_model_as_often_as_it_says(n):
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        own = generator.normal(1.0, 0.2, n + 1)
        distances = own[:, None] + own[None, :]
        reference = [
            np.mean([distances[i, j] for j in range(n) if j != i]) for i in range(n)
        ]
        candidate = np.mean(distances[n, :n])
        interval = prediction_interval(reference, leave_one_out=True, confidence=0.9)
        covered += inside(candidate, interval)
    assert abs(covered / 2000 - 0.9) < 0.025


def test_inside_passes_and_outside_fails():
    found = judged({"near": 0.5, "far": 9.0}, [0.4, 0.5, 0.6])
    assert found.verdicts == {"near": "pass", "far": "fail"}


def test_only_the_bad_side_fails_a_one_sided_test():
    found = judged({"low": -9.0, "high": 9.0}, [0.4, 0.5, 0.6], higher_is="better")
    assert found.verdicts == {"low": "fail", "high": "pass"}


@pytest.mark.parametrize("retrained", [[], [0.5]])
def test_fewer_than_two_retrained_models_cannot_tell(retrained):
    found = judged({"a": 0.5, "b": 100.0}, retrained)
    assert found.interval is None
    assert set(found.verdicts.values()) == {"cannot tell"}
    assert "2 or more are needed" in found.notes[0]


def test_two_retrained_models_cannot_tell_about_distances():
    found = judged({"a": 0.5}, [0.4, 0.4], leave_one_out=True)
    assert found.verdicts == {"a": "cannot tell"}


def test_test_without_power_cannot_tell_but_still_fails_an_outlier():
    found = judged(
        {"near": 0.5, "far": 9.0, "raw": 0.52},
        [0.4, 0.5, 0.6],
        positive_control="raw",
    )
    assert found.verdicts == {
        "near": "cannot tell",
        "far": "fail",
        "raw": "cannot tell",
    }
    assert any("remembering" in note for note in found.notes)


def test_undecidable_sample_cannot_tell_and_says_why():
    found = judged({"a": 9.0}, [0.4, 0.5, 0.6], undecidable="too few images")
    assert found.verdicts == {"a": "cannot tell"}
    assert "too few images" in found.notes


def test_binomial_error_is_positive_for_rates_of_zero_and_one():
    assert binomial_error([0.0, 0.0], 36) == pytest.approx(0.0363, abs=1e-4)
    assert binomial_error([1.0], 36) == pytest.approx(0.0363, abs=1e-4)
    np.testing.assert_allclose(binomial_error([0.5], 10000), 0.005, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "word"), [({"higher_is": "bad"}, "bad"), ({"confidence": 1.0}, "1.0")]
)
def test_wrong_settings_are_named(options, word):
    with pytest.raises(ValueError, match=word):
        prediction_interval([1.0, 2.0], **options)
