"""When methods came to a target, over their seeds, and how much sooner than retraining.

A target is an R-set accuracy: retraining's own ("retrained"), the masked raw model's
("raw_masked"), or the one in the config ("configured").
"""

from collections.abc import Sequence
from typing import NamedTuple

from fuprune.run.queries import mean
from fuprune.run.record import Crossing, MethodRow

TARGETS = {
    "retrained": "retraining's own accuracy",
    "raw_masked": "the accuracy of the raw model with the class masked",
    "configured": "the accuracy set in the config",
}
COSTS = ("rounds", "seconds", "images", "upload_bytes")


class Reached(NamedTuple):
    """The mean over those seeds of a method that reached a target."""

    accuracy: float  # the target
    seeds: int
    late: int  # seeds that did not reach it
    rounds: float | None
    seconds: float | None  # the method's own work included
    images: float | None
    upload_bytes: float | None


def crossing(row: MethodRow, target: str) -> Crossing | None:
    """When one seed of a method reached a target; None if the target is not known."""
    return next((one for one in row.crossings if one.target == target), None)


def reached(rows: Sequence[MethodRow], target: str) -> Reached | None:
    """Sums up the seeds of one method; None if none of them knows the target."""
    found = [one for row in rows if (one := crossing(row, target)) is not None]
    if not found:
        return None
    there = [one for one in found if one.rounds is not None]
    means = [mean(getattr(one, cost) for one in there) for cost in COSTS]
    accuracy = sum(one.accuracy for one in found) / len(found)
    return Reached(accuracy, len(found), len(found) - len(there), *means)


def speedups(method: Reached | None, retrained: Reached | None) -> list[float | None]:
    """How many times less than retraining a method spent: rounds, seconds, and so on.

    None if a seed of the method did not get there, or the method spent nothing.
    Retrained seeds that did not get there are left out, which favours retraining.
    """
    if method is None or retrained is None or method.late:
        return [None] * len(COSTS)
    pairs = [(getattr(retrained, cost), getattr(method, cost)) for cost in COSTS]
    return [base / spent if base and spent else None for base, spent in pairs]
