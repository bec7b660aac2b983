"""What an audit hands over: one `Evidence` per figure, and the `AuditReport` of all.

Both are plain values that go to JSON and back without loss, so that a report can be
rebuilt from the file alone. There is no overall score: a failure cannot be averaged
away.
"""

import json
import math
import reprlib
import sys
from typing import Any, NamedTuple

from fuprune.errors import InputError

PASS = "pass"
FAIL = "fail"
CANNOT_TELL = "cannot tell"
VERDICTS = (PASS, FAIL, CANNOT_TELL)

WORSE = "worse"
BETTER = "better"
TWO_SIDED = "two_sided"
DIRECTIONS = (WORSE, BETTER, TWO_SIDED)

FORMAT = 1


class Evidence(NamedTuple):
    """One figure, measured on every model, with the spread among retrained models."""

    name: str  # e.g. "probe_accuracy"
    kind: str  # the group: accuracy, membership, shadow, likelihood_ratio, ...
    question: str  # one sentence a reader understands
    unit: str  # "fraction", "steps", "nats", "distance"
    higher_is: str  # "worse", "better" or "two_sided": which side of retraining fails
    values: dict[str, float]  # candidates, "raw" and, where it applies, "random_init"
    retrained: list[float]  # one per retrained seed
    interval: list[float | None] | None  # [low, high], None is unbounded or no interval
    verdicts: dict[str, str]  # the same keys as `values`
    notes: list[str]


class AuditReport(NamedTuple):
    """Everything an audit found.

    `detail` holds what a report draws; models are the candidates, "raw" and
    "retrained_0", "retrained_1", and so on:
      class_accuracies: {model: [U]}, null for a class without test images.
      confusions: {model: [U][U]}, rows are true classes.
      test_images_per_class: [U].
      roc: {attack: {model: {"false_positives": [...], "true_positives": [...]}}}.
      shadow_models: [{"members", "member_accuracy", "non_member_accuracy"}].
      relearn: {"level", "curves": {model: {"steps": [...], "accuracy": [...]}}}.
      cka: {model: {layer: mean linear CKA to the retrained models}}.
      speed: [{"name", "rounds", "seconds", "speedup_rounds", "speedup_seconds"}].
      left_out: {candidate: why it could not be judged}.
    Keys of kinds that were not asked for are absent.
    """

    classes: list[int]  # the forgotten classes
    candidates: list[str]  # names, in the order given
    tests: list[Evidence]
    detail: dict[str, Any]  # per-class accuracies, confusions, ROC curves, CKA, ...
    settings: dict[str, Any]  # what the audit was run with, sample sizes included

    def to_json(self) -> str:
        """Returns the report as strict JSON text (no NaN, no infinity).

        Raises:
          ValueError: the report holds a number that JSON has no word for.
        """
        plain = {"format": FORMAT, **self._asdict()}
        plain["tests"] = [test._asdict() for test in self.tests]
        return json.dumps(plain, allow_nan=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "AuditReport":
        """Reads what `to_json` wrote, and nothing else.

        Args:
          text: the JSON text.

        Returns:
          A report equal to the one that was written.

        Raises:
          ValueError: the text is no audit report of this format; one sentence says
            what is wrong with it.
        """
        try:
            plain = json.loads(
                text, parse_constant=_no_constant, parse_float=_finite_float
            )
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the audit report is not JSON ({error}); run the audit phase again"
            ) from error
        plain = _checked(plain, {"format", *cls._fields}, "the audit report")
        found = plain.pop("format")
        if isinstance(found, bool) or found != FORMAT:
            raise InputError(
                f"the audit report is not of format {FORMAT}; run the audit phase again"
            )
        for field, kind in _REPORT_TYPES.items():
            _typed(plain[field], kind, f"{field!r} of the audit report")
        for label in plain["classes"]:
            if isinstance(label, bool):
                raise InputError(f"class {label} of the audit report is no number")
            _typed(label, int, f"class {_shown(label)} of the audit report")
        for name in plain["candidates"]:
            _typed(name, str, f"candidate {_shown(name)} of the audit report")
        return cls(**{**plain, "tests": [_evidence(test) for test in plain["tests"]]})


_REPORT_TYPES = {
    "classes": list,
    "candidates": list,
    "tests": list,
    "detail": dict,
    "settings": dict,
}
_EVIDENCE_TYPES = {
    "name": str,
    "kind": str,
    "question": str,
    "unit": str,
    "higher_is": str,
    "values": dict,
    "retrained": list,
    "interval": (list, type(None)),
    "verdicts": dict,
    "notes": list,
}


def _evidence(plain: Any) -> Evidence:
    plain = _checked(plain, set(Evidence._fields), "a test of the audit report")
    for field, kind in _EVIDENCE_TYPES.items():
        _typed(plain[field], kind, f"{field!r} of a test in the audit report")
    if plain["higher_is"] not in DIRECTIONS:
        raise InputError(
            f"higher_is is {_shown(plain['higher_is'])}; it must be one of {DIRECTIONS}"
        )
    name = _shown(plain["name"])
    known = all(verdict in VERDICTS for verdict in plain["verdicts"].values())
    if not known or set(plain["verdicts"]) != set(plain["values"]):
        raise InputError(
            f"test {name} has verdicts {_shown(plain['verdicts'])}; every value "
            f"needs one of {VERDICTS}"
        )
    numbers = [*plain["values"].values(), *plain["retrained"]]
    if not all(_is_number(number) for number in numbers):
        raise InputError(
            f"test {name} has the figures {_shown(numbers)}; all must be numbers"
        )
    for note in plain["notes"]:
        _typed(note, str, f"note {_shown(note)} of test {name}")
    bounds = plain["interval"]
    if bounds is not None and not (
        len(bounds) == 2 and all(bound is None or _is_number(bound) for bound in bounds)
    ):
        raise InputError(
            f"test {name} has the interval {_shown(bounds)}; it must be null or "
            "[low, high] of numbers and nulls"
        )
    return Evidence(**plain)


def _checked(plain: Any, fields: set[str], what: str) -> dict[str, Any]:
    _typed(plain, dict, what)
    if set(plain) != fields:
        raise InputError(
            f"{what} has the keys {_shown(sorted(plain))}, not {sorted(fields)}"
        )
    return dict(plain)


def _typed(value: Any, kind: Any, what: str) -> None:
    if not isinstance(value, kind):
        raise InputError(f"{what} is a {type(value).__name__}, which it must not be")


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        # A whole number may be too large for a float.
        and abs(value) <= sys.float_info.max
    )


def _shown(value: Any) -> str:
    """A value from a file, on one line of a message."""
    return reprlib.repr(value)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{reprlib.repr(digits)} is too large a number")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"the audit report holds {name}, which strict JSON does not allow")
