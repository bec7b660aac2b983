"""The record of an audit: all that audit.json holds and that a report shows.

An audit is a list of rows, one per measure. A row has the values of the retrained
models and of every judged model, one per seed; in the headline also the difference
between their means, with its interval, and two judgements: is it different from
retraining, and is it equivalent to it? All other rows describe.
"""

import json
import re
from typing import Any, TypeVar, dataclass_transform

import pydantic
from pydantic import dataclasses

from fuprune.results import FormatError

FORMAT = 3

DIFFERENT = "different"
EQUIVALENT = "equivalent"
NO_DIFFERENCE = "no difference found"
NO_POWER = "no power here"
VERDICTS = (DIFFERENT, EQUIVALENT, NO_DIFFERENCE, NO_POWER)

RAW = "raw"
# The raw model with the classes' logits hidden, which the audit makes itself.
HIDDEN = "mask_logit"

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True)
def record(cls: type[Kind]) -> type[Kind]:
    """Makes a frozen dataclass whose fields are checked and which has no others."""
    config = pydantic.ConfigDict(extra="forbid")
    return dataclasses.dataclass(frozen=True, config=config)(cls)  # type: ignore


@record
class Judged:
    """One model in one row; the difference is its mean minus retraining's mean."""

    values: list[float | None]  # one per seed; None: the measure has no result
    difference: float | None = None
    low: float | None = None  # of the interval of the difference
    high: float | None = None
    p_value: float | None = None  # after Holm's correction over the headline
    different: bool | None = None  # None: not judged
    equivalent: bool | None = None  # None: not judged, or the row has no margin
    note: str = ""

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that have a value."""
        known = [value for value in self.values if value is not None]
        return sum(known) / len(known) if known else None


@record
class Row:
    """One measure of all models."""

    name: str  # such as "u_accuracy"
    kind: str  # what it is about, one of `KINDS`
    question: str  # one sentence
    unit: str  # "fraction", "nats", "distance" or "log10"
    headline: bool
    harm: str  # which side of retraining is a trace: "higher", "lower" or "either"
    retrained: list[float | None]  # one per retrained model
    models: dict[str, Judged]  # the candidates in order, then the references
    margin: float | None = None  # a difference within it, on either side, is equivalent
    powerless: bool = False  # whether it does not tell the raw model from retraining
    note: str = ""

    def verdict(self, model: str) -> str:
        """One of `VERDICTS`; "" for a model or a row that is not judged."""
        judged = self.models.get(model)
        if judged is None or judged.different is None:
            return ""
        if judged.different:
            return DIFFERENT
        if self.powerless:
            return NO_POWER
        return EQUIVALENT if judged.equivalent else NO_DIFFERENCE


KINDS = ("accuracy", "distance", "relearn", "probe", "membership", "weights")


@record
class Curve:
    """Accuracy on the forgotten classes while a model is taught them again."""

    steps: list[int]  # [L]
    accuracy: list[float]  # [L] mean over draws, and over the seeds of a method


@record
class Audit:
    """Everything an audit found."""

    request: str  # "classes", or "images" for clients and examples
    classes: list[int]  # the forgotten classes; none if the request names images
    candidates: list[str]  # judged methods and controls, each with all of its seeds
    retrained: int  # how many retrained models they are compared with
    confidence: float  # of intervals, and of the headline as a family
    rows: list[Row]
    curves: dict[str, Curve]  # by model, and "retrained"
    # Model, and "retrained" -> accuracy per class on the test set; None: no image.
    class_accuracies: dict[str, list[float | None]]
    left_out: dict[str, str]  # candidate -> why it could not be measured
    settings: dict[str, Any]

    def row(self, name: str) -> Row | None:
        """The row of a measure, None if the audit lacks it."""
        return next((row for row in self.rows if row.name == name), None)

    def headline(self) -> list[Row]:
        """The rows that are judged."""
        return [row for row in self.rows if row.headline]

    def verdict(self, model: str) -> str:
        """The headline in one word, the first that holds.

        "different" if any row is, "equivalent" if all rows are, "no difference found"
        if some row could have shown one, else "no power here"; "" if it was not judged.
        """
        words = {row.verdict(model) for row in self.headline()} - {""}
        if not words:
            return ""
        if DIFFERENT in words:
            return DIFFERENT
        if words == {EQUIVALENT}:
            return EQUIVALENT
        return NO_POWER if words == {NO_POWER} else NO_DIFFERENCE

    def differences(self, model: str) -> list[Row]:
        """The rows of the headline in which a model differs from retraining."""
        return [row for row in self.headline() if row.verdict(model) == DIFFERENT]

    def to_json(self) -> str:
        """Strict JSON text.

        Raises:
          ValueError: the audit holds NaN or an infinity, which JSON lacks.
        """
        plain = {"format": FORMAT, **_ADAPTER.dump_python(self)}
        return json.dumps(plain, allow_nan=False, indent=1) + "\n"


_ADAPTER = pydantic.TypeAdapter(Audit)


def from_plain(plain: dict[str, Any]) -> Audit:
    """The audit that `to_json` wrote, from JSON's own types.

    Raises:
      FormatError: it is not of this format.
    """
    fields = {name: value for name, value in plain.items() if name != "format"}
    try:
        return _ADAPTER.validate_json(json.dumps(fields), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise FormatError(f"audit.json has {place}: {first['msg']}") from None


def method_of(name: str) -> str:
    """The method of a saved model: its name without the seed."""
    return re.sub(r"_seed\d+$", "", name)
