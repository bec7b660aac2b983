"""Membership inference by likelihood ratio (LiRA, Carlini et al. 2022).

How confident would a model be on this very image had it been trained on it, and had it
not? Reference models answer with Gaussians of the logit-scaled confidence. The online
variant has references of both kinds; the offline one only references that never saw the
image, for which retrained models qualify: no image of a forgotten class, from training
or test set, was in their training data.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from fuprune.audit.evidence import HEADLINE
from fuprune.audit.measurements import Findings, Measurements
from fuprune.audit.membership import (
    logit_confidence,
    score_targets,
    target_confidences,
)
from fuprune.audit.roc import Scores, find_by_attack
from fuprune.errors import InputError

# With fewer references than this, Carlini et al. pool the variance over all images.
ENOUGH_FOR_VARIANCE = 16


def find_online(measurements: Measurements) -> Findings:
    """LiRA with shadow models as references."""
    shadows = measurements.shadows
    assert shadows is not None
    return find_by_attack(
        "likelihood_ratio_online",
        attack_online(measurements, shadows.logits[:, shadows.targets]),
        attacker="a likelihood-ratio attacker (online, with shadow references)",
        low_rates=True,
    )


def find_offline(measurements: Measurements) -> Findings:
    """LiRA with retrained models as references."""
    return find_by_attack(
        "likelihood_ratio_offline",
        _attack_offline(measurements),
        attacker="a likelihood-ratio attacker (offline, with retrained references)",
        family=HEADLINE,
        low_rates=True,
    )


def attack_online(
    measurements: Measurements, shadow_logits: np.ndarray
) -> dict[str, Scores]:
    """Online scores of every model.

    Args:
      measurements: with shadow models.
      shadow_logits: `[S, F + T', U]` of the shadow models on their targets.
    """
    shadows = measurements.shadows
    assert shadows is not None
    labels = shadows.pool.labels[shadows.targets]
    references = [logit_confidence(logits, labels) for logits in shadow_logits]
    members = shadows.members[:, shadows.targets]
    return score_targets(
        measurements, lambda own, _: online_scores(own, references, members)
    )


def _attack_offline(measurements: Measurements) -> dict[str, Scores]:
    """Offline scores with n - 1 references, whichever model is attacked.

    A retrained model is never its own reference, so it has n - 1. For any other model
    the scores are the mean over all choices of n - 1: with more references than the
    retrained models have, its attack would be the sharper one for that reason alone.
    """
    confidences, retrained = target_confidences(measurements), measurements.retrained

    def score(own: np.ndarray, name: str) -> np.ndarray:
        others = [confidences[other] for other in retrained if other != name]
        return mean_offline_scores(own, others, len(retrained) - 1)

    return score_targets(measurements, score)


def mean_offline_scores(
    scores: np.ndarray, references: Sequence[np.ndarray], size: int
) -> np.ndarray:
    """The mean of `offline_scores` over all choices of `size` of the references."""
    # From the end: the first of the references is the first to be left out.
    choices = list(itertools.combinations(references, size))[::-1]
    return np.mean([offline_scores(scores, one) for one in choices], axis=0)


def online_scores(scores, references, members) -> np.ndarray:
    """`[N]` log-likelihood ratio of "trained on it" against "not", for each image.

    Args:
      scores: `[N]` logit-scaled confidences of the model under attack.
      references: `[S, N]` the same of the reference models.
      members: `[S, N]` bool, whether a reference was trained on an image.

    Raises:
      InputError: an image lacks references of one kind.
    """
    members = np.asarray(members, bool)
    return _log_density(scores, references, members) - _log_density(
        scores, references, ~members
    )


def offline_scores(scores, references) -> np.ndarray:
    """How far above the references that never saw it each image scores, in deviations.

    This is the one-sided test of the paper's offline variant, left as a z-value: its
    normal probability would round to 1 for confident members. Scores are `[N]`
    logit-scaled confidences, references `[S, N]` those of models trained without the
    images.
    """
    references = np.asarray(references, np.float64)
    mean, deviation = _gaussians(references, np.ones(references.shape, bool))
    return (np.asarray(scores, np.float64) - mean) / deviation


def _log_density(scores, references, chosen: np.ndarray) -> np.ndarray:
    mean, deviation = _gaussians(np.asarray(references, np.float64), chosen)
    z = (np.asarray(scores, np.float64) - mean) / deviation
    return -0.5 * z**2 - np.log(deviation)


def _gaussians(references: np.ndarray, chosen: np.ndarray):
    """Mean `[N]` and deviation `[N]` of each image's chosen references."""
    counts = chosen.sum(axis=0)
    if not counts.size or counts.min() < 1:
        raise InputError(
            "an image has no reference model of one kind; give more reference models, "
            "each trained on half of the images"
        )
    mean = np.sum(references, axis=0, where=chosen) / counts
    squares = np.sum((references - mean) ** 2, axis=0, where=chosen)
    if counts.min() >= ENOUGH_FOR_VARIANCE:
        variance = squares / (counts - 1)
    else:
        # A few references give no variance per image: one for all images, less a degree
        # of freedom for each image's own mean.
        freedom = counts.sum() - counts.size
        pooled = squares.sum() / freedom if freedom > 0 else 1.0
        variance = np.full(mean.shape, pooled)
    return mean, np.sqrt(np.maximum(variance, 1e-12))
