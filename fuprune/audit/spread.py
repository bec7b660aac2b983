"""Where one more retrained model would fall: the null distribution of every test.

Each test has the numbers of n retrained models, and asks how likely a further draw from
them is at least as far out as a model's number. With three to ten seeds, most of what
can go wrong lies in the estimate of their spread; tests of one family therefore lend
each other what they know of it (`moderate`), and the rest is an allowance.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import special

from fuprune.audit.evidence import (
    BETTER,
    FURTHER,
    HEADLINE,
    TWO_SIDED,
    WORSE,
)
from fuprune.audit.sampling import paired_error

# By how much the headline widens the spread among seeds, because a few seeds do not
# show whether it is skewed: from this many seeds on, where rates lend each other their
# spread (classes), and where they do not (clients, examples). Calibrated by
# `benchmarks/audit_power.py --calibrate`, so that one more retrained model fails the
# headline with a probability of at most 5% in every cell simulated there; in the worst
# ones all spreads are exponential, and independent. For five seeds it prints 1.8, with
# a margin for the error of its draws; 1.75 holds the worst cell at 4.6%.
ALLOWANCES = {
    2: (2.4, 2.25),
    3: (1.8, 2.3),
    4: (1.8, 2.3),
    5: (1.75, 2.2),
    10: (1.7, 1.9),
    20: (1.65, 1.75),
}
# Of all other tests, which are not held to 5% under so skewed spreads.
FURTHER_ALLOWANCE = 1.45
# How many seeds' worth the other tests of a family say about the spread of one.
LENT_FREEDOM = 3

Found = TypeVar("Found")


class Scale(NamedTuple):
    """On which numbers of one kind spread alike."""

    forward: Callable[[float], float]
    back: Callable[[float], float]


LINEAR = Scale(float, float)
# Rates spread less near 0 and 1; on the scale of arcsin(sqrt(rate)) they spread alike.
ANGULAR = Scale(
    lambda rate: math.asin(math.sqrt(min(max(rate, 0.0), 1.0))),
    lambda angle: math.sin(min(max(angle, 0.0), math.pi / 2)) ** 2,
)
# Durations spread in proportion to their length.
LOGARITHMIC = Scale(lambda duration: math.log(max(duration, 1e-300)), math.exp)


class Draft(NamedTuple):
    """A test as it was measured, before its family is known."""

    name: str
    values: Mapping[str, float | None]  # None: the test has no result for the model
    retrained: Sequence[float | None]
    question: str
    higher_is: str  # "worse", "better" or "two_sided"
    kind: str = ""  # that of the search that found it, see `audit.find_all`
    unit: str = "fraction"
    family: str = FURTHER
    # The standard error that the images alone give a model against the retrained mean.
    resolution: float = 0.0
    bounds: tuple[float, float] = (-math.inf, math.inf)  # of possible values
    # The numbers are each model's mean distance to the (other) retrained models.
    leave_one_out: bool = False
    scale: Scale = LINEAR  # on which the spread is taken
    # A share of images, or of pairs of images: models differ in it image by image, so
    # its error over images says something about its spread among seeds.
    is_rate: bool = False
    # The model that must fail for "not told apart" to mean something. None for numbers
    # on which the raw model is expected to look like a retrained one.
    positive_control: str | None = "raw"
    # What the spread among seeds is widened by: 1 if it is known to be normal, None for
    # what `ALLOWANCES` and `FURTHER_ALLOWANCE` say.
    allowance: float | None = None
    undecidable: str | None = None  # why the sample cannot answer at all
    notes: Sequence[str] = ()


def is_retrained(name: str) -> bool:
    """Whether a model is one of the retrained ones, by its name."""
    return name.startswith("retrained")


def by_role(found: Mapping[str, Found]) -> tuple[dict[str, Found], list[Found]]:
    """Splits what there is of every model into the judged and the retrained ones'."""
    return (
        {name: one for name, one in found.items() if not is_retrained(name)},
        [one for name, one in found.items() if is_retrained(name)],
    )


def to_retraining(
    found: Mapping[str, Found], number: Callable[[Found, Found], Any]
) -> dict[str, Any]:
    """For every model, the mean of `number` over the retrained ones but itself.

    So all are means of distances between a model and independent retrainings. A model
    has none if there is no other retrained one, and None if `number` gives it for one
    of the pairs. `number` may give an array; means are taken entry by entry.
    """
    means = {}
    for name, own in found.items():
        others = [o for n, o in found.items() if is_retrained(n) and n != name]
        numbers = [number(own, other) for other in others]
        if any(one is None for one in numbers):
            means[name] = None
        elif numbers:
            means[name] = np.mean(numbers, axis=0)
    return means


def draft(name: str, numbers: Mapping[str, Any], **fields: Any) -> Draft:
    """The test of one number of every model, or None; `fields` are the draft's."""
    plain = {m: None if one is None else float(one) for m, one in numbers.items()}
    return Draft(name, *by_role(plain), **fields)


def draft_distance(name: str, numbers: Mapping[str, Any], **fields: Any) -> Draft:
    """The test of a mean distance `to_retraining`; `fields` are the draft's."""
    common = {"higher_is": WORSE, "bounds": (0.0, math.inf), "leave_one_out": True}
    return draft(name, numbers, **{**common, **fields})


def draft_rate(name: str, per_image: Mapping[str, np.ndarray], **fields: Any) -> Draft:
    """The test of a mean over images of numbers between 0 and 1, such as an accuracy.

    Every model has `[N]` numbers, one per image; without images the test has no result.
    `fields` are the draft's; `resolution` is `paired_error` unless it is among them.
    """
    if "resolution" not in fields:
        fields["resolution"] = paired_error(by_role(per_image)[1])
    means = {
        model: np.mean(numbers) if len(numbers) else None
        for model, numbers in per_image.items()
    }
    return draft(name, means, **{"bounds": (0.0, 1.0), "is_rate": True, **fields})


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

    draft: Draft
    mean: float
    deviation: float  # s * sqrt(1 + 1/n); see `moderate`
    freedom: int  # of s
    resolution: float
    allowance: float


def make_null(draft: Draft) -> Null | None:
    """The null distribution of a test, None if nothing says how far a model may lie.

    Two retrained models are needed, and three for distances, of which two models have
    only one. Means of distances to the others share their terms: if a distance is the
    sum of what either model contributes, their spread is (n - 2) / (n - 1) of a further
    model's, and is scaled back. Models that agree exactly say nothing, unless the
    images have an error of their own: a number in coarse steps agrees by luck.
    """
    known = [v for v in draft.retrained if v is not None]
    n = len(known)
    if n < fewest(draft.leave_one_out):
        return None
    forward = draft.scale.forward
    values = np.asarray([forward(v) for v in known])
    deviation = float(values.std(ddof=1)) * math.sqrt(1 + 1 / n)
    if draft.leave_one_out:
        deviation *= (n - 1) / (n - 2)
    centre, error = float(np.mean(known)), draft.resolution
    # A mean of equal numbers may differ from them in the last bit.
    if not error and deviation <= 1e-9 * max(1.0, float(np.abs(values).max())):
        return None
    return Null(
        draft,
        mean=float(values.mean()),
        deviation=deviation,
        freedom=n - 1,
        # On a curved scale the two sides differ; the larger one is the cautious one.
        resolution=max(
            forward(centre + error) - forward(centre),
            forward(centre) - forward(centre - error),
        )
        if draft.scale != LOGARITHMIC
        else math.log1p(error / centre),
        allowance=draft.allowance or allowance(n, draft.family, False),
    )


def allowance(seeds: int, family: str, is_lending: bool) -> float:
    """What `ALLOWANCES` and `FURTHER_ALLOWANCE` say, for two or more seeds.

    `is_lending` tells whether rates of the family lend each other their spread.
    """
    if family != HEADLINE:
        return FURTHER_ALLOWANCE
    lending, alone = ALLOWANCES[max(n for n in ALLOWANCES if n <= seeds)]
    return lending if is_lending else alone


def moderate(nulls: Sequence[Null | None]) -> list[Null | None]:
    """Estimates the spread of each rate with the help of the other rates.

    Three or five seeds alone say little about a spread: by luck they agree, and a
    retrained model fails; to allow for that, Student's t asks for so much that little
    else fails either. But the error over images is known well for every rate, and the
    ratio of spread to error is much alike in all rates of an audit. So the spread that
    the other rates suggest, their mean ratio (on a logarithmic scale) times the error
    of the test at hand, is taken as if `LENT_FREEDOM` more seeds had shown it, one for
    each other rate at most. This is the moderated t of Smyth (2004), with the error as
    the prior's scale and fixed degrees of freedom.

    The null distributions are those by the seeds alone, of the tests of one family.
    Those of tests that are no rates, and of rates that are the same for all seeds, come
    back with the family's allowance and otherwise as they were.
    """
    ratios = {
        i: _log_ratio(null)
        for i, null in enumerate(nulls)
        if null is not None
        and null.draft.is_rate
        and null.deviation
        and null.resolution
    }

    def moderated(i: int, null: Null) -> Null:
        others = [ratio for j, ratio in ratios.items() if j != i]
        if len(ratios) > 1 and null.draft.allowance is None:
            widened = allowance(null.freedom + 1, null.draft.family, True)
            null = null._replace(allowance=widened)
        if i not in ratios or not others:
            return null
        lent = min(LENT_FREEDOM, len(others))
        # A variance: the ratios are of squares.
        suggested = math.exp(np.mean(others)) * null.resolution**2
        freedom = lent + null.freedom
        variance = (lent * suggested + null.freedom * null.deviation**2) / freedom
        return null._replace(deviation=math.sqrt(variance), freedom=freedom)

    return [None if n is None else moderated(i, n) for i, n in enumerate(nulls)]


def _log_ratio(null: Null) -> float:
    """The logarithm of spread to error, squared, without the bias of a few seeds."""
    half = null.freedom / 2
    # The mean of log(s^2 / sigma^2) for s^2 with this many degrees of freedom.
    bias = float(special.digamma(half)) - math.log(half)
    return 2 * math.log(null.deviation / null.resolution) - bias


def fewest(leave_one_out: bool) -> int:
    """The number of retrained models below which there is no null distribution."""
    return 3 if leave_one_out else 2


def excess(null: Null, value: float) -> float:
    """How far `value` lies from the retrained mean, towards the side that fails."""
    distance = null.draft.scale.forward(value) - null.mean
    if null.draft.higher_is == TWO_SIDED:
        return abs(distance)
    return distance if null.draft.higher_is == WORSE else -distance


def p_value(null: Null, value: float) -> float:
    """The probability that one more retrained model lies at least as far out."""
    distance = excess(null, value)
    # A number computed twice may differ in the last bit; that is no finding.
    if distance <= 1e-9 * max(1.0, abs(value)):
        return 1.0 if null.draft.higher_is == TWO_SIDED else _one_sided(null, distance)
    sides = 2 if null.draft.higher_is == TWO_SIDED else 1
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
    """The distance from the mean, on the test's scale, at which the p-value is `level`.

    A model at this distance fails with probability `power`, its own seed counted; at
    one half the distance is the interval's half-width.
    """
    tail = level / 2 if null.draft.higher_is == TWO_SIDED else level
    freedom = null.freedom
    # The allowance is for the test; a model's own seed is what it is.
    by_seeds = special.stdtrit(freedom, power)
    by_seeds -= null.allowance * special.stdtrit(freedom, tail)
    by_images = special.ndtri(power) - special.ndtri(tail)
    return float(max(by_seeds * null.deviation, by_images * null.resolution))


def interval(null: Null, level: float) -> list[float | None]:
    """Where one more retrained model lies with probability `1 - level`.

    Returns:
      `[low, high]`, None for the side that is open because it is harmless.
    """
    half, bounds = reach(null, level), null.draft.bounds
    low, high = (null.draft.scale.back(null.mean + side) for side in (-half, half))
    return [
        None if null.draft.higher_is == WORSE else float(max(low, bounds[0])),
        None if null.draft.higher_is == BETTER else float(min(high, bounds[1])),
    ]


def smallest_difference(null: Null, distance: float) -> float | None:
    """A distance from the mean in the test's own unit, towards a side that fails.

    `distance` is on the test's scale. Where both sides fail it is the smaller one, and
    None if neither value is possible.
    """
    back = null.draft.scale.back
    middle = back(null.mean)
    sides = {TWO_SIDED: (1, -1), WORSE: (1,), BETTER: (-1,)}[null.draft.higher_is]
    places = [null.mean + side * distance for side in sides]
    if null.draft.scale == ANGULAR:
        places = [place for place in places if 0 <= place <= math.pi / 2]
    low, high = null.draft.bounds
    possible = (value for value in map(back, places) if low <= value <= high)
    return min((abs(value - middle) for value in possible), default=None)
