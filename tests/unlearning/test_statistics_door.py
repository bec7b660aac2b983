"""Class statistics from outside are judged before they are merged."""

import types

import numpy as np
import pytest

from fuprune.unlearning.activations import ClassActivations, check_statistics

HONEST = np.array([[1, 2], [0, 0], [3, 4]], np.float32)
COUNTS = np.array([2, 0, 5], np.int32)


def statistics(total=None, counts=COUNTS):
    return ClassActivations({"conv1": HONEST} if total is None else total, counts)


def floats(*rows):
    return {"conv1": np.array(rows, np.float32)}


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        (statistics(counts=np.array([2, 0, -5], np.int32)), "negative count, -5"),
        (statistics(counts=np.array([2, 0, 500], np.int32)), "502 examples are above"),
        (statistics(counts=np.array([2, 0, 5], np.float32)), "is float32"),
        (statistics(counts=np.array([2, 5], np.int32)), "shape (2,), not"),
        (statistics(floats([-1, -1], [0, 0], [1, 1])), "negative sum"),
        (statistics(floats([1, 1], [1, 1], [1, 1])), "without examples"),
        (statistics(floats([np.nan, 1], [0, 0], [1, 1])), "NaN"),
        (statistics(floats([np.inf, 1], [0, 0], [1, 1])), "NaN"),
        (statistics(floats([9, 9], [0, 0], [0, 0])), "norm is above 2"),
        (statistics(floats([1, 2, 3], [0, 0, 0])), "shape (2, 3)"),
        (statistics({"conv1": HONEST.astype(np.float64)}), "is float64"),
        (statistics({"conv1": HONEST.astype(np.complex64)}), "complex64"),
        (statistics({"conv1": np.array([[None] * 2] * 3)}), "is object"),
        (statistics({"conv1": "abc"}), "is no array"),
        (statistics({"conv2": HONEST}), "conv1 is missing"),
        (statistics([]), "conv1 is missing"),
        (statistics("conv1"), "total is no array"),
        (statistics({"conv1": HONEST, "x": np.zeros(1)}), "x is float64"),
        (statistics({1: np.zeros(1), "a": np.zeros(1)}), "not a tree"),
        (statistics({"conv1": {10**5000: np.zeros(1)}}), "not a tree"),
        (types.SimpleNamespace(total={}), "not class statistics"),
        (None, "not class statistics"),
    ],
)
def test_door_says_what_is_wrong_with_statistics(upload, reason):
    said = check_statistics(upload, statistics(), 10, clip=2.0)
    assert said is not None and reason in said


def test_door_lets_honest_statistics_with_whole_counts_in():
    assert check_statistics(statistics(), statistics(), 7, clip=2.0) is None
    template = statistics(counts=COUNTS.astype(np.float32))
    assert check_statistics(template, template, 7) is None
    half = statistics(counts=np.array([2, 0, 4.5], np.float32))
    assert "whole" in str(check_statistics(half, template, 7))


def test_reason_is_one_short_printable_line_whatever_the_client_named_things():
    name = "\n2026 client 3 accepted\x1b[2J" + "x" * 500
    upload = statistics({"conv1": HONEST, name: np.zeros(1)})
    said = check_statistics(upload, statistics(), 10)
    assert said is not None and said.isprintable() and len(said) < 200
