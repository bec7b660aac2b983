"""From numbers to verdicts: could this model be one more retrained seed?

Each test has a null distribution, that of a further draw from the n retrained models,
and so a p-value for every model. Within a family of tests Holm's procedure keeps the
probability that a retrained model fails any of them at about one minus the confidence;
`docs/audit.md` has the simulated figures by shape of the spread.
Whatever cannot be decided is called "cannot tell".
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from fuprune.audit.evidence import (
    BETTER,
    CANNOT_TELL,
    DIRECTIONS,
    FAIL,
    FAMILIES,
    FURTHER,
    HEADLINE,
    NOT_TOLD_APART,
    PASS,
    TWO_SIDED,
    WORSE,
    Evidence,
    Headline,
)
from fuprune.errors import InputError

# The probability of being seen that `smallest_difference` stands for.
POWER = 0.8
# By how much the spread among seeds is widened, because a few seeds do not show whether
# it is skewed. Calibrated in `benchmarks/audit_power.py`: with it one more retrained
# model fails a headline of eight tests with a probability of about 5% or less if the
# spread is as skewed as an exponential distribution, and less if it is normal.
ALLOWANCE = 1.5
# The share of the raw model's distance to retraining that a pass may leave open.
MARGIN = 0.25


LINEAR = "linear"
# Rates spread less near 0 and 1; on the scale of arcsin(sqrt(rate)) they spread alike.
ANGULAR = "angular"
# Durations spread in proportion to their length.
LOGARITHMIC = "log"
_FORWARD = {
    LINEAR: float,
    ANGULAR: lambda rate: math.asin(math.sqrt(min(max(rate, 0.0), 1.0))),
    LOGARITHMIC: lambda duration: math.log(max(duration, 1e-300)),
}
_BACK = {
    LINEAR: float,
    ANGULAR: lambda angle: math.sin(min(max(angle, 0.0), math.pi / 2)) ** 2,
    LOGARITHMIC: math.exp,
}


class Draft(NamedTuple):
    """A test as it was measured, before its family is known."""

    name: str
    values: Mapping[str, float | None]  # None: the test has no result for the model
    retrained: Sequence[float | None]
    kind: str
    question: str
    higher_is: str  # "worse", "better" or "two_sided"
    unit: str = "fraction"
    family: str = FURTHER
    # The standard error that the images alone give a model against the retrained mean.
    resolution: float = 0.0
    bounds: tuple[float | None, float | None] = (None, None)  # of possible values
    # The numbers are each model's mean distance to the (other) retrained models.
    leave_one_out: bool = False
    scale: str = LINEAR  # on which the spread is taken: "linear", "angular", "log"
    # The model that must fail for "not told apart" to mean something. None for numbers
    # on which the raw model is expected to look like a retrained one.
    positive_control: str | None = "raw"
    # What the spread among seeds is widened by; 1 if it is known to be normal.
    allowance: float = ALLOWANCE
    undecidable: str | None = None  # why the sample cannot answer at all
    notes: Sequence[str] = ()


class Null(NamedTuple):
    """Where one more retrained model would fall.

    For n retrained values of mean m and standard deviation s, a further one lies at m
    plus s * sqrt(1 + 1/n) times Student's t with n - 1 degrees of freedom. All models
    answer for the same images, so what the images add is in s already; but few seeds
    can agree by luck. A model is therefore also held against a normal distribution
    whose deviation is the images' own error, and the larger of the two p-values counts.
    Nor do few seeds tell a skewed spread from a normal one: wherever a p-value is
    taken, the deviation is `allowance` times as wide. Everything is on the test's
    scale.
    """

    mean: float
    deviation: float  # s * sqrt(1 + 1/n)
    freedom: int
    resolution: float
    higher_is: str
    scale: str
    allowance: float


def make_null(draft: Draft) -> Null | None:
    """The null distribution of a test, None if there are too few retrained models.

    Two are needed, and three for distances, of which two models have only one. Means of
    distances to the others share their terms: if a distance is the sum of what either
    model contributes, their spread is (n - 2) / (n - 1) of a further model's, and is
    scaled back.

    Raises:
      InputError: `higher_is` or `family` is not allowed.
    """
    if draft.higher_is not in DIRECTIONS or draft.family not in FAMILIES:
        raise InputError(
            f"higher_is is {draft.higher_is!r} and family {draft.family!r}; allowed: "
            f"{DIRECTIONS} and {FAMILIES}"
        )
    known = [v for v in draft.retrained if v is not None]
    n = len(known)
    if n < fewest(draft.leave_one_out):
        return None
    forward = _FORWARD[draft.scale]
    values = np.asarray([forward(v) for v in known])
    deviation = float(values.std(ddof=1)) * math.sqrt(1 + 1 / n)
    if draft.leave_one_out:
        deviation *= (n - 1) / (n - 2)
    centre, error = float(np.mean(known)), draft.resolution
    return Null(
        mean=float(values.mean()),
        deviation=deviation,
        freedom=n - 1,
        resolution=max(
            forward(centre + error) - forward(centre),
            forward(centre) - forward(centre - error),
        )
        if draft.scale != LOGARITHMIC
        else math.log1p(error / centre),
        higher_is=draft.higher_is,
        scale=draft.scale,
        allowance=draft.allowance,
    )


def fewest(leave_one_out: bool) -> int:
    """The number of retrained models below which there is no null distribution."""
    return 3 if leave_one_out else 2


def excess(null: Null, value: float) -> float:
    """How far `value` lies from the retrained mean, towards the side that fails."""
    distance = _FORWARD[null.scale](value) - null.mean
    if null.higher_is == TWO_SIDED:
        return abs(distance)
    return distance if null.higher_is == WORSE else -distance


def p_value(null: Null, value: float) -> float:
    """The probability that one more retrained model lies at least as far out."""
    distance = excess(null, value)
    # A number computed twice may differ in the last bit; that is no finding.
    if distance <= 1e-9 * max(1.0, abs(value)):
        return 1.0 if null.higher_is == TWO_SIDED else _one_sided(null, distance)
    sides = 2 if null.higher_is == TWO_SIDED else 1
    return min(1.0, sides * _one_sided(null, distance))


def _one_sided(null: Null, distance: float) -> float:
    if distance <= 0 and not (null.deviation or null.resolution):
        return 1.0
    by_seeds = by_images = 0.0
    # The tails of Student's t and of the normal distribution.
    if null.deviation:
        widened = null.allowance * null.deviation
        by_seeds = special.stdtr(null.freedom, -distance / widened)
    if null.resolution:
        by_images = special.ndtr(-distance / null.resolution)
    return float(max(by_seeds, by_images))


def reach(null: Null, level: float, power: float = 0.5) -> float:
    """The distance from the mean at which a model's p-value is `level`.

    Args:
      null: the null distribution.
      level: of the test.
      power: the probability with which a model at this distance fails, its own seed
        counted; at one half the distance is the interval's half-width.

    Returns:
      The distance, on the test's scale.
    """
    tail = level / 2 if null.higher_is == TWO_SIDED else level
    freedom = null.freedom
    # The allowance is for the test; a model's own seed is what it is.
    by_seeds = special.stdtrit(freedom, power)
    by_seeds -= null.allowance * special.stdtrit(freedom, tail)
    by_images = special.ndtri(power) - special.ndtri(tail)
    return float(max(by_seeds * null.deviation, by_images * null.resolution))


def interval(
    null: Null,
    level: float,
    bounds: tuple[float | None, float | None] = (None, None),
) -> list[float | None]:
    """Where one more retrained model lies with probability `1 - level`.

    Returns:
      `[low, high]`, None for the side that is open because it is harmless.
    """
    half = reach(null, level)
    low, high = (_BACK[null.scale](null.mean + side) for side in (-half, half))
    if bounds[0] is not None:
        low = max(low, bounds[0])
    if bounds[1] is not None:
        high = min(high, bounds[1])
    return [
        None if null.higher_is == WORSE else float(low),
        None if null.higher_is == BETTER else float(high),
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (1979), in the order given.

    Rejecting those at or below a level keeps the probability of any false rejection
    below that level, however the tests depend on each other.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted.tolist()


def settle(
    drafts: Sequence[Draft], *, confidence: float = 0.95, margin: float = MARGIN
) -> list[Evidence]:
    """Judges all tests of an audit together.

    Every test that could be decided counts in its family, also one that the raw model
    does not fail: choosing the tests by how far the raw model lies outside would choose
    those whose retrained seeds happen to agree, and with them false failures.

    Args:
      drafts: the tests.
      confidence: one minus the probability that a retrained model fails some test of
        the family.
      margin: a model passes if it differs from retraining by at most this share of what
        the positive control differs by.

    Returns:
      One `Evidence` per draft, in order.

    Raises:
      InputError: `confidence` or `margin` is not allowed.
    """
    if not 0.5 <= confidence < 1 or not 0 < margin < 1:
        raise InputError(
            f"confidence is {confidence} and margin {margin}; they must be in [0.5, 1) "
            "and (0, 1)"
        )
    nulls = [make_null(draft) for draft in drafts]
    p_values = [_p_values(*pair) for pair in zip(drafts, nulls, strict=True)]
    adjusted: list[dict[str, float | None]] = [dict(found) for found in p_values]
    sizes: dict[str, int] = dict.fromkeys(FAMILIES, 0)
    for family in FAMILIES:
        tests = [i for i, draft in enumerate(drafts) if draft.family == family]
        for model in dict.fromkeys(name for i in tests for name in p_values[i]):
            found = [(i, p_values[i].get(model)) for i in tests]
            known = [(i, p) for i, p in found if p is not None]
            sizes[family] = max(sizes[family], len(known))
            corrected = holm([p for _, p in known])
            for (i, _), p in zip(known, corrected, strict=True):
                adjusted[i][model] = p
    return [
        _evidence(
            draft, null, found, corrected, sizes[draft.family], confidence, margin
        )
        for draft, null, found, corrected in zip(
            drafts, nulls, p_values, adjusted, strict=True
        )
    ]


def judge(
    name: str,
    values: Mapping[str, float | None],
    retrained: Sequence[float | None],
    *,
    confidence: float = 0.95,
    margin: float = MARGIN,
    **options,
) -> Evidence:
    """`settle` for one test that stands alone; `options` are fields of `Draft`."""
    draft = Draft(name, values, retrained, **options)
    return settle([draft], confidence=confidence, margin=margin)[0]


def _p_values(draft: Draft, null: Null | None) -> dict[str, float | None]:
    if null is None or draft.undecidable is not None:
        return dict.fromkeys(draft.values)
    return {
        model: None if value is None else p_value(null, value)
        for model, value in draft.values.items()
    }


def _evidence(
    draft: Draft,
    null: Null | None,
    p_values: Mapping[str, float | None],
    adjusted: Mapping[str, float | None],
    family_size: int,
    confidence: float,
    margin: float,
) -> Evidence:
    level = 1 - confidence
    notes = list(draft.notes)
    if null is None:
        known = sum(value is not None for value in draft.retrained)
        notes.append(
            f"{known} retrained model(s) give no spread for this number; "
            f"{fewest(draft.leave_one_out)} or more are needed"
        )
    if draft.undecidable is not None:
        notes.append(draft.undecidable)
    missing = [model for model, value in draft.values.items() if value is None]
    if missing:
        notes.append(f"no result for {', '.join(missing)}")
    control = draft.positive_control
    control_p = adjusted.get(control) if control is not None else None
    control_value = draft.values.get(control) if control is not None else None
    powerless = control_p is not None and control_p > level
    if powerless:
        notes.append(
            f"the {control} model ({control_value:.4g}) is not told apart from "
            "retraining either: on this data the test cannot tell remembering from "
            "forgetting"
        )

    def verdict(model: str, value: float | None) -> str:
        p = adjusted[model]
        if p is None or null is None or value is None:
            return CANNOT_TELL
        if p <= level:
            return FAIL
        if control_p is None or control_value is None:
            return NOT_TOLD_APART if control is None else CANNOT_TELL
        possible = max(excess(null, value), 0.0) + reach(null, level)
        alone = p_values[model]
        inside = alone is not None and alone > level
        if inside and possible <= margin * excess(null, control_value):
            return PASS
        return CANNOT_TELL if powerless else NOT_TOLD_APART

    smallest = None
    if null is not None and draft.undecidable is None:
        distance = reach(null, level / max(family_size, 1), POWER)
        smallest = _difference(null, distance, draft.bounds)
        if smallest is None:
            notes.append("no possible difference would be seen with this few seeds")
    return Evidence(
        name=draft.name,
        kind=draft.kind,
        question=draft.question,
        unit=draft.unit,
        higher_is=draft.higher_is,
        values={model: _float(value) for model, value in draft.values.items()},
        retrained=[_float(value) for value in draft.retrained],
        interval=None if null is None else interval(null, level, draft.bounds),
        verdicts={m: verdict(m, value) for m, value in draft.values.items()},
        notes=notes,
        family=draft.family,
        sampling_error=float(draft.resolution) if draft.resolution else None,
        smallest_difference=smallest,
        p_values=dict(p_values),
        adjusted_p_values=dict(adjusted),
    )


def _difference(
    null: Null, distance: float, bounds: tuple[float | None, float | None]
) -> float | None:
    """A distance from the mean in the test's own unit, towards a side that fails.

    Where both sides fail it is the nearer one; None if neither value is possible.
    """
    back = _BACK[null.scale]
    middle = back(null.mean)
    sides = {TWO_SIDED: (1, -1), WORSE: (1,), BETTER: (-1,)}[null.higher_is]
    low, high = bounds
    found = []
    for side in sides:
        place = null.mean + side * distance
        value = back(place)
        impossible = (
            (null.scale == ANGULAR and not 0 <= place <= math.pi / 2)
            or (low is not None and value < low)
            or (high is not None and value > high)
        )
        if not impossible:
            found.append(abs(value - middle))
    return min(found, default=None)


def headline(tests: Sequence[Evidence], model: str) -> Headline:
    """The verdict on one model over the headline's family.

    Args:
      tests: all evidence of an audit.
      model: a candidate, or "raw".

    Returns:
      "fail" if any test of the family fails, "pass" if all pass, "not told apart at
      this power" if at least one could have failed, "cannot tell" otherwise.
    """
    family = [t for t in tests if t.family == HEADLINE and model in t.values]
    decided = [t for t in family if t.adjusted_p_values.get(model) is not None]
    failed = [t.name for t in decided if t.verdicts[model] == FAIL]
    words = {t.verdicts[model] for t in decided}
    if failed:
        word = FAIL
    elif words == {PASS}:
        word = PASS
    elif words & {PASS, NOT_TOLD_APART}:
        word = NOT_TOLD_APART
    else:
        word = CANNOT_TELL
    found = [p for t in decided if (p := t.adjusted_p_values[model]) is not None]
    return Headline(word, len(decided), failed, min(found, default=None))


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
