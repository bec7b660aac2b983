"""The judge: how far a model is from retraining, with an interval, judged twice.

A model trained with m seeds is compared with n retrained ones by the t interval of two
means with a common spread; with one seed this is the interval for one more retrained
model. Few seeds can agree by luck, so no interval is narrower than what the images
alone leave open. `docs/audit.md` has the simulated errors of this design.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from fuprune.audit.record import RAW, Judged, Row

HIGHER, LOWER, EITHER = "higher", "lower", "either"


class Measure(NamedTuple):
    """One measure of all models before it is judged; its fields are those of `Row`."""

    name: str
    kind: str
    question: str
    retrained: Sequence[float | None]
    models: Mapping[str, Sequence[float | None]]  # one value per seed
    unit: str = "fraction"
    headline: bool = False
    harm: str = EITHER
    margin: float | None = None  # None: in ranges of the retrained models
    # The standard error that the images alone give one model against the mean of the
    # retrained ones.
    error: float = 0.0
    # Values are mean distances to the (other) retrained models.
    leave_one_out: bool = False
    # Whether a measure that does not tell the raw model apart tells nothing.
    needs_raw: bool = True
    note: str = ""


class Comparison(NamedTuple):
    """The difference between two means of models."""

    difference: float
    half_width: float  # of its interval
    p_value: float  # two-sided


def compare(measure: Measure, model: str, level: float) -> Comparison | None:
    """A model against retraining; None if nothing says how far retraining spreads.

    For distances the spread is scaled back: means of distances to the others share
    their terms. If a distance is the sum of what either model contributes, their spread
    is (n - 2) / (n - 1) of that of independent models.
    """
    own, reference = _known(measure.models[model]), _known(measure.retrained)
    m, n = len(own), len(reference)
    if not m or n < 2 + measure.leave_one_out:
        return None
    difference = float(own.mean() - reference.mean())
    scale = (n - 1) / (n - 2) if measure.leave_one_out else 1.0
    squares = scale**2 * reference.var() * n + own.var() * m
    freedom = n + m - 2
    by_seeds = math.sqrt(squares / freedom * (1 / m + 1 / n))
    # The error is given for one seed; the images' part shrinks with more of them.
    by_images = measure.error * math.sqrt((1 / m + 1 / n) / (1 + 1 / n))
    # Means of equal numbers may differ in the last bit.
    tiny = 1e-9 * max(1.0, float(np.abs(reference).max()))
    if by_seeds <= tiny and not by_images:
        return Comparison(0.0, 0.0, 1.0) if abs(difference) <= tiny else None
    half = max(
        special.stdtrit(freedom, 1 - level / 2) * by_seeds,
        special.ndtri(1 - level / 2) * by_images,
    )
    p_value = 2 * max(
        special.stdtr(freedom, -abs(difference) / by_seeds) if by_seeds else 0.0,
        special.ndtr(-abs(difference) / by_images) if by_images else 0.0,
    )
    return Comparison(difference, float(half), min(1.0, float(p_value)))


def _known(values: Sequence[float | None]) -> np.ndarray:
    return np.asarray([value for value in values if value is not None], np.float64)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (1979), in the order given.

    Rejecting those at or below a level keeps the probability of any false rejection at
    or below that level, however the tests depend on each other.
    """
    adjusted = np.empty(len(p_values))
    worst = 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted.tolist()


def judge(
    measures: Sequence[Measure], confidence: float = 0.95, margin_range: float = 1.0
) -> list[Row]:
    """Judges the headline's measures together, and describes all others.

    Args:
      measures: of all models.
      confidence: of the intervals, and one minus the probability that a retrained model
        differs in any row of the headline.
      margin_range: the margin of measures without one, in ranges of the retrained
        models' values.

    Returns:
      One row per measure, in order.
    """
    level = 1 - confidence
    found: dict[str, dict[str, Comparison]] = {
        measure.name: {
            model: compared
            for model in measure.models
            if (compared := compare(measure, model, level)) is not None
        }
        for measure in measures
        if measure.headline
    }
    adjusted: dict[tuple[str, str], float] = {}
    for model in dict.fromkeys(
        model for by_model in found.values() for model in by_model
    ):
        rows = [m for m in measures if m.headline and model in found[m.name]]
        p_values = [_harmful_p(m, found[m.name][model]) for m in rows]
        for row, p_value in zip(rows, holm(p_values), strict=True):
            adjusted[row.name, model] = p_value
    return [
        _row(m, found.get(m.name, {}), adjusted, level, margin_range) for m in measures
    ]


def _harmful_p(measure: Measure, compared: Comparison) -> float:
    """The p-value, 1 on the side that is no trace of the class."""
    harmless = {HIGHER: compared.difference < 0, LOWER: compared.difference > 0}
    return 1.0 if harmless.get(measure.harm, False) else compared.p_value


def _row(
    measure: Measure,
    found: Mapping[str, Comparison],
    adjusted: Mapping[tuple[str, str], float],
    level: float,
    margin_range: float,
) -> Row:
    reference = _known(measure.retrained)
    margin = measure.margin
    if margin is None and len(reference) > 1:
        margin = margin_range * float(np.ptp(reference))
    models = {}
    for model, values in measure.models.items():
        compared = found.get(model)
        if compared is None:
            models[model] = Judged(list(values), note=_why_not(measure, values))
            continue
        low = compared.difference - compared.half_width
        high = compared.difference + compared.half_width
        p_value = adjusted[measure.name, model]
        outside = _harmful_p(measure, compared) <= level
        models[model] = Judged(
            list(values),
            difference=compared.difference,
            low=low,
            high=high,
            p_value=p_value,
            different=p_value <= level,
            equivalent=margin is not None and -margin <= low and high <= margin,
            note="the interval excludes zero, but not after Holm's correction"
            if outside and p_value > level
            else "",
        )
    raw = models.get(RAW)
    powerless = raw is not None and raw.different is False and measure.needs_raw
    return Row(
        name=measure.name,
        kind=measure.kind,
        question=measure.question,
        unit=measure.unit,
        headline=measure.headline,
        harm=measure.harm,
        retrained=list(measure.retrained),
        models=models,
        margin=margin if measure.headline else None,
        powerless=powerless,
        note=measure.note,
    )


def _why_not(measure: Measure, values: Sequence[float | None]) -> str:
    if not measure.headline:
        return ""
    if not len(_known(values)):
        return "no result"
    known, needed = len(_known(measure.retrained)), 2 + measure.leave_one_out
    if known < needed:
        return f"{known} retrained models show no spread; {needed} are needed"
    return "the retrained models agree exactly, which shows no spread"
