"""Probes: what can be read off a model's frozen features?

A model that only hides a class keeps features that separate it; so, to a degree, do
retrained ones, which is why theirs are the measure. Both sides count: features that
tell the class apart less than those of retraining show that somebody worked on them.
All images are test images.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from scipy.stats import percentileofscore
from threadpoolctl import threadpool_limits

from fuprune.audit.judge import HIGHER, Measure
from fuprune.audit.measures import (
    Subject,
    of_images,
    of_numbers,
    to_retraining,
)
from fuprune.audit.outputs import DEPTHS

FOLDS = 2
# Of a few-shot probe: images of each forgotten class, of each other one, and draws.
SHOTS, COMPANIONS, DRAWS = 2, 10, 5
_WORDS = {
    "early": "after a third of the layers",
    "middle": "after two thirds of the layers",
    "last": "before the last layer",
}


def probe_measures(subject: Subject, generator: np.random.Generator) -> list[Measure]:
    """Linear probes at three depths in the headline; two others, and CKA, described."""
    labels = subject.test.labels[subject.probed]
    forgotten = np.isin(labels, subject.classes)
    # One seed for the folds and draws of every model: only features differ.
    seed = int(generator.integers(2**31))
    depths = subject.each(lambda one: one.depths)
    measures = []
    for depth in DEPTHS:
        # A network without layers before the last lacks the other depths.
        if not all(depth in found for found in depths.values()):
            continue
        scores = {
            name: held_out_scores(found[depth], labels, forgotten, seed)
            for name, found in depths.items()
        }
        measures.append(
            of_images(
                f"probe_{depth}",
                "probe",
                {
                    name: placements(one[forgotten], one[~forgotten])
                    for name, one in scores.items()
                },
                f"How well does a linear probe {_WORDS[depth]} tell the class from the "
                "others (AUC, 0.5 is guessing)?",
                headline=True,
            )
        )
    last = {name: found["last"] for name, found in depths.items()}
    few = {n: few_shot(x, labels, subject.classes, seed) for n, x in last.items()}
    # Images that every draw happened to teach have no share.
    known = ~np.isnan(np.stack(list(few.values()))).any(axis=0)
    return [
        *measures,
        of_images(
            "probe_few_shot",
            "probe",
            {name: share[known] for name, share in few.items()},
            f"How many images of the class does a head recognise that saw {SHOTS} of "
            "them?",
            note="It can be gamed: distilled features lower it, and the class comes "
            "back as fast.",
        ),
        of_images(
            "prototype",
            "probe",
            {n: prototype(x, labels, subject.classes, seed) for n, x in last.items()},
            "How many images of the class are nearest to the mean features of its "
            "others?",
        ),
        of_numbers(
            "cka_distance",
            "probe",
            to_retraining(depths, _cka_distance),
            "How unlike retraining's are the features (one minus linear CKA, mean over "
            "depths)?",
            unit="distance",
            harm=HIGHER,
        ),
    ]


def placements(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """`[M]` the share of the others below each score, ties one half.

    The mean is the area under the ROC curve.
    """
    return percentileofscore(others, scores, kind="mean") / 100


def held_out_scores(features, labels, forgotten, seed: int) -> np.ndarray:
    """`[N]` linear scores of "forgotten" by probes fitted on the other images.

    Args:
      features: `[N, D]`.
      labels: `[N]`; every fold has its share of each class.
      forgotten: `[N]` bool, what is to be told.
      seed: of the folds.
    """
    # Seconds to import, so only by the probes themselves.
    from sklearn.model_selection import StratifiedKFold

    features, forgotten = np.asarray(features, np.float64), np.asarray(forgotten)
    scores = np.zeros(len(features))
    # No class has an image for every fold: nothing can be held out, so that all tie.
    if np.unique(labels, return_counts=True)[1].max() < FOLDS:
        return scores
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    # Problems this small lose far more to BLAS threads than they gain.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # One that is stopped early is stopped at the same step for every model, and
        # classes with fewer images than folds are spread as far as they go.
        warnings.simplefilter("ignore", UserWarning)
        for fitted, scored in folds.split(features, labels):
            # Nothing to learn from; these images tie at a score of 0.
            if len(set(forgotten[fitted])) < 2:
                continue
            probe = linear_probe().fit(features[fitted], forgotten[fitted])
            # Probabilities, which are alike in scale from fold to fold.
            scores[scored] = probe.predict_proba(features[scored])[:, 1]
    return scores


def linear_probe():
    """A logistic regression on features of unit variance, classes balanced."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = LogisticRegression(class_weight="balanced", max_iter=100)
    # Networks differ in the scale of their features, which is no knowledge.
    return make_pipeline(StandardScaler(), regression)


def few_shot(features, labels, classes: Sequence[int], seed: int) -> np.ndarray:
    """How often a head that saw a few images of a class recognises its other images.

    From `[N, D]` features to `[T]`, for each forgotten image the share of draws that
    recognise it among those that were not taught it; NaN if there is none.
    """
    features, labels = np.asarray(features, np.float64), np.asarray(labels)
    generator = np.random.default_rng(seed)
    right, asked = np.zeros(len(labels)), np.zeros(len(labels))
    forgotten = np.isin(labels, list(classes))
    for _ in range(DRAWS):
        rows = np.concatenate(
            [
                generator.permutation(np.flatnonzero(labels == c))[
                    : SHOTS if c in classes else COMPANIONS
                ]
                for c in np.unique(labels)
            ]
        )
        # An image that was taught in this draw says nothing in it.
        held_out = forgotten.copy()
        held_out[rows] = False
        if not held_out.any():
            continue
        with threadpool_limits(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            head = linear_probe().fit(features[rows], labels[rows])
        right[held_out] += head.predict(features[held_out]) == labels[held_out]
        asked[held_out] += 1
    with np.errstate(invalid="ignore"):
        return (right / asked)[forgotten]


def prototype(features, labels, classes: Sequence[int], seed: int) -> np.ndarray:
    """`[T]` which forgotten images are nearest, by angle, to their class's mean.

    The means `[U, D]` are of one half of each class and the images of the other, in
    turn; an image that is alone in its class is never recognised.
    """
    features, labels = np.asarray(features, np.float64), np.asarray(labels)
    known = np.unique(labels)
    place = np.random.default_rng(seed).permutation(len(labels))
    half = np.zeros(len(labels), np.int64)
    for c in known:
        rows = np.flatnonzero(labels == c)
        half[rows[np.argsort(place[rows])]] = np.arange(len(rows)) % 2
    right = np.zeros(len(labels), bool)
    for side in (0, 1):
        means = np.zeros((len(known), features.shape[1]))
        for i, c in enumerate(known):
            rows = (labels == c) & (half == side)
            if rows.any():
                means[i] = features[rows].mean(axis=0)
        lengths = np.maximum(np.linalg.norm(means, axis=1), 1e-12)
        nearest = known[np.argmax(features @ (means / lengths[:, None]).T, axis=1)]
        asked = half != side
        right[asked] = (nearest == labels)[asked]
    return right[np.isin(labels, list(classes))]


def linear_cka(features, other_features) -> float:
    """Linear centered kernel alignment (Kornblith et al. 2019) of two representations.

    `||Y'X||^2 / (||X'X|| ||Y'Y||)` for column-centred X and Y: 1 for representations
    equal up to rotation and scale. The widths, `[N, C]` and `[N, D]`, may differ. A
    constant representation is like another constant one (1) and unlike any other (0).
    """
    both = (np.asarray(a, np.float64) for a in (features, other_features))
    x, y = (values - values.mean(axis=0) for values in both)
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    if norms < 1e-24:
        return float(np.allclose(x, 0) and np.allclose(y, 0))
    return float(min(np.linalg.norm(y.T @ x) ** 2 / norms, 1.0))


def _cka_distance(own: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    both = [depth for depth in DEPTHS if depth in own and depth in other]
    return 1.0 - float(np.mean([linear_cka(own[d], other[d]) for d in both]))
