"""How far a model's answers on forgotten inputs are from a retrained model's.

Two honest retrainings differ too, so each distance is read against the distances among
retrained models. All take two models' outputs on the same N images.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fuprune.audit.evidence import FURTHER, HEADLINE
from fuprune.audit.measurements import Findings, Measurements, each
from fuprune.audit.membership import log_probabilities
from fuprune.audit.sampling import paired_error
from fuprune.audit.spread import (
    by_role,
    draft_distance,
    is_retrained,
    to_retraining,
)


def find_distance(measurements: Measurements) -> Findings:
    """Distances of outputs and of representations on the forgotten training images."""
    logits = each(measurements, lambda model: model.forgotten.logits)
    tests = []
    for name, (function, measure, unit) in DISTANCES.items():
        distances = to_retraining(logits, function)
        tests.append(
            draft_distance(
                name,
                {model: np.mean(one) for model, one in distances.items()},
                question=(
                    "How far are the answers on forgotten images from retraining "
                    f"({measure})?"
                ),
                unit=unit,
                family=HEADLINE if name == "jensen_shannon" else FURTHER,
                resolution=paired_error(by_role(distances)[1], added=0.0),
            )
        )
    activations = each(measurements, lambda model: model.forgotten.activations)
    layers = {
        name: mean_cka(
            own, [activations[o] for o in measurements.retrained if o != name]
        )
        for name, own in activations.items()
    }
    # A model of other layers has no result; a lone retrained one has no other to face.
    gaps = {
        name: 1.0 - np.mean(list(values.values())) if values else None
        for name, values in layers.items()
        if values or not is_retrained(name)
    }
    if any(layers.values()):
        tests.append(
            draft_distance(
                "cka_distance",
                gaps,
                question=(
                    "How unlike retraining are the layers' activations on forgotten "
                    "images (one minus linear CKA, mean over layers)?"
                ),
                unit="distance",
                bounds=(0.0, 1.0),
            )
        )
    drawn = {
        name: forward_order(of, measurements.layers) for name, of in layers.items()
    }
    return Findings(tests, {"cka": drawn})


def jensen_shannon(logits, other_logits) -> np.ndarray:
    """`[N]` Jensen-Shannon divergence of the softmax outputs in nats, at most ln 2."""
    log_p, log_q = log_probabilities(logits), log_probabilities(other_logits)
    # Where both agree the mean is that value: identical models are at exactly zero.
    log_mean = np.where(log_p == log_q, log_p, np.logaddexp(log_p, log_q) - np.log(2))
    divergence = np.exp(log_p) * (log_p - log_mean) + np.exp(log_q) * (log_q - log_mean)
    # Rounding can leave a little less than nothing.
    return np.maximum(0.5 * divergence.sum(axis=-1), 0.0)


def total_variation(logits, other_logits) -> np.ndarray:
    """`[N]` half the L1 distance of the softmax outputs, in [0, 1]."""
    return 0.5 * np.abs(_difference(logits, other_logits)).sum(axis=-1)


def activation_distance(logits, other_logits) -> np.ndarray:
    """`[N]` L2 distance of the softmax outputs, often called by this name."""
    return np.linalg.norm(_difference(logits, other_logits), axis=-1)


# Name -> the distance, in words, its unit.
DISTANCES = {
    "jensen_shannon": (jensen_shannon, "Jensen-Shannon divergence", "nats"),
    "total_variation": (total_variation, "total variation", "fraction"),
    "activation_distance": (
        activation_distance,
        "L2 distance of the softmax outputs",
        "distance",
    ),
}


def linear_cka(activations, other_activations) -> float:
    """Linear centered kernel alignment (Kornblith et al. 2019) of two representations.

    `||Y'X||^2 / (||X'X|| ||Y'Y||)` for column-centred X and Y: 1 for representations
    equal up to rotation and scale. The widths, `[N, C]` and `[N, D]`, may differ, so a
    slimmed layer can be compared with the whole one. A constant representation is like
    another constant one (1) and unlike any other (0).
    """
    both = (np.asarray(a, np.float64) for a in (activations, other_activations))
    x, y = (values - values.mean(axis=0) for values in both)
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    if norms < 1e-24:
        return float(np.allclose(x, 0) and np.allclose(y, 0))
    return float(min(np.linalg.norm(y.T @ x) ** 2 / norms, 1.0))


def mean_cka(
    activations: Mapping[str, np.ndarray], others: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, float]:
    """Mean linear CKA to other models, of every layer that all have, by its name."""
    return {
        layer: float(np.mean([linear_cka(values, other[layer]) for other in others]))
        for layer, values in activations.items()
        if others and all(layer in other for other in others)
    }


def forward_order(
    values: Mapping[str, float], layers: Sequence[str]
) -> dict[str, float]:
    """Values by layer from input to output; JAX has sorted them by name."""
    depth = {layer: place for place, layer in enumerate(layers)}
    return dict(sorted(values.items(), key=lambda one: depth.get(one[0], len(depth))))


def _difference(logits, other_logits) -> np.ndarray:
    return np.exp(log_probabilities(logits)) - np.exp(log_probabilities(other_logits))
