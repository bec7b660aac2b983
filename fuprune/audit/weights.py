"""Weight space: the way from a model to the raw and to the retrained ones.

Two models trained apart are far apart, and the straight line between them climbs over a
barrier of loss; a model that was only touched up stays in the raw model's valley. That
shows descent, not memory: every method that starts from the raw model may be near it.
Only networks of the same shapes and channels can be compared.
"""

import math
from typing import Any

import jax
import numpy as np

from fuprune.audit.evidence import TWO_SIDED
from fuprune.audit.measurements import RAW, Findings, Measurements, logits_of
from fuprune.audit.membership import loss_score
from fuprune.audit.options import Model
from fuprune.audit.outputs import Variables, find_head, with_forgotten_columns_reset
from fuprune.audit.spread import Draft, draft, to_retraining
from fuprune.audit.training import in_pairs
from fuprune.surgery import SlimNetwork

_DESCENT = "nearness to the raw model shows descent from it, which is no memory alone"


def find_weights(measurements: Measurements) -> Findings:
    """Distance and linear connectivity to the raw and to the retrained models."""
    models = {
        name: _without_forgotten_columns(measurements, model)
        for name, model in measurements.models.items()
    }
    retrained = measurements.retrained
    points, most = measurements.options.weights
    chosen = np.flatnonzero(~measurements.forgotten_test)[:most]
    images, labels = (part[chosen] for part in measurements.test)

    def loss(model: Model) -> float:
        logits = logits_of(measurements, model, images)
        return float(-loss_score(logits, labels).mean())

    losses = {name: loss(model) for name, model in models.items()}

    def climb(pair: tuple[str, ...]) -> float | None:
        one, other = pair
        ends = models[one], models[other]
        if not comparable(*ends):
            return None
        heights = losses[one], losses[other]
        return loss_barrier(*ends, loss, heights, points)

    # As high from either side, so retrained models need it once per pair.
    pairs = {tuple(sorted((name, RAW))) for name in models}
    pairs |= {
        tuple(sorted((n, other))) for n in models for other in retrained if n != other
    }
    barriers = dict(zip(pairs, in_pairs(climb, pairs), strict=True))

    def barrier(name: str, other: str) -> float | None:
        return barriers[tuple(sorted((name, other)))]

    def distance(name: str, other: str) -> float | None:
        return distance_between(models[name], models[other])

    tests = []
    for quantity, words, unit, number in (
        ("weight_distance", "far are the weights", "distance", distance),
        ("loss_barrier", "high is the barrier of loss on the way", "nats", barrier),
    ):
        to_raw = {name: number(name, RAW) for name in models}
        question = f"How {words} to the raw model?"
        tests.append(_draft(f"{quantity}_to_raw", to_raw, question, unit, None))
        if retrained:
            numbers = to_retraining({name: name for name in models}, number)
            question = f"How {words} to retrained models?"
            name = f"{quantity}_to_retrained"
            tests.append(_draft(name, numbers, question, unit, RAW))
    return Findings(tests)


def _without_forgotten_columns(measurements: Measurements, model: Model) -> Model:
    """The model with the forgotten classes' columns of the last layer at zero.

    Whatever a method wrote there, a bias of minus a thousand, say, would be all of the
    distance, and is plain to see without one.
    """
    module, variables = model
    sample = measurements.preprocess(measurements.test.images[:1])
    head = find_head(module, variables, sample)
    return module, with_forgotten_columns_reset(variables, head, measurements.classes)


def _draft(
    name: str,
    numbers: dict[str, float | None],
    question: str,
    unit: str,
    control: str | None,
) -> Draft:
    """A test of distances to retrained models or, without a control, to the raw one."""
    notes = [_DESCENT] if control is None else []
    missing = [model for model, value in numbers.items() if value is None]
    if missing:
        notes.append(
            f"other shapes or channels, so not comparable: {', '.join(missing)}"
        )
    return draft(
        name,
        numbers,
        question=question,
        unit=unit,
        higher_is=TWO_SIDED,
        bounds=(0.0, math.inf),
        leave_one_out=control is not None,
        positive_control=control,
        notes=notes,
    )


def comparable(model: Model, other: Model) -> bool:
    """Whether two models have the same variables, name by name and shape by shape.

    Two cut networks can have the same shapes and different channels; then what stands
    at the same place is not the same thing.
    """
    alike = _shapes(model[1]) == _shapes(other[1])
    return alike and _channels(model[0]) == _channels(other[0])


def _channels(module: Any) -> Any:
    if isinstance(module, SlimNetwork):
        return module.cuts
    return module.wiring() if hasattr(module, "wiring") else ()


def _shapes(variables: Variables) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(dict(variables))
    return {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in leaves}


def distance_between(model: Model, other: Model) -> float | None:
    """`relative_distance` of two models, None if they are not comparable."""
    return relative_distance(model[1], other[1]) if comparable(model, other) else None


def relative_distance(variables: Variables, other: Variables) -> float:
    """L2 distance of the parameters, as a share of the other model's norm."""

    def difference(a, b):
        a, b = np.asarray(a), np.asarray(b)
        with np.errstate(invalid="ignore"):
            return np.where(a == b, 0.0, a - b)

    apart = jax.tree.map(difference, variables["params"], other["params"])
    # A masked logit has a bias of minus infinity, which is no distance.
    return _norm(apart) / max(_norm(other["params"]), 1e-30)


def _norm(tree: Any) -> float:
    finite = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return float(np.sqrt(sum(np.sum(x[np.isfinite(x)] ** 2) for x in finite)))


def loss_barrier(
    model: Model, other: Model, loss, ends: tuple[float, float], points: int
) -> float:
    """How far the loss between two models rises above the line between their losses.

    All variables are interpolated, statistics of normalisation included (Frankle et al.
    2020 call models without a barrier linearly connected). The losses of the two `ends`
    are known; `points` between them, evenly spread, are looked at.
    """
    height = 0.0
    for share in np.linspace(0, 1, points + 2)[1:-1]:
        between = interpolate(model[1], other[1], float(share))
        line = (1 - share) * ends[0] + share * ends[1]
        height = max(height, loss((model[0], between)) - line)
    return float(height)


def interpolate(variables: Variables, other: Variables, share: float) -> Variables:
    """Variables `share` of the way from one model to the other."""

    def between(a, b):
        # Equal infinities, as in two masked logits, stay what they are. On the host,
        # where a handful of operations on every shape need not be compiled.
        a, b = np.asarray(a), np.asarray(b)
        with np.errstate(invalid="ignore"):
            return np.where(a == b, a, (1 - share) * a + share * b).astype(a.dtype)

    return jax.tree.map(between, dict(variables), dict(other))
