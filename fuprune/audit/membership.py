"""Membership inference without training anything: scores and thresholds.

An attacker who sees a model's output on an image of the forgotten class guesses whether
that very image was trained on. Scores are larger for likelier members; members are the
forgotten class's training images, non-members its test images. ROC curves, their area
and the low-false-positive end (Carlini et al. 2022) are computed here for every attack.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax, logsumexp

from fuprune.errors import InputError

# Far below any real logit, so that a logit masked to -inf keeps every score finite.
LOGIT_LIMIT = 1e4


class Roc(NamedTuple):
    """A receiver operating characteristic, from the strictest threshold on."""

    false_positives: np.ndarray  # [T] rates, ascending from 0 to 1
    true_positives: np.ndarray  # [T] rates, ascending from 0 to 1


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
    """`[N]` log(p_y / (1 - p_y)), the nearly Gaussian score of the likelihood ratio."""
    logits = np.clip(np.asarray(logits, np.float64), -LOGIT_LIMIT, LOGIT_LIMIT)
    own = _of_label(logits, labels)
    others = logits.copy()
    others[np.arange(len(others)), np.asarray(labels)] = -np.inf
    return own - logsumexp(others, axis=-1)


SCORES = {
    "loss": loss_score,
    "confidence": confidence_score,
    "entropy": entropy_score,
    "modified_entropy": modified_entropy_score,
}


def roc_curve(members, non_members) -> Roc:
    """The ROC of "score at or above a threshold means member".

    Args:
      members: `[M]` scores of training images.
      non_members: `[N]` scores of images that were not trained on.

    Returns:
      One point per distinct score, and (0, 0).

    Raises:
      ValueError: one of the two is empty or holds NaN.
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


def balanced_accuracy(roc: Roc) -> float:
    """The mean of true positive and true negative rate at the best threshold."""
    return float(np.max(roc.true_positives + 1 - roc.false_positives) / 2)


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


def area_error(num_members: int, num_non_members: int) -> float:
    """The standard error of the area of an attack that knows nothing (Mann-Whitney)."""
    m, n = num_members, num_non_members
    return float(np.sqrt((m + n + 1) / (12 * m * n)))


def _at_or_above(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    below = np.searchsorted(np.sort(scores), thresholds, side="left")
    return np.concatenate([[0.0], (scores.size - below) / scores.size])


def _of_label(values: np.ndarray, labels) -> np.ndarray:
    return values[np.arange(len(values)), np.asarray(labels)]
