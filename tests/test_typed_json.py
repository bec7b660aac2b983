"""Records survive JSON, and nothing else is taken for one."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuprune import typed_json
from fuprune.run.record import Crossing, MethodRow, Times

NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=8)


class Inner(NamedTuple):
    name: str
    value: float | None


class Outer(NamedTuple):
    rows: list[Inner]
    pairs: tuple[int, ...]
    named: dict[str, list[float]]
    anything: Any
    switch: bool


OUTERS = st.builds(
    Outer,
    st.lists(st.builds(Inner, TEXT, st.none() | NUMBER), max_size=3),
    st.lists(st.integers(-(2**53), 2**53), max_size=3).map(tuple),
    st.dictionaries(TEXT, st.lists(NUMBER, max_size=3), max_size=3),
    st.none() | TEXT | st.lists(TEXT, max_size=2),
    st.booleans(),
)


@given(OUTERS)
def test_a_record_comes_back_equal(record):
    assert typed_json.loads(typed_json.dumps(record), Outer, "it") == record


@given(OUTERS, st.sampled_from(Outer._fields))
def test_a_missing_field_is_refused(record, field):
    plain = typed_json.to_plain(record)
    del plain[field]
    with pytest.raises(typed_json.FormatError, match=f"it has no '{field}'"):
        typed_json.from_plain(plain, Outer, "it")


def test_an_unknown_field_is_refused():
    with pytest.raises(typed_json.FormatError, match="an unknown 'extra'"):
        typed_json.from_plain({"name": "a", "value": 1, "extra": 2}, Inner, "it")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, int),
        (True, float),
        (1, bool),
        ("1", float),
        (1.5, int),
        (None, str),
        ({}, list[int]),
        ([], dict[str, int]),
        ([1, "a"], list[int]),
        (10**400, float),
    ],
)
def test_a_value_of_another_type_is_refused(value, kind):
    with pytest.raises(typed_json.FormatError, match="it"):
        typed_json.from_plain(value, kind, "it")


@pytest.mark.parametrize("text", ["NaN", "[1e999]", "{", "[" * 100_000])
def test_what_is_not_strict_json_is_refused(text):
    with pytest.raises(typed_json.FormatError, match="it is not JSON"):
        typed_json.loads(text, Any, "it")


def test_arrays_and_what_is_not_finite_become_plain():
    value = {"a": np.arange(2), "b": (math.nan, np.float32(1)), 3: math.inf}
    assert typed_json.to_plain(value) == {"a": [0, 1], "b": [None, 1.0], "3": None}


def test_a_method_of_a_run_survives():
    crossing = Crossing("retrained", 0.5, 3, 1.5, 100, 20)
    row = MethodRow(
        "fisher",
        "fisher",
        0,
        0.0,
        0.5,
        4,
        9,
        Times(1.0, 2.0),
        5,
        6,
        [crossing],
        None,
        {},
    )
    assert typed_json.loads(typed_json.dumps(row), MethodRow, "it") == row
    assert (row.times.total, row.upload_bytes) == (3.0, 29)
