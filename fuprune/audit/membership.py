"""Membership inference without training anything: scores, thresholds, comparisons.

An attacker who sees a model's output on an image of the forgotten class guesses whether
that very image was trained on. Scores are larger for likelier members; members are the
forgotten class's training images, non-members its test images.

Some attackers compare models. Who keeps the raw model and receives the unlearned one
sees on which images the two differ (Chen et al., "When Machine Unlearning Jeopardizes
Privacy", CCS 2021). Who also has one model trained without the class can say where
between the two an answer lies (after the interpolated approximate measurement, IAM, of
Wang et al., "Towards Lifecycle Unlearning Commitment Management", USENIX Security
2025).
"""

from collections.abc import Callable

import numpy as np
from scipy.special import log_softmax, logsumexp

from fuprune.audit.evidence import HEADLINE, TWO_SIDED
from fuprune.audit.measurements import RAW, Findings, Measurements, each, gather
from fuprune.audit.roc import Scores, find_by_attack
from fuprune.audit.sampling import paired_error
from fuprune.audit.spread import by_role, draft, to_retraining

# Far below any real logit, so that a logit masked to -inf keeps every score finite.
LOGIT_LIMIT = 1e4
# Beyond this many logits an attacker learns nothing more from a larger confidence.
CONFIDENCE_LIMIT = 100.0


def find_membership(measurements: Measurements) -> Findings:
    """Thresholds on loss, confidence, entropy and modified entropy."""
    return gather(
        find_by_attack(
            f"threshold_{name}",
            score_logits(measurements, score),
            attacker=f"a threshold on the {name.replace('_', ' ')}",
            curve=name,
        )
        for name, score in SCORES.items()
    )


def find_difference(measurements: Measurements) -> Findings:
    """Membership from the confidence lost between the raw and the other model.

    The raw model alone gives some membership away, whichever model it is compared with;
    so the area is held against that of retrained models. The raw model has no result:
    it does not differ from itself.
    """
    before = target_confidences(measurements)[RAW]
    return find_by_attack(
        "difference",
        score_targets(measurements, lambda after, _: confidence_lost(before, after)),
        attacker="an attacker who has the model before and after",
        family=HEADLINE,
        positive_control=None,
    )


def confidence_lost(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """`[N]` how many logits of confidence each image has lost."""
    return before - after


def find_interpolated(measurements: Measurements) -> Findings:
    """How far from a retrained model towards the raw one the confidences lie."""
    # Only training images: the share is of what was learned from them.
    labels = measurements.forgotten.labels
    confidences = each(
        measurements, lambda model: logit_confidence(model.forgotten.logits, labels)
    )
    terms = to_retraining(
        confidences,
        lambda own, other: interpolation_terms(own, confidences[RAW], other),
    )
    test = draft(
        "interpolated_share",
        {name: of_model.sum() for name, of_model in terms.items()},
        question=(
            "What share of the raw model's confidence on forgotten training images is "
            "left (0 as one retrained model, 1 as the raw model)?"
        ),
        unit="fraction",
        higher_is=TWO_SIDED,
        # The share is a sum over images, so its error is that of a mean, times N.
        resolution=len(labels) * paired_error(by_role(terms)[1], added=0.0),
    )
    return Findings([test])


def interpolation_terms(confidence, inside, outside) -> np.ndarray:
    """Each image's part of the interpolated share.

    The share t is the least-squares answer to `confidence = outside + t * (inside -
    outside)` over all images, [N] each: exactly t for a model that is that
    interpolation. The terms, `[N]`, are zeros if the two ends agree everywhere.
    """
    span = np.asarray(inside) - np.asarray(outside)
    total = float(np.sum(span**2))
    if total == 0:
        return np.zeros(span.shape)
    return (np.asarray(confidence) - np.asarray(outside)) * span / total


def score_logits(
    measurements: Measurements, score: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> dict[str, Scores]:
    """For every model, scores (logits `[N, U]`, labels `[N]`) -> `[N]` of all targets.

    Members are the forgotten training images, non-members the forgotten test images.
    """
    forgotten = measurements.forgotten_test
    return each(
        measurements,
        lambda model: (
            score(model.forgotten.logits, measurements.forgotten.labels),
            score(model.test.logits[forgotten], measurements.test.labels[forgotten]),
        ),
    )


def target_confidences(measurements: Measurements) -> dict[str, np.ndarray]:
    """Every model's `[F + T']` logit-scaled confidences on members, then the others."""
    scores = score_logits(measurements, logit_confidence)
    return {name: np.concatenate(parts) for name, parts in scores.items()}


def score_targets(
    measurements: Measurements, score: Callable[[np.ndarray, str], np.ndarray]
) -> dict[str, Scores]:
    """For every model, an attack's scores of members and of non-members.

    A model that gives all these images the same confidence, as one with a masked logit
    does, says nothing about any; whatever an attack makes of that stems from its
    references. Its scores are then all zero, which is no result.

    Args:
      measurements: of all models.
      score: (the model's `target_confidences` `[F + T']`, its name) -> `[F + T']`.
    """
    split = len(measurements.forgotten.labels)
    found = {}
    for name, confidence in target_confidences(measurements).items():
        scores = score(confidence, name)
        if np.ptp(confidence) == 0:
            scores = np.zeros_like(scores)
        found[name] = scores[:split], scores[split:]
    return found


def log_probabilities(logits) -> np.ndarray:
    """Log-softmax `[N, U]` in float64, finite also for logits of minus infinity."""
    logits = np.clip(np.asarray(logits, np.float64), -LOGIT_LIMIT, LOGIT_LIMIT)
    return log_softmax(logits, axis=-1)


def loss_score(logits, labels) -> np.ndarray:
    """`[N]` minus cross-entropy: members are fitted better (Yeom et al. 2018)."""
    return _of_label(log_probabilities(logits), labels)


def confidence_score(logits, labels) -> np.ndarray:
    """`[N]` log of the greatest probability, whichever class it is for.

    The probability of the true label would order images as the loss does; the top one
    is another question, and still one when the class has lost its logit.
    """
    del labels
    return log_probabilities(logits).max(axis=-1)


def entropy_score(logits, labels) -> np.ndarray:
    """`[N]` minus entropy: predictions on members are sharper (Salem et al. 2019)."""
    del labels
    log_p = log_probabilities(logits)
    return np.sum(np.exp(log_p) * log_p, axis=-1)


def modified_entropy_score(logits, labels) -> np.ndarray:
    """`[N]` minus the entropy that knows the label (Song and Mittal 2021).

    `-(1 - p_y) log p_y - sum over other classes of p_i log(1 - p_i)`, negated.
    """
    log_p = log_probabilities(logits)
    p = np.exp(log_p)
    own = np.zeros(p.shape, bool)
    own[np.arange(len(p)), np.asarray(labels)] = True
    log_rest = np.log(np.maximum(1 - p, 1e-30))
    return np.sum(np.where(own, (1 - p) * log_p, p * log_rest), axis=-1)


def logit_confidence(logits, labels) -> np.ndarray:
    """`[N]` log(p_y / (1 - p_y)), the nearly Gaussian score of the likelihood ratio.

    Within `CONFIDENCE_LIMIT` on both sides.
    """
    logits = np.clip(np.asarray(logits, np.float64), -LOGIT_LIMIT, LOGIT_LIMIT)
    own = _of_label(logits, labels)
    others = logits.copy()
    others[np.arange(len(others)), np.asarray(labels)] = -np.inf
    confidence = own - logsumexp(others, axis=-1)
    return np.clip(confidence, -CONFIDENCE_LIMIT, CONFIDENCE_LIMIT)


SCORES = {
    "loss": loss_score,
    "confidence": confidence_score,
    "entropy": entropy_score,
    "modified_entropy": modified_entropy_score,
}


def _of_label(values: np.ndarray, labels) -> np.ndarray:
    return values[np.arange(len(values)), np.asarray(labels)]
