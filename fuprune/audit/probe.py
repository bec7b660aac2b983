"""Probes: can a fresh classifier read the forgotten class off the frozen features?

A model that only hides a class (masks its logit, say) keeps features that separate it;
so, to a degree, do retrained and even random nets, which is why theirs are the measure.
Both sides count: features that tell the class apart less than those of retraining show
that somebody worked on them. All images are test images, because the training images of
the class are those that some methods teach wrongly.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from threadpoolctl import ThreadpoolController

from fuprune.audit.evidence import FURTHER, HEADLINE, TWO_SIDED
from fuprune.audit.measurements import RANDOM, Findings, Measurements, ModelOutputs
from fuprune.audit.options import ProbeOptions
from fuprune.audit.sampling import area_error, generator_of, placements
from fuprune.audit.spread import ANGULAR, Draft, by_role, draft_rate
from fuprune.errors import InputError

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

FEATURES = "features"
_FIELDS = {"higher_is": TWO_SIDED, "scale": ANGULAR}

# Share of the other group on the right side of each image: [M], [N].
Placements = tuple[np.ndarray, np.ndarray]


class Task(NamedTuple):
    """One model's features of N test images, and how they are probed."""

    features: dict[str, np.ndarray]  # layer -> [N, D_l]
    labels: np.ndarray  # [N]
    classes: tuple[int, ...]  # the forgotten ones
    options: ProbeOptions
    seed: int  # of folds, starts and draws


class Probes(NamedTuple):
    """What fresh classifiers recover from one model."""

    placements: dict[tuple[str, str], Placements]  # (classifier, layer) -> placements
    few_shot: np.ndarray  # [T'] how often each forgotten test image is recognised


# Gives the probes of all models, by name; None if they were not found after all.
Wait = Callable[[], dict[str, Probes] | None]
# Starts to compute them elsewhere, and returns at once.
Begin = Callable[[Mapping[str, Task]], Wait]


def find_probe(measurements: Measurements, key: jax.Array) -> Findings:
    """Probes by depth and by classifier, their mean, and a few-shot probe."""
    options = measurements.options.probe
    tasks = make_tasks(measurements, key)
    layers = tuple(tasks[RANDOM].features)
    beside = measurements.probes and measurements.probes()
    found = {}
    for name, task in tasks.items():
        measurements.notify(f"probes, {name}")
        found[name] = beside[name] if beside else probe(task)
    classifiers = options.classifiers
    every = [(c, layer) for c in classifiers for layer in layers]
    tests = [
        _area_draft(
            found,
            "probe_auc",
            every,
            "How well do fresh classifiers tell the forgotten class from the rest "
            "(AUC, mean over depths and classifiers)?",
            HEADLINE,
        ),
        _few_shot_draft(found, options),
        *(
            _area_draft(
                found,
                f"probe_{classifier}_auc",
                [(classifier, layer) for layer in layers],
                f"How well does {_WORDS[classifier]} tell the forgotten class from the "
                "rest (AUC, mean over depths)?",
            )
            for classifier in classifiers
        ),
        *(
            _area_draft(
                found,
                f"probe_{classifier}_auc_at_{layer}",
                [(classifier, layer)],
                f"How well does {_WORDS[classifier]} tell the forgotten class from the "
                f"rest by what leaves {layer}?",
            )
            for classifier, layer in every
        ),
    ]
    areas = {
        name: {
            c: [float(probes.placements[c, layer][0].mean()) for layer in layers]
            for c in classifiers
        }
        for name, probes in found.items()
    }
    detail = {
        "probe": {
            "layers": list(layers),
            "classifiers": list(classifiers),
            "areas": areas,
        }
    }
    return Findings(tests, detail)


_WORDS = {
    "linear": "a fresh linear classifier",
    "neighbours": "a vote among the nearest images",
    "network": "a fresh small network",
}


def _layers(
    measurements: Measurements, models: Sequence[ModelOutputs], depths: int
) -> tuple[str, ...]:
    """Layers that all models have, evenly spread over the depth, and the features."""
    common = [
        layer
        for layer in measurements.layers
        if all(layer in model.test.activations for model in models)
    ]
    if len(common) > depths:
        # Without the last place: the features that follow are the end of the depth.
        places = np.linspace(0, len(common) - 1, depths + 1)[:-1] if depths else []
        common = [common[int(round(place))] for place in places]
    return (*common, FEATURES)


def _chosen_images(measurements: Measurements, most: int, seed: int) -> np.ndarray:
    """Rows of test images: at most `most`, forgotten ones first, half of them all."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(measurements.test.labels))
    forgotten = measurements.forgotten_test[order]
    kept = order[forgotten][: most // 2]
    others = order[~forgotten][: max(most - len(kept), 0)]
    return np.sort(np.concatenate([kept, others]))


def make_tasks(measurements: Measurements, key: jax.Array) -> dict[str, Task]:
    """What is to be probed of every model, by its name."""
    options = measurements.options.probe
    generator = generator_of(key)
    # One seed for the folds, starts and draws of every model: only features differ.
    seed = int(generator.integers(2**31))
    rows = _chosen_images(measurements, options.max_images, seed)
    everybody = {**measurements.outputs, RANDOM: measurements.random_init}
    layers = _layers(measurements, list(everybody.values()), options.depths)
    labels, classes = measurements.test.labels[rows], measurements.classes
    tasks = {}
    for name, model in everybody.items():
        values = {**model.test.activations, FEATURES: model.test.features}
        features = {layer: values[layer][rows] for layer in layers}
        tasks[name] = Task(features, labels, classes, options, seed)
    return tasks


def probe(task: Task) -> Probes:
    """What fresh classifiers recover from one model's features."""
    features, labels, classes, options, seed = task
    forgotten = np.isin(labels, classes)
    placed = {}
    for classifier in options.classifiers:
        for layer, values in features.items():
            scores = held_out_scores(
                values, labels, forgotten, classifier, options, seed
            )
            placed[classifier, layer] = placements(
                scores[forgotten], scores[~forgotten]
            )
    few = few_shot_recognition(features[FEATURES], labels, classes, options, seed)
    return Probes(placed, few)


def import_classifiers() -> None:
    """Imports what the probes need of scikit-learn, which takes seconds."""
    _make_classifier("network", ProbeOptions(), 0)
    from sklearn import model_selection  # noqa: F401


def held_out_scores(
    features, labels, forgotten, classifier: str, options: ProbeOptions, seed: int
) -> np.ndarray:
    """`[N]` scores of "forgotten" for every image, by classifiers that never saw it.

    Args:
      features: `[N, D]`.
      labels: `[N]`; every fold has its share of each class.
      forgotten: `[N]` bool, what is to be told.
      classifier: "linear", "neighbours" or "network".
      options: folds and neighbours.
      seed: of folds and of the network's start.
    """
    # Seconds to import, so only by the probes themselves.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold

    features = np.asarray(features, np.float64)
    forgotten = np.asarray(forgotten)
    scores = np.zeros(len(features))
    # No class has an image for every fold: nothing can be held out, so that all tie.
    if np.unique(labels, return_counts=True)[1].max() < options.folds:
        return scores
    folds = StratifiedKFold(options.folds, shuffle=True, random_state=seed)
    # Problems this small lose far more to BLAS threads than they gain.
    with _threads().limit(limits=1), warnings.catch_warnings():
        # One that is stopped early is stopped at the same step for every model.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # Classes with fewer images than folds are spread as far as they go.
        warnings.simplefilter("ignore", UserWarning)
        for fitted, scored in folds.split(features, labels):
            # Nothing to learn from; these images tie at a score of 0.
            if len(set(forgotten[fitted])) < 2:
                continue
            # A vote among all images where there are fewer than neighbours to ask.
            fewest = min(options.neighbours, len(fitted))
            voters = options._replace(neighbours=fewest)
            model = _make_classifier(classifier, voters, seed)
            model.fit(features[fitted], forgotten[fitted])
            scores[scored] = model.predict_proba(features[scored])[:, 1]
    return scores


# Looking for the libraries takes longer than many a fit. They are loaded by then.
@functools.cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


def _make_classifier(name: str, options: ProbeOptions, seed: int) -> "Pipeline":
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    last: Any
    # Balanced, because the forgotten classes are a small part of the images.
    if name == "linear":
        last = LogisticRegression(class_weight="balanced", max_iter=100)
    elif name == "neighbours":
        last = KNeighborsClassifier(options.neighbours, weights="distance")
    elif name == "network":
        settings: dict[str, Any] = {"batch_size": 32, "max_iter": 20}
        last = MLPClassifier(
            (16,), learning_rate_init=0.01, random_state=seed, **settings
        )
    else:
        raise InputError(f"the classifier is {name!r}; allowed: {sorted(_WORDS)}")
    # Networks differ in the scale of their features, which is no knowledge.
    return make_pipeline(StandardScaler(), last)


def few_shot_recognition(
    features, labels, classes: Sequence[int], options: ProbeOptions, seed: int
) -> np.ndarray:
    """How often a head that saw a few images of a class recognises its other images.

    On easy data a classifier with many images separates the class in nearly any
    features. With a few images of it among more of the others, it needs features in
    which the class lies together already: there a model that knew it stands out.

    Args:
      features: `[N, D]` of test images.
      labels: `[N]`.
      classes: the forgotten classes.
      options: shots, companions and draws.
      seed: of the draws, the same for every model.

    Returns:
      `[T']` for each forgotten image the share of draws that recognise it, among those
      that were not taught it; NaN if there is none.
    """
    from sklearn.exceptions import ConvergenceWarning

    features, labels = np.asarray(features, np.float64), np.asarray(labels)
    generator = np.random.default_rng(seed)
    right, asked = np.zeros(len(labels)), np.zeros(len(labels))
    forgotten = np.isin(labels, list(classes))
    for _ in range(options.draws):
        rows = np.concatenate(
            [
                generator.permutation(np.flatnonzero(labels == c))[
                    : options.shots if c in classes else options.companions
                ]
                for c in np.unique(labels)
            ]
        )
        # An image that was taught in this draw says nothing in it.
        held_out = forgotten.copy()
        held_out[rows] = False
        if not held_out.any():
            continue
        head = _make_classifier("linear", options, seed)
        with _threads().limit(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            guess = head.fit(features[rows], labels[rows]).predict(features[held_out])
        right[held_out] += guess == labels[held_out]
        asked[held_out] += 1
    with np.errstate(invalid="ignore"):
        return (right / asked)[forgotten]


def _area_draft(
    found: dict[str, Probes],
    name: str,
    places: Sequence[tuple[str, str]],
    question: str,
    family: str = FURTHER,
) -> Draft:
    """The test of an area, or of a mean of areas over the same images."""

    def mean_placements(probes: Probes) -> Placements:
        members, others = zip(*(probes.placements[p] for p in places), strict=True)
        return np.mean(members, axis=0), np.mean(others, axis=0)

    pairs = {model: mean_placements(probes) for model, probes in found.items()}
    return draft_rate(
        name,
        {model: members for model, (members, _) in pairs.items()},
        resolution=area_error(by_role(pairs)[1]),
        **_FIELDS,
        question=question,
        family=family,
    )


def _few_shot_draft(found: dict[str, Probes], options: ProbeOptions) -> Draft:
    shares = {name: probes.few_shot for name, probes in found.items()}
    # Images that every draw happened to teach have no share.
    known = ~np.isnan(np.stack(list(shares.values()))).any(axis=0)
    return draft_rate(
        "probe_few_shot_accuracy",
        {name: share[known] for name, share in shares.items()},
        **_FIELDS,
        question=(
            f"How much of the class does a head recover from {options.shots} images of "
            "it?"
        ),
        family=HEADLINE,
    )
