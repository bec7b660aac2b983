"""The audit's record goes to JSON and back, and audits of earlier versions are read."""

import dataclasses
import json
import math
import pathlib

import pytest

from fuprune.audit.reading import read
from fuprune.audit.record import (
    DIFFERENT,
    EQUIVALENT,
    NO_DIFFERENCE,
    NO_POWER,
    Audit,
    Curve,
    Judged,
    Row,
)
from fuprune.results import FormatError

ROOT = pathlib.Path(__file__).parents[2]
RAW = Judged([0.9], 0.9, 0.8, 1.0, 0.001, True, False)


def row(name, judged, *, powerless=False, headline=True) -> Row:
    return Row(
        name=name,
        kind="accuracy",
        question="How often?",
        unit="fraction",
        headline=headline,
        harm="higher",
        retrained=[0.0, None],
        models={"mine": judged, "raw": RAW},
        margin=0.1,
        powerless=powerless,
    )


def audit(*rows) -> Audit:
    curves = {"mine": Curve([0, 1], [0.0, 0.5])}
    accuracies: dict[str, list[float | None]] = {"mine": [0.5, None]}
    return Audit(
        "classes", [1], ["mine"], 2, 0.95, list(rows), curves, accuracies, {}, {"a": 1}
    )


SAME = Judged([0.1, None], 0.0, -0.05, 0.05, 1.0, False, True)
NEAR = Judged([0.1], 0.0, -0.2, 0.2, 1.0, False, False)
FAR = Judged([0.9], 0.9, 0.8, 1.0, 0.001, True, False)
UNJUDGED = Judged([0.1], note="no spread")


def test_record_goes_to_json_and_back():
    found = audit(row("a", SAME), row("b", UNJUDGED, headline=False))
    assert read(found.to_json()) == found
    assert found.row("a") == found.rows[0] and found.row("c") is None
    assert SAME.mean == 0.1 and Judged([None]).mean is None
    with pytest.raises(ValueError):
        audit(row("a", Judged([math.nan]))).to_json()


@pytest.mark.parametrize(
    ("rows", "verdict", "names"),
    [
        ([row("a", SAME), row("b", SAME)], EQUIVALENT, []),
        ([row("a", SAME), row("b", NEAR)], NO_DIFFERENCE, []),
        ([row("a", SAME), row("b", FAR), row("c", FAR)], DIFFERENT, ["b", "c"]),
        ([row("a", NEAR, powerless=True)], NO_POWER, []),
        ([row("a", FAR, powerless=True)], DIFFERENT, ["a"]),
        ([row("a", NEAR, powerless=True), row("b", NEAR)], NO_DIFFERENCE, []),
        ([row("a", UNJUDGED), row("b", FAR, headline=False)], "", []),
    ],
)
def test_headline_in_one_word(rows, verdict, names):
    found = audit(*rows)
    assert found.verdict("mine") == verdict
    assert [one.name for one in found.differences("mine")] == names
    assert found.verdict("nobody") == ""


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 1, "format 3 or 2"),
        (("rows", 0, "retrained"), ["0.1"], "rows.0.retrained.0"),
        (("rows", 0, "colour"), "red", "rows.0.colour"),
        (("confidence",), None, "confidence"),
        (("candidates",), "mine", "candidates"),
    ],
)
def test_broken_record_is_named(path, value, message):
    plain = json.loads(audit(row("a", SAME)).to_json())
    place = plain
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    for text, said in ((json.dumps(plain), message), ("[]", ""), ('{"format": 3', "")):
        with pytest.raises(FormatError, match=said):
            read(text)


@pytest.mark.parametrize("run", sorted((ROOT / "results").glob("*/audit.json")))
def test_published_audits_are_read(run):
    found = read(run.read_text())
    assert found.rows and found.candidates and read(found.to_json()) == found
    assert found.verdict("raw") == DIFFERENT
    assert dataclasses.replace(found, rows=[]).verdict("raw") == ""
