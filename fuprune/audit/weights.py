"""Distance in weight space, which only describes.

Every fine-tuned model is near the raw one, and a cut network has another shape.
"""

import jax
import numpy as np

from fuprune.audit.judge import HIGHER, Measure
from fuprune.audit.measures import Subject, of_numbers, to_retraining, with_hidden
from fuprune.audit.record import RAW


def weight_measures(subject: Subject) -> list[Measure]:
    """How far the parameters are from retraining's and from the raw model's."""
    models = {
        name: jax.device_get(variables["params"])
        for name, (_, variables) in subject.models.items()
    }
    found = {
        "retrained": to_retraining(models, distance_between),
        "raw": {
            name: distance_between(own, models[RAW]) for name, own in models.items()
        },
    }
    return [
        of_numbers(
            f"weight_distance_to_{name}",
            "weights",
            with_hidden(subject, values),
            f"How far are the weights from those of the {name} model (L2 norm of the "
            "difference over that of the other)?",
            unit="distance",
            harm=HIGHER if name == "retrained" else "lower",
        )
        for name, values in found.items()
        if RAW in values
    ]


def distance_between(params, others) -> float | None:
    """The distance as a share of the other's norm; None for another shape."""
    if jax.tree.map(np.shape, params) != jax.tree.map(np.shape, others):
        return None
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True)
    squares = [(np.sum((x - y) ** 2), np.sum(np.square(y))) for x, y in pairs]
    difference, norm = np.sqrt(np.sum(np.asarray(squares, np.float64), axis=0))
    return float(difference / norm) if norm else None
