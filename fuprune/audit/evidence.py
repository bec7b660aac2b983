"""What an audit hands over: one `Evidence` per test, and the `AuditReport` of all.

Both are plain values that go to JSON and back without loss, so that a report can be
rebuilt from the file alone. There is no overall score: a failure cannot be averaged
away. What counts as the headline is a small family of tests that is fixed in the code,
and the probability that a retrained model fails any of them is held to one minus the
audit's confidence or less (Holm 1979; `docs/audit.md` says under which conditions).
"""

import json
import math
import reprlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from typing_extensions import TypedDict

from fuprune import results

PASS = "pass"
NOT_TOLD_APART = "not told apart at this power"
FAIL = "fail"
CANNOT_TELL = "cannot tell"
VERDICTS = (PASS, NOT_TOLD_APART, FAIL, CANNOT_TELL)

WORSE = "worse"
BETTER = "better"
TWO_SIDED = "two_sided"
DIRECTIONS = (WORSE, BETTER, TWO_SIDED)

HEADLINE = "headline"
FURTHER = "further"
FAMILIES = (HEADLINE, FURTHER)

# What the kinds of evidence ask about. A family's error is shared out evenly among
# these questions, and within each among its tests, so that a question with many tests
# takes nothing from the others. A kind that is not listed is a question of its own.
QUESTIONS = {
    "answers": ("accuracy", "distance"),
    "membership": (
        *("membership", "shadow", "likelihood_ratio", "unlearned_shadow"),
        *("difference", "interpolated"),
    ),
}
_QUESTION_OF = {kind: name for name, kinds in QUESTIONS.items() for kind in kinds}

FORMAT = 2

# Up to here a retrained model fails the headline with a probability of at most one
# minus the confidence in all simulations (docs/audit.md); above, a little more often.
CALIBRATED_CONFIDENCE = 0.95


def question_of(kind: str) -> str:
    """The question that a kind of evidence asks, one of several or its own."""
    return _QUESTION_OF.get(kind, kind)


class Evidence(NamedTuple):
    """One test: a number for every model, and the spread among retrained models.

    The four verdicts:
      fail: the model is told apart from retraining, counting all tests of the family.
      pass: the model lies in the interval, and what it can differ by from retraining is
        at most the audit's margin, a share of what the raw model differs by.
      not told apart at this power: neither of these. A larger audit might fail it.
      cannot tell: the raw model is not told apart from retraining either, or there is
        nothing to compare.
    """

    name: str  # e.g. "probe_linear_auc"
    kind: str  # the group: accuracy, membership, shadow, likelihood_ratio, ...
    question: str  # one sentence a reader understands
    unit: str  # "fraction", "steps", "nats", "distance"
    higher_is: str  # "worse", "better" or "two_sided": which side of retraining fails
    values: dict[str, float | None]  # candidates, "raw", "random_init"; None: no result
    retrained: list[float | None]  # one per retrained seed; None: no result
    # Where one more retrained model lies with the audit's confidence, this test taken
    # alone: [low, high], None for an open side; None as a whole if there is no spread.
    interval: list[float | None] | None
    verdicts: dict[str, str]  # the same keys as `values`
    notes: list[str]
    family: str = FURTHER  # "headline" counts for the headline, "further" does not
    # The standard error, over the images, of a retrained model against the others.
    sampling_error: float | None = None
    # The least distance from the mean of retraining that this test fails with a
    # probability of 80%, at the level that a family of this size leaves it; None if
    # even the largest possible difference would go unseen more often.
    smallest_difference: float | None = None
    # How likely one more retrained model is at least this far out; the keys of
    # `values`, None without a result.
    p_values: dict[str, float | None] = {}
    # The same, times what its family calls for (Holm); below one minus the confidence
    # the model fails.
    adjusted_p_values: dict[str, float | None] = {}


class Headline(NamedTuple):
    """The verdict on one model over the headline's family of tests."""

    # "fail" if a test of the family does, "pass" if all do, "not told apart at this
    # power" if some test could have failed, "cannot tell" if none could.
    verdict: str
    tests: int  # in the family, with a result for this model
    failed: list[str]  # their names
    smallest_p_value: float | None  # adjusted


class RocCurve(TypedDict):
    """An attack on one model, from the strictest threshold on."""

    false_positives: list[float]
    true_positives: list[float]


class RelearnCurve(TypedDict):
    """One model's accuracy on test images of the forgotten classes, taught again."""

    steps: list[float]  # [L] when the model was looked at
    accuracy: list[float]  # [L]


class RelearnRun(TypedDict):
    """One model, taught again with one choice of images and learning rate."""

    model: str
    images: str  # which classes: "all", "forgotten" or "retained"
    images_per_class: int
    learning_rate: float
    steps: list[int]  # [L] when the model was looked at
    accuracy: list[float]  # [L] on test images of the forgotten classes


class Relearning(TypedDict):
    """All of relearning: every run, and each model's mean over runs with the class."""

    level: float  # the accuracy at which the class counts as back
    curves: dict[str, RelearnCurve]  # by model
    runs: list[RelearnRun]


class ProbesByDepth(TypedDict):
    """How well fresh classifiers tell the forgotten classes from the others."""

    layers: list[str]  # [D] in forward order, the last features at the end
    classifiers: list[str]
    areas: dict[str, dict[str, list[float]]]  # model -> classifier -> AUC [D]


class ShadowModel(TypedDict):
    """How well one shadow model knows its training images, and others."""

    members: int
    member_accuracy: float
    non_member_accuracy: float


class Detail(TypedDict, total=False):
    """What a report draws; the keys of kinds that were not asked for are absent.

    Models are the candidates, "raw" and "retrained_0", "retrained_1", and so on.
    """

    class_accuracies: dict[str, list[float | None]]  # model -> [U]; None: no images
    confusions: dict[str, list[list[int]]]  # model -> [U][U], rows are true classes
    test_images_per_class: list[int]  # [U]
    roc: dict[str, dict[str, RocCurve]]  # attack -> model -> curve
    shadow_models: list[ShadowModel]
    relearn: Relearning
    probe: ProbesByDepth
    cka: dict[str, dict[str, float]]  # model -> layer -> mean CKA to retrained models
    left_out: dict[str, str]  # candidate -> why it could not be judged


class AuditReport(NamedTuple):
    """Everything an audit found."""

    classes: list[int]  # the forgotten classes
    candidates: list[str]  # names, in the order given
    tests: list[Evidence]
    detail: Detail
    settings: dict[str, Any]  # what the audit was run with, sample sizes included
    headlines: dict[str, Headline] = {}  # candidates and "raw"

    def to_json(self) -> str:
        """Returns the report as strict JSON text (no NaN, no infinity).

        Raises:
          ValueError: the report holds a number that JSON has no word for, or a value
            that `from_json` would refuse.
        """
        _check(self)
        plain = {"format": FORMAT, **results.to_plain(self)}
        return json.dumps(plain, allow_nan=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "AuditReport":
        """Reads what `to_json` wrote, and nothing else.

        Raises:
          ValueError: the text is no audit report of this format; one sentence says
            what is wrong with it.
        """
        try:
            plain = results.loads(text, dict[str, Any], "the audit report")
        except results.FormatError as error:
            raise results.FormatError(f"{error}; run the audit phase again") from None
        if plain.pop("format", None) != FORMAT:
            raise results.FormatError(
                f"the audit report is not of format {FORMAT}; run the audit phase again"
            )
        report = results.from_plain(plain, cls, "the audit report")
        _check(report)
        return report


def _check(report: AuditReport) -> None:
    """Refuses what the types allow and an audit never writes, in one sentence."""
    for problem in _problems(report):
        raise results.FormatError(f"the audit report has {problem}")


def _problems(report: AuditReport) -> Iterator[str]:
    for test in report.tests:
        name = reprlib.repr(test.name)
        if test.higher_is not in DIRECTIONS or test.family not in FAMILIES:
            yield (
                f"{reprlib.repr(test.higher_is)} and {reprlib.repr(test.family)} as "
                f"higher_is and family of test {name}; allowed: {DIRECTIONS} and "
                f"{FAMILIES}"
            )
        known = all(verdict in VERDICTS for verdict in test.verdicts.values())
        if not known or set(test.verdicts) != set(test.values):
            yield (
                f"the verdicts {reprlib.repr(test.verdicts)} in test {name}; every "
                f"value needs one of {VERDICTS}"
            )
        for field in (test.p_values, test.adjusted_p_values):
            probable = all(p is None or 0 <= p <= 1 for p in field.values())
            if not probable or (field and set(field) != set(test.values)):
                yield (
                    f"the p-values {reprlib.repr(field)} in test {name}; they must be "
                    "null or between 0 and 1, one for each value"
                )
        numbers = [*test.values.values(), *test.retrained, *(test.interval or ())]
        if not all(number is None or math.isfinite(number) for number in numbers):
            yield f"a number in test {name} that strict JSON has no word for"
        if test.interval is not None and len(test.interval) != 2:
            yield (
                f"the interval {reprlib.repr(test.interval)} in test {name}; it must "
                "be null or [low, high]"
            )
    attacks = report.detail.get("roc", {}).values()
    relearn = report.detail.get("relearn", Relearning(level=0.0, curves={}, runs=[]))
    coordinates = [
        *(line.values() for models in attacks for line in models.values()),
        *((line["steps"], line["accuracy"]) for line in relearn["curves"].values()),
        *((run["steps"], run["accuracy"]) for run in relearn["runs"]),
    ]
    if not all(len(across) == len(up) for across, up in coordinates):
        yield "a curve in its detail that has more values on one axis than on the other"
    for model, headline in report.headlines.items():
        if headline.verdict not in VERDICTS:
            yield (
                f"the headline {reprlib.repr(headline.verdict)} for "
                f"{reprlib.repr(model)}; allowed: {VERDICTS}"
            )
