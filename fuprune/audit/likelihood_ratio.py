"""Membership inference by likelihood ratio (LiRA, Carlini et al. 2022).

How confident would a model be on this very image had it been trained on it, and had it
not? Reference models answer with Gaussians of the logit-scaled confidence. The online
variant has references of both kinds; the offline one only references that never saw the
image, for which retrained models qualify: no image of a forgotten class, from training
or test set, was in their training data.
"""

import numpy as np

from fuprune.errors import InputError

# With fewer references than this, Carlini et al. pool the variance over all images.
ENOUGH_FOR_VARIANCE = 16


def online_scores(scores, references, members) -> np.ndarray:
    """Log-likelihood ratio of "trained on it" against "not", for each image.

    Args:
      scores: `[N]` logit-scaled confidences of the model under attack.
      references: `[S, N]` the same of the reference models.
      members: `[S, N]` bool, whether a reference was trained on an image.

    Returns:
      `[N]`, larger for likelier members.

    Raises:
      ValueError: an image lacks references of one kind.
    """
    members = np.asarray(members, bool)
    return _log_density(scores, references, members) - _log_density(
        scores, references, ~members
    )


def offline_scores(scores, references) -> np.ndarray:
    """How far above the references that never saw it each image scores, in deviations.

    This is the one-sided test of the paper's offline variant, left as a z-value: its
    normal probability would round to 1 for confident members.

    Args:
      scores: `[N]` logit-scaled confidences of the model under attack.
      references: `[S, N]` the same of models trained without the images.

    Returns:
      `[N]`, larger for likelier members.

    Raises:
      ValueError: there are no references.
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
        freedom = counts.sum() - counts.size
        pooled = squares.sum() / freedom if freedom > 0 else 1.0
        variance = np.full(mean.shape, pooled)
    return mean, np.sqrt(np.maximum(variance, 1e-12))
