"""Draws, and sampling errors: how much the choice of test images moves a number.

All models answer for the same images, so errors are those of differences between
models, image by image: what makes an image hard for every model cancels. Each error is
that of a further model against the mean of n retrained ones, estimated by leaving each
of these out in turn.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np


def generator_of(key: jax.Array) -> np.random.Generator:
    """NumPy's source of randomness, as a JAX key fixes it."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def place_in_class(labels) -> np.ndarray:
    """`[N]` the place of each image among those of its class, in the order given.

    Taking the lowest places first takes the same number of every class.
    """
    labels = np.asarray(labels)
    place = np.empty(len(labels), np.int64)
    for c in np.unique(labels):
        of_class = np.flatnonzero(labels == c)
        place[of_class] = np.arange(len(of_class))
    return place


def paired_error(per_image, added: float = 2.0) -> float:
    """The error of a mean over images, such as an accuracy.

    Models that agree on all N images would have no error, yet the next image might set
    them apart. So two images are added on which they differ by one, once each way.

    Args:
      per_image: `[n, N]` each model's number for each image.
      added: the images added; 0 for numbers that hardly ever agree.

    Returns:
      The standard error of one more model's mean against the mean of these; 0 with
      fewer than two models.
    """
    per_image = np.asarray(per_image, np.float64)
    if len(per_image) < 2 or not per_image.shape[1]:
        return 0.0
    squares = _squares_from_the_others(per_image)
    variance = float(np.mean(squares + added)) / per_image.shape[1] ** 2
    return _against_all(len(per_image)) * math.sqrt(variance)


def area_error(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """The error of an area under the ROC curve (DeLong et al. 1988).

    The area is the mean, over members, of the share of non-members that each outscores
    (its placement), and likewise over non-members; the variances of the two kinds of
    placement differences add up. In each group half an image is added that is out of
    order, so that perfect areas have an error, too.

    Args:
      pairs: for each of n models, `[M]` and `[N]` placements, see `placements`; for a
        mean of several areas over the same images, the mean of their placements.

    Returns:
      The standard error, as of `paired_error`; 0 with fewer than two models.
    """
    if len(pairs) < 2:
        return 0.0
    variance = 0.0
    for group in zip(*pairs, strict=True):
        squares = _squares_from_the_others(np.stack(group))
        variance += (float(np.mean(squares)) + 0.5) / len(group[0]) ** 2
    return _against_all(len(pairs)) * math.sqrt(variance)


def placements(members, non_members) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the other group on the right side of each score, ties one half.

    From scores `[M]` and `[N]` to `[M]`, the share of non-members below each member,
    and `[N]`, the share of members above each non-member; the mean of either is the
    area under the ROC curve.
    """
    members, non_members = np.asarray(members), np.asarray(non_members)
    below = _share_below(non_members, members)
    above = 1 - _share_below(members, non_members)
    return below, above


def _share_below(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    ordered = np.sort(scores)
    # The mean of both sides counts equal scores by one half.
    left = np.searchsorted(ordered, thresholds, side="left")
    right = np.searchsorted(ordered, thresholds, side="right")
    return (left + right) / (2 * len(ordered))


def _squares_from_the_others(values: np.ndarray) -> np.ndarray:
    """`[n]` summed squares, about their mean, of each row minus the others' mean."""
    n = len(values)
    # x_i minus the mean of the others is n / (n - 1) times x_i minus the mean of all.
    differences = (values - values.mean(axis=0)) * n / (n - 1)
    centred = differences - differences.mean(axis=1, keepdims=True)
    return np.sum(centred**2, axis=1)


def _against_all(n: int) -> float:
    """From the error against n - 1 others to the error against all n."""
    return math.sqrt((1 + 1 / n) / (1 + 1 / (n - 1)))
