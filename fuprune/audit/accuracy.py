"""What the model still answers: accuracy on the forgotten and the retained classes.

The paper's U-set and R-set accuracy (Tables 1-3), and its Table 5: how far the
class-wise accuracies after unlearning are from those after retraining, as KL divergence
and as greatest difference.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from scipy import special

from fuprune.audit.evidence import BETTER, HEADLINE, WORSE
from fuprune.audit.measurements import Findings, Measurements, each
from fuprune.audit.sampling import generator_of
from fuprune.audit.spread import (
    Draft,
    by_role,
    draft_distance,
    draft_rate,
    to_retraining,
)
from fuprune.federated.evaluate import Evaluation
from fuprune.results import to_plain

# (right answers [U], a retrained model's right answers [U], images [U]) -> distance
Statistic = Callable[[np.ndarray, np.ndarray, np.ndarray], float]


def find_accuracy(measurements: Measurements, key: jax.Array) -> Findings:
    """U-set and R-set accuracy, and Table 5's distances of class-wise accuracy."""
    labels, width = measurements.test.labels, measurements.num_classes
    forgotten = measurements.forgotten_test
    answers = each(measurements, lambda model: model.test.logits.argmax(axis=-1))
    tests = [
        draft_rate(
            "u_accuracy",
            {m: (given == labels)[forgotten] for m, given in answers.items()},
            question="How often does the model still recognise the forgotten class?",
            higher_is=WORSE,
            family=HEADLINE,
        ),
        draft_rate(
            "r_accuracy",
            {m: (given == labels)[~forgotten] for m, given in answers.items()},
            question="How good is the model on the classes it should keep?",
            higher_is=BETTER,
            family=HEADLINE,
            positive_control=None,
        ),
    ]
    # Rows are true classes, columns answers: [U, U].
    confusions = {
        model: np.bincount(labels * width + given, minlength=width**2).reshape(
            width, width
        )
        for model, given in answers.items()
    }
    if measurements.retrained:
        tests += _class_distances(
            confusions, generator_of(key), measurements.options.confidence
        )
    per_class = {
        model: Evaluation(confusion, float("nan")).per_class
        for model, confusion in confusions.items()
    }
    detail = {
        "class_accuracies": to_plain(per_class),
        "confusions": to_plain(confusions),
        "test_images_per_class": np.bincount(labels, minlength=width).tolist(),
    }
    return Findings(tests, detail)


def _class_distances(
    confusions: Mapping[str, np.ndarray],
    generator: np.random.Generator,
    confidence: float,
) -> list[Draft]:
    per_class = next(iter(confusions.values())).sum(axis=1)
    right = {model: one.diagonal() for model, one in confusions.items()}
    tests = []
    for name, statistic, question, unit in (
        (
            "class_accuracy_kl",
            accuracy_divergence,
            "How far is the distribution of accuracy over classes from retraining?",
            "nats",
        ),
        (
            "class_accuracy_difference",
            greatest_difference,
            "In the class that differs most, how far is accuracy from retraining?",
            "fraction",
        ),
    ):
        distances = to_retraining(
            right, lambda own, other, s=statistic: s(own, other, per_class)
        )
        noise = sampling_excess(
            statistic,
            by_role(right)[1],
            per_class,
            generator=generator,
            confidence=confidence,
        )
        _, others = by_role(distances)
        # An error that puts the interval's end at that quantile.
        beyond = noise - float(np.mean(others)) if others else 0.0
        tests.append(
            draft_distance(
                name,
                distances,
                question=question,
                unit=unit,
                resolution=max(beyond, 0.0)
                / max(float(special.ndtri(confidence)), 1e-3),
            )
        )
    return tests


def accuracy_distribution(right, per_class) -> np.ndarray:
    """The class-wise accuracies as a probability distribution over classes.

    The paper compares "classification accuracy distributions" without saying how a
    vector of accuracies becomes a distribution. Here each accuracy is the mean of its
    posterior under Jeffreys' prior, (right + 1/2) / (images + 1), so that a class at
    exactly 0% keeps the divergence finite by as much as its number of images warrants,
    and the sum is scaled to 1. Classes without test images are left out: from `[U]`
    right answers and `[U]` test images to `[U']`.
    """
    right, per_class = np.asarray(right, np.float64), np.asarray(per_class)
    known = per_class > 0
    smooth = (right[known] + 0.5) / (per_class[known] + 1)
    return smooth / smooth.sum()


def accuracy_divergence(right, retrained_right, per_class) -> float:
    """KL(P || Q) in nats of accuracy distributions, P the model's, Q a retrained one's.

    In this direction accuracy that the model still has on a class where retraining has
    none weighs most. All arguments are `[U]`: right answers, and test images.
    """
    p = accuracy_distribution(right, per_class)
    q = accuracy_distribution(retrained_right, per_class)
    return float(np.sum(p * np.log(p / q)))


def greatest_difference(right, retrained_right, per_class) -> float:
    """The greatest difference in accuracy over the classes (Table 5)."""
    per_class = np.asarray(per_class)
    known = per_class > 0
    difference = np.abs(np.asarray(right, np.float64) - np.asarray(retrained_right))
    return float(np.max(difference[known] / per_class[known]))


def sampling_excess(
    statistic: Statistic,
    retrained: Sequence[np.ndarray],
    per_class: np.ndarray,
    *,
    generator: np.random.Generator,
    confidence: float,
    draws: int = 500,
) -> float:
    """How far from the retrained models the finite test set alone can put a model.

    Draws models like the retrained ones: each class's true accuracy from its posterior
    given all their answers (Jeffreys prior), then the right answers on a test set of
    this size. Returns the `confidence` quantile of their mean distance to the others.
    Right answers of each retrained model, and test images, are `[U]`.
    """
    total = per_class * len(retrained)
    right = np.sum(retrained, axis=0)
    values = []
    for _ in range(draws):
        truth = generator.beta(right + 0.5, total - right + 0.5)
        drawn = generator.binomial(per_class, truth)
        values.append(
            np.mean([statistic(drawn, other, per_class) for other in retrained])
        )
    return float(np.quantile(values, confidence))
