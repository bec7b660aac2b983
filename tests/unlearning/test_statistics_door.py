"""Class statistics from outside are judged before they are merged."""

import numpy as np
import pytest

from fuprune.unlearning.activations import check_statistics

HONEST = {"conv1": np.array([[1, 2], [0, 0], [3, 4]], np.float32)}


class Upload(dict):
    """Class statistics in the form that `ClassActivations` has."""

    total = property(lambda self: self["total"])
    num_examples = property(lambda self: self["num_examples"])


def statistics(total=None, counts=None):
    if total is None:
        total = HONEST
    if counts is None:
        counts = np.array([2, 0, 5], np.int32)
    return Upload(total=total, num_examples=counts)


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        (statistics(counts=np.array([2, 0, -5], np.int32)), "negative count, -5"),
        (statistics(counts=np.array([2, 0, 500], np.int32)), "502 examples are above"),
        (statistics(counts=np.array([2, 0, 5.0], np.float32)), "is float32"),
        (statistics(counts=np.array([2, 5], np.int32)), "shape (2,), not"),
        (statistics(total={"conv1": np.full((3, 2), -1, np.float32)}), "negative sum"),
        (statistics(total={"conv1": np.ones((3, 2), np.float32)}), "without examples"),
        (statistics(total={"conv1": np.ones((2, 3), np.float32)}), "shape (2, 3)"),
        (statistics(total={"conv1": np.ones((3, 2))}), "is float64"),
        (statistics(total={"conv1": np.full((3, 2), np.nan, np.float32)}), "NaN"),
        (statistics(total={"conv1": np.full((3, 2), np.inf, np.float32)}), "NaN"),
        (statistics(total={"conv2": np.ones((3, 2), np.float32)}), "conv1 is missing"),
        (statistics(total=[]), "conv1 is missing"),
        (
            statistics(total={"conv1": np.array([[9, 9], [0, 0], [0, 0]], np.float32)}),
            "norm is above 2",
        ),
        ({"total": {}}, "not class statistics"),
        (None, "not class statistics"),
        (statistics(total={}), "conv1 is missing"),
        (statistics(total="conv1"), "total is no array"),
        (statistics(total=HONEST | {"x": np.zeros(1)}), "x is float64"),
        (statistics(total={1: np.zeros(1), "a": np.zeros(1)}), "not a tree"),
        (statistics(total=HONEST | {"x": {10**5000: np.zeros(1)}}), "not a tree"),
        (statistics(total={"conv1": "abc"}), "is no array"),
        (statistics(total={"conv1": np.array([[None] * 2] * 3)}), "is object"),
        (statistics(total={"conv1": np.zeros((3, 2), np.complex64)}), "complex64"),
        (
            statistics(
                total={
                    "conv1": np.ma.masked_invalid(
                        np.array([[1, np.nan], [0, 0], [3, 4]], np.float32)
                    )
                }
            ),
            "1 of 6 NaN",
        ),
    ],
)
def test_door_says_what_is_wrong_with_statistics(upload, reason):
    said = check_statistics(upload, statistics(), 10, clip=2.0)
    assert said is not None and reason in said


def test_door_wants_whole_counts():
    template = statistics(counts=np.array([2, 0, 5], np.float32))
    assert check_statistics(template, template, 7) is None
    half = statistics(counts=np.array([2, 0, 4.5], np.float32))
    assert "whole" in str(check_statistics(half, template, 7))


def test_door_lets_honest_statistics_in():
    assert check_statistics(statistics(), statistics(), 7, clip=2.0) is None


def test_reason_is_one_short_printable_line_whatever_the_client_named_things():
    name = "\n2026 client 3 accepted\x1b[2J" + "x" * 500
    upload = statistics(total=HONEST | {name: np.zeros(1)})
    said = check_statistics(upload, statistics(), 10)
    assert said is not None and said.isprintable() and len(said) < 200
