"""ROC curves of membership attacks, and the tests that every attack yields.

Scores are larger for likelier members. The curve, its area and its low false-positive
end (Carlini et al. 2022) are computed here for every attack and every model; an attack
that gives all images the same score has found nothing, and has no result.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fuprune.audit.evidence import FURTHER, TWO_SIDED, WORSE
from fuprune.audit.measurements import Findings
from fuprune.audit.sampling import area_error, paired_error, placements
from fuprune.audit.spread import ANGULAR, Draft, by_role, draft
from fuprune.errors import InputError
from fuprune.results import to_plain

LOW_RATES = {"1": 0.01, "0.1": 0.001}

# Scores of members [M] and of non-members [N].
Scores = tuple[np.ndarray, np.ndarray]


class Roc(NamedTuple):
    """A receiver operating characteristic, from the strictest threshold on."""

    false_positives: np.ndarray  # [T] rates, ascending from 0 to 1
    true_positives: np.ndarray  # [T] rates, ascending from 0 to 1


def roc_curve(members, non_members) -> Roc:
    """The ROC of "score at or above a threshold means member".

    From scores of members `[M]` and non-members `[N]`: a point per distinct score, and
    (0, 0).

    Raises:
      InputError: one of the two is empty or holds NaN.
    """
    members, non_members = (
        np.asarray(scores, np.float64) for scores in (members, non_members)
    )
    for name, scores in (("members", members), ("non_members", non_members)):
        if not scores.size or np.isnan(scores).any():
            raise InputError(
                f"{name} holds {scores.size} scores, {int(np.isnan(scores).sum())} of "
                "them NaN; an attack needs at least one of each and numbers only"
            )
    thresholds = np.union1d(members, non_members)[::-1]
    return Roc(
        false_positives=_at_or_above(non_members, thresholds),
        true_positives=_at_or_above(members, thresholds),
    )


def area_under(roc: Roc) -> float:
    """The probability that a member outscores a non-member, ties counting one half."""
    return float(np.trapezoid(roc.true_positives, roc.false_positives))


def true_positives_at(roc: Roc, rate: float) -> float:
    """The greatest true positive rate at a false positive rate of at most `rate`."""
    allowed = roc.false_positives <= rate + 1e-12
    return float(roc.true_positives[allowed].max())


def thin(roc: Roc, points: int = 101) -> Roc:
    """At most about `points` points of the curve, the ends and the low end kept.

    Half are spread evenly over the curve's points and half over false positive rates on
    a logarithmic scale, where the curve is read closely.
    """
    total = len(roc.false_positives)
    if total <= points:
        return roc
    even = np.linspace(0, total - 1, points - points // 2)
    rates = np.geomspace(1e-4, 1, points // 2)
    low = np.searchsorted(roc.false_positives, rates, side="right") - 1
    keep = np.unique(np.concatenate([np.round(even).astype(int), low]))
    return Roc(*(rates[keep] for rates in roc))


def is_constant(scores: Scores) -> bool:
    """Whether an attack gives all images the same score, and so says nothing."""
    both = np.concatenate(scores)
    return bool(np.ptp(both) <= 1e-12 * max(1.0, float(np.abs(both).max())))


def find_by_attack(
    name: str,
    scores: Mapping[str, Scores],
    *,
    attacker: str,
    family: str = FURTHER,
    low_rates: bool = False,
    curve: str = "",
    **fields: Any,
) -> Findings:
    """The tests of one attack that was turned on every model, and its thinned curves.

    Args:
      name: of the attack.
      scores: model -> its scores; those of some candidates may be absent.
      attacker: in words.
      family: of the area; further tests are never in the headline.
      low_rates: whether to ask for the images found at few false alarms.
      curve: what its curves are called, if not as the attack is.
      **fields: of every `spread.Draft`.
    """
    rocs = {
        model: None if is_constant(one) else roc_curve(*one)
        for model, one in scores.items()
    }

    def make_test(suffix: str, number: Callable[[Roc], float], **own: Any) -> Draft:
        return draft(
            f"{name}_{suffix}",
            {m: None if roc is None else number(roc) for m, roc in rocs.items()},
            bounds=(0.0, 1.0),
            scale=ANGULAR,
            is_rate=True,
            **fields,
            **own,
        )

    _, retrained = by_role(scores)
    useful = [one for one in retrained if not is_constant(one)]
    tests = [
        make_test(
            "auc",
            area_under,
            question=(
                f"How well does {attacker} tell training from test images of the "
                "forgotten class (AUC, 0.5 is guessing)?"
            ),
            # An area below that of retraining is a trace of the removal itself.
            higher_is=TWO_SIDED,
            family=family,
            resolution=area_error([placements(*one) for one in useful]),
        )
    ]
    _, non_members = next(iter(scores.values()))
    count = len(non_members)
    for percent, rate in LOW_RATES.items() if low_rates else ():
        found = [_found_at(one, rate) for one in useful]
        # Non-members set the threshold, and their share above it has an error as well.
        alarms = rate * (1 - rate) / count
        tests.append(
            make_test(
                f"tpr_at_{percent}_percent",
                lambda roc, r=rate: true_positives_at(roc, r),
                question=(
                    f"How many training images does {attacker} find at {percent}% "
                    "false alarms?"
                ),
                higher_is=WORSE,
                resolution=float(np.hypot(paired_error(found), np.sqrt(alarms))),
                undecidable=(
                    None
                    if count * rate >= 1
                    else f"{count} non-members cannot resolve {percent}% false alarms; "
                    "the value is at none"
                ),
            )
        )
    curves = {n: to_plain(thin(roc)) for n, roc in rocs.items() if roc is not None}
    return Findings(tests, {"roc": {curve or name: curves}})


def _found_at(scores: Scores, rate: float) -> np.ndarray:
    """`[M]` which members lie above the threshold that allows this many alarms."""
    members, non_members = scores
    allowed = int(np.floor(rate * len(non_members) + 1e-9))
    # Above this one lie `allowed` of them at most; ties count as below.
    threshold = np.sort(non_members)[::-1][allowed] if len(non_members) else -np.inf
    return (members > threshold).astype(np.float64)


def _at_or_above(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    below = np.searchsorted(np.sort(scores), thresholds, side="left")
    return np.concatenate([[0.0], (scores.size - below) / scores.size])
