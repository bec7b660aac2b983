"""Linear probe: can a fresh head read the forgotten class off the frozen features?

A model that only hides a class (masks its logit, say) keeps features that separate it;
so, to a degree, do retrained and even random nets, which is why theirs are the measure.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from fuprune.audit.membership import area_under, roc_curve

# Images of a forgotten class that the few-shot probe is given.
SHOTS = 2


class Probe(NamedTuple):
    """What a fresh head recovers of the forgotten classes."""

    accuracy: float  # on their test images, among all classes
    area: float  # one-vs-rest AUC, forgotten test images against all others
    few_shot_accuracy: float  # the accuracy if only a few of their images are at hand


def linear_probe(
    features,
    labels,
    test_features,
    test_labels,
    classes: Sequence[int],
    *,
    generator: np.random.Generator,
    shots: int = SHOTS,
    companions: int = 30,
    draws: int = 20,
) -> Probe:
    """Fits a linear head on training features of all classes, the forgotten included.

    On easy data a head with all images separates the class in nearly any features. With
    a few images of it among many others, the head needs features in which the class
    lies together already: that is where a model that knew it stands out.

    Args:
      features: `[N, D]` of training images.
      labels: `[N]`.
      test_features: `[M, D]`.
      test_labels: `[M]`.
      classes: the forgotten classes.
      generator: draws the few-shot training images.
      shots: images of each forgotten class in a few-shot probe.
      companions: images of each other class in it.
      draws: few-shot probes to average over.

    Returns:
      The recoverable accuracy, area, and few-shot accuracy.
    """
    features, test_features = np.asarray(features), np.asarray(test_features)
    labels, test_labels = np.asarray(labels), np.asarray(test_labels)
    forgotten = np.isin(test_labels, list(classes))
    head = _fit(features, labels)
    probabilities = head.predict_proba(test_features)
    predicted = head.classes_[probabilities.argmax(axis=-1)]
    mass = probabilities[:, np.isin(head.classes_, list(classes))].sum(axis=-1)
    few = []
    for _ in range(draws):
        rows = np.concatenate(
            [
                generator.permutation(np.flatnonzero(labels == c))[
                    : shots if c in classes else companions
                ]
                for c in np.unique(labels)
            ]
        )
        guess = _fit(features[rows], labels[rows]).predict(test_features[forgotten])
        few.append(np.mean(guess == test_labels[forgotten]))
    return Probe(
        accuracy=float(np.mean((predicted == test_labels)[forgotten])),
        area=area_under(roc_curve(mass[forgotten], mass[~forgotten])),
        few_shot_accuracy=float(np.mean(few)),
    )


def _fit(features, labels):
    head = make_pipeline(
        StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=300)
    )
    # Problems this small lose far more to BLAS threads than they gain.
    with threadpool_limits(1), warnings.catch_warnings():
        # A head stopped early is stopped at the same step for every model.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return head.fit(np.asarray(features, np.float64), labels)
