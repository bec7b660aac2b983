"""From figures to verdicts: does a candidate lie inside the spread of retraining?

The question is always the same: could this model be one more retrained seed? The answer
is a prediction interval for one new draw from the n retrained models, widened to what
the sample can resolve; whatever cannot be decided is called "cannot tell".
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from fuprune.audit.evidence import (
    BETTER,
    CANNOT_TELL,
    DIRECTIONS,
    FAIL,
    PASS,
    TWO_SIDED,
    WORSE,
    Evidence,
)
from fuprune.errors import InputError


def prediction_interval(
    retrained: Sequence[float],
    *,
    higher_is: str = TWO_SIDED,
    confidence: float = 0.95,
    resolution: float = 0.0,
    reachable: float | None = None,
    bounds: tuple[float | None, float | None] = (None, None),
    leave_one_out: bool = False,
    logarithmic: bool = False,
) -> list[float | None] | None:
    """Where one more retrained model would fall, with probability `confidence`.

    For n retrained values of mean m and standard deviation s, the interval is
    `m +- max(t * s * sqrt(1 + 1/n), z * resolution)`, where t is Student's quantile
    with n - 1 degrees of freedom and z the normal one. The second term keeps a lucky
    small spread from failing a model over test-set noise. A one-sided interval is open
    towards the harmless side.

    Args:
      retrained: the figure of each retrained seed.
      higher_is: "worse", "better" or "two_sided".
      confidence: the probability that a further retrained model falls inside.
      resolution: the standard error that the sample alone gives this figure.
      reachable: a value that sampling noise alone can reach; the interval holds it.
      bounds: the least and greatest value that the figure can take.
      leave_one_out: the values are each model's mean distance to the others. Such means
        share their terms: if a distance is the sum of what either model contributes,
        their spread is (n - 2) / (n - 1) of a further model's, and is scaled back.
      logarithmic: take the interval of the logarithms, for durations, which spread in
        proportion to their length; `resolution` is then relative.

    Returns:
      `[low, high]` with None for an open side, or None if there are too few models: two
      are needed, and three for distances, of which two models have only one.

    Raises:
      ValueError: `higher_is` or `confidence` is not allowed.
    """
    if higher_is not in DIRECTIONS:
        raise InputError(f"higher_is is {higher_is!r}; it must be one of {DIRECTIONS}")
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence is {confidence}; it must be in [0.5, 1)")
    values = np.asarray(retrained, np.float64)
    n = values.size
    if logarithmic:
        values = np.log(values)
    if n < fewest(leave_one_out):
        return None
    tail = confidence if higher_is != TWO_SIDED else 0.5 + confidence / 2
    spread = stats.t.ppf(tail, n - 1) * values.std(ddof=1) * math.sqrt(1 + 1 / n)
    if leave_one_out:
        spread *= (n - 1) / (n - 2)
    half = max(spread, stats.norm.ppf(tail) * resolution)
    low, high = values.mean() - half, values.mean() + half
    if logarithmic:
        low, high = math.exp(low), math.exp(high)
    if reachable is not None:
        low, high = min(low, reachable), max(high, reachable)
    if bounds[0] is not None:
        low = max(low, bounds[0])
    if bounds[1] is not None:
        high = min(high, bounds[1])
    return [
        None if higher_is == WORSE else float(low),
        None if higher_is == BETTER else float(high),
    ]


def fewest(leave_one_out: bool) -> int:
    """The number of retrained models below which there is no interval."""
    return 3 if leave_one_out else 2


def inside(value: float, interval: Sequence[float | None]) -> bool:
    """Whether `value` lies in `[low, high]`, ends included, None being unbounded."""
    low, high = interval
    # A figure computed twice may differ in the last bit; that is no finding.
    slack = 1e-9 * max(1.0, abs(value))
    return (low is None or value >= low - slack) and (
        high is None or value <= high + slack
    )


def judge(
    name: str,
    values: Mapping[str, float],
    retrained: Sequence[float],
    *,
    kind: str,
    question: str,
    unit: str = "fraction",
    higher_is: str,
    confidence: float = 0.95,
    resolution: float = 0.0,
    reachable: float | None = None,
    bounds: tuple[float | None, float | None] = (None, None),
    leave_one_out: bool = False,
    logarithmic: bool = False,
    positive_control: str | None = "raw",
    undecidable: str | None = None,
    notes: Sequence[str] = (),
) -> Evidence:
    """Makes one `Evidence`: the figures, the interval, and a verdict for each model.

    A model outside the interval fails. A model inside passes, unless the positive
    control (the raw model, which certainly knows the class) lies inside too: then the
    test has no power on this data and says "cannot tell". So it does when there are
    too few retrained models, or when `undecidable` gives a reason.

    Args:
      name: of the figure.
      values: model name -> figure; holds the positive control if there is one.
      retrained: the figure of each retrained seed.
      kind: the group of evidence.
      question: what the figure answers.
      unit: of the figure.
      higher_is: "worse", "better" or "two_sided".
      confidence: of the interval.
      resolution: see `prediction_interval`.
      reachable: see `prediction_interval`.
      bounds: see `prediction_interval`.
      leave_one_out: see `prediction_interval`.
      logarithmic: see `prediction_interval`.
      positive_control: the model that must be outside for a pass to mean something;
        None for figures on which the raw model is expected to look like a retrained
        one.
      undecidable: a reason why the sample cannot answer at all.
      notes: further remarks.

    Returns:
      The evidence.
    """
    interval = prediction_interval(
        retrained,
        higher_is=higher_is,
        confidence=confidence,
        resolution=resolution,
        reachable=reachable,
        bounds=bounds,
        leave_one_out=leave_one_out,
        logarithmic=logarithmic,
    )
    remarks = list(notes)
    if interval is None:
        remarks.append(
            f"{len(retrained)} retrained model(s) give no spread for this figure; "
            f"{fewest(leave_one_out)} or more are needed"
        )
    if undecidable is not None:
        remarks.append(undecidable)
    control = values.get(positive_control) if positive_control is not None else None
    powerless = (
        interval is not None and control is not None and inside(control, interval)
    )
    if powerless:
        remarks.append(
            f"the {positive_control} model ({control:.4g}) lies "
            "inside the interval too: on this data the test cannot tell remembering "
            "from forgetting"
        )

    def verdict(value: float) -> str:
        if interval is None or undecidable is not None:
            return CANNOT_TELL
        if not inside(value, interval):
            return FAIL
        return CANNOT_TELL if powerless else PASS

    return Evidence(
        name=name,
        kind=kind,
        question=question,
        unit=unit,
        higher_is=higher_is,
        values={model: float(value) for model, value in values.items()},
        retrained=[float(value) for value in retrained],
        interval=interval,
        verdicts={model: verdict(value) for model, value in values.items()},
        notes=remarks,
    )


def binomial_error(rates: Sequence[float], num_examples: int) -> float:
    """The standard error of a rate on `num_examples` images.

    The rate is the retrained models' mean, pulled towards one half by two successes and
    two failures (Agresti and Coull), so that a rate of exactly 0 or 1 has an error too.

    Args:
      rates: the rates of the retrained models.
      num_examples: images that each rate was measured on.

    Returns:
      The standard error.
    """
    if not len(rates) or num_examples < 1:
        return 0.0
    rate = (float(np.mean(rates)) * num_examples + 2) / (num_examples + 4)
    return math.sqrt(rate * (1 - rate) / num_examples)
