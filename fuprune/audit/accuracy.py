"""What the model still answers: accuracy on the forgotten and the retained classes.

The paper's U-set and R-set accuracy (Tables 1-3), and its Table 5: how far the
class-wise accuracies after unlearning are from those after retraining, as KL divergence
and as greatest difference.
"""

from collections.abc import Sequence

import numpy as np


def confusion_matrix(labels, predictions, num_classes: int) -> np.ndarray:
    """Counts `[U, U]`: row is the true class, column the predicted one.

    Args:
      labels: `[N]` true classes.
      predictions: `[N]` predicted classes.
      num_classes: U.

    Returns:
      `[U, U]` int64.
    """
    flat = np.asarray(labels, np.int64) * num_classes + np.asarray(predictions)
    counts = np.bincount(flat, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def class_accuracies(confusion: np.ndarray) -> np.ndarray:
    """`[U]` accuracy of each class; NaN for a class without test images."""
    total = confusion.sum(axis=1)
    correct = np.diagonal(confusion)
    return np.where(total > 0, correct / np.maximum(total, 1), np.nan)


def accuracy_on(confusion: np.ndarray, classes: Sequence[int]) -> float:
    """The fraction right of the test images of `classes`: U-set or R-set accuracy."""
    rows = confusion[list(classes)]
    correct = sum(int(confusion[c, c]) for c in classes)
    return correct / max(int(rows.sum()), 1)


def accuracy_distribution(accuracies, epsilon: float = 1e-6) -> np.ndarray:
    """The class-wise accuracies as a probability distribution over classes.

    The paper compares "classification accuracy distributions" without saying how a
    vector of accuracies becomes a distribution. Here `epsilon` is added to each, so
    that a class at exactly 0% keeps the divergence finite, and the sum is scaled to 1.
    Classes without test images (NaN) are left out.

    Args:
      accuracies: `[U]`.
      epsilon: the smoothing.

    Returns:
      `[U']`, summing to 1, U' the number of classes with test images.
    """
    accuracies = np.asarray(accuracies, np.float64)
    smooth = accuracies[~np.isnan(accuracies)] + epsilon
    return smooth / smooth.sum()


def accuracy_divergence(accuracies, retrained_accuracies) -> float:
    """KL(P || Q) in nats of accuracy distributions, P the model's, Q a retrained one's.

    In this direction accuracy that the model still has on a class where retraining has
    none weighs most.

    Args:
      accuracies: `[U]` of the model.
      retrained_accuracies: `[U]` of a retrained model.

    Returns:
      The divergence, 0 for equal distributions.
    """
    p = accuracy_distribution(accuracies)
    q = accuracy_distribution(retrained_accuracies)
    return float(np.sum(p * np.log(p / q)))


def greatest_difference(accuracies, retrained_accuracies) -> float:
    """The greatest difference in accuracy over the classes (Table 5)."""
    difference = np.abs(np.asarray(accuracies) - np.asarray(retrained_accuracies))
    return float(np.nanmax(difference))


def sampling_excess(
    statistic,
    retrained: Sequence[np.ndarray],
    per_class: np.ndarray,
    *,
    generator: np.random.Generator,
    confidence: float,
    draws: int = 500,
) -> float:
    """How far from the retrained models the finite test set alone can put a model.

    Draws models like the retrained ones: each class's true accuracy from its posterior
    given all their answers (Jeffreys prior), then the accuracy seen on a test set of
    this size. Returns the `confidence` quantile of their mean distance to the others.

    Args:
      statistic: `(accuracies [U], accuracies [U]) -> float`.
      retrained: `[U]` accuracies of each retrained model.
      per_class: `[U]` test images of each class.
      generator: source of randomness.
      confidence: the quantile.
      draws: simulated models.

    Returns:
      The quantile of the statistic.
    """
    known = per_class > 0
    total = per_class[known] * len(retrained)
    right = np.mean(retrained, axis=0)[known] * total
    values = []
    for _ in range(draws):
        drawn = np.full(per_class.shape, np.nan)
        truth = generator.beta(right + 0.5, total - right + 0.5)
        drawn[known] = generator.binomial(per_class[known], truth) / per_class[known]
        values.append(np.mean([statistic(drawn, other) for other in retrained]))
    return float(np.quantile(values, confidence))
