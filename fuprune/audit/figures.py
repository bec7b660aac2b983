"""Figures of accuracy, probe, relearning and distance: from measured to judged.

Each function hands back evidence and what a report draws.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from fuprune.audit import accuracy, distance
from fuprune.audit.case import (
    RANDOM,
    Case,
    Figures,
    Measured,
    each,
    everyone,
    plain,
    to_retraining,
)
from fuprune.audit.evidence import BETTER, WORSE
from fuprune.audit.membership import area_error
from fuprune.audit.probe import SHOTS, linear_probe
from fuprune.audit.relearn import Relearned
from fuprune.audit.verdict import binomial_error, judge


def accuracy_figures(case: Case, generator: np.random.Generator) -> Figures:
    """U-set and R-set accuracy, and Table 5's distances of class-wise accuracy."""
    retained = [c for c in range(case.num_classes) if c not in case.classes]

    def confusion(model: Measured) -> np.ndarray:
        predictions = model.test.logits.argmax(axis=-1)
        return accuracy.confusion_matrix(
            case.test_labels, predictions, case.num_classes
        )

    def by_class(model: Measured) -> np.ndarray:
        return accuracy.class_accuracies(confusion(model))

    forgotten_size = int(case.forgotten_test.sum())
    retained_size = len(case.test_labels) - forgotten_size
    tests = []
    u_values = each(case, lambda m: accuracy.accuracy_on(confusion(m), case.classes))
    tests.append(
        judge(
            "u_accuracy",
            *u_values,
            kind="accuracy",
            question="How often does the model still recognise the forgotten class?",
            higher_is=WORSE,
            confidence=case.confidence,
            resolution=binomial_error(u_values[1], forgotten_size),
            bounds=(0.0, 1.0),
        )
    )
    r_values = each(case, lambda m: accuracy.accuracy_on(confusion(m), retained))
    tests.append(
        judge(
            "r_accuracy",
            *r_values,
            kind="accuracy",
            question="How good is the model on the classes it should keep?",
            higher_is=BETTER,
            confidence=case.confidence,
            resolution=binomial_error(r_values[1], retained_size),
            bounds=(0.0, 1.0),
            positive_control=None,
        )
    )
    per_class = np.bincount(case.test_labels, minlength=case.num_classes)
    retrained_by_class = [by_class(m) for m in case.retrained]
    for name, statistic, question, unit in (
        (
            "class_accuracy_kl",
            accuracy.accuracy_divergence,
            "How far is the distribution of accuracy over classes from retraining?",
            "nats",
        ),
        (
            "class_accuracy_difference",
            accuracy.greatest_difference,
            "In the class that differs most, how far is accuracy from retraining?",
            "fraction",
        ),
    ):
        if not case.retrained:
            continue
        values, others = to_retraining(
            case, lambda m, other, s=statistic: s(by_class(m), by_class(other))
        )
        noise = accuracy.sampling_excess(
            statistic,
            retrained_by_class,
            per_class,
            generator=generator,
            confidence=case.confidence,
        )
        tests.append(
            judge(
                name,
                values,
                others,
                kind="accuracy",
                question=question,
                unit=unit,
                higher_is=WORSE,
                confidence=case.confidence,
                resolution=max(0.0, noise - float(np.mean(others or [noise])))
                / float(stats.norm.ppf(case.confidence)),
                bounds=(0.0, None),
                leave_one_out=True,
            )
        )
    detail = {
        "class_accuracies": {
            name: plain(by_class(model)) for name, model in everyone(case)
        },
        "confusions": {
            name: confusion(model).tolist() for name, model in everyone(case)
        },
        "test_images_per_class": per_class.tolist(),
    }
    return tests, detail


def probe_figures(case: Case, seed: int) -> Figures:
    """What a fresh linear head recovers, also from a net with random weights."""
    labels = np.concatenate([case.forgotten_labels, case.retained_labels])

    def probe(model: Measured):
        return linear_probe(
            np.concatenate([model.forgotten.features, model.retained.features]),
            labels,
            model.test.features,
            case.test_labels,
            case.classes,
            # The same few-shot images for every model.
            generator=np.random.default_rng(seed),
        )

    shown = {name: probe(model) for name, model in case.shown.items()}
    shown[RANDOM] = probe(case.random_init)
    retrained = [probe(model) for model in case.retrained]
    positives = int(case.forgotten_test.sum())
    error = area_error(positives, len(case.test_labels) - positives)
    tests = []
    for field, name, question in (
        (
            "accuracy",
            "probe_accuracy",
            "How much of the forgotten class does a fresh linear head recover from the "
            "frozen features?",
        ),
        (
            "area",
            "probe_auc",
            "How well does a fresh linear head tell the forgotten class from the rest?",
        ),
        (
            "few_shot_accuracy",
            "probe_few_shot_accuracy",
            f"How much of it does a head recover from {SHOTS} training images of it?",
        ),
    ):
        others = [getattr(result, field) for result in retrained]
        tests.append(
            judge(
                name,
                {model: getattr(result, field) for model, result in shown.items()},
                others,
                kind="probe",
                question=question,
                higher_is=WORSE,
                confidence=case.confidence,
                resolution=(
                    error if field == "area" else binomial_error(others, positives)
                ),
                bounds=(0.0, 1.0),
            )
        )
    return tests, {}


def relearn_figures(
    case: Case,
    shown: Mapping[str, Relearned],
    retrained: Sequence[Relearned],
    *,
    level: float,
    every: int,
    cap: int,
) -> Figures:
    """Steps until the forgotten class is back at `level`."""
    runs = {
        **shown,
        **{f"retrained_{i}": result for i, result in enumerate(retrained)},
    }
    late = [name for name, result in runs.items() if not result.reached]
    notes = [f"back means {level:.3f} accuracy on the forgotten test images"]
    if late:
        notes.append(f"not back within {cap} steps, shown as {cap}: {', '.join(late)}")
    # A model that is back before the first step took less than one look.
    steps = [max(result.steps, 1) for result in retrained]
    test = judge(
        "relearn_steps",
        {name: max(result.steps, 1) for name, result in shown.items()},
        steps,
        kind="relearn",
        question="How many training steps until the forgotten class is back?",
        unit="steps",
        higher_is=BETTER,
        confidence=case.confidence,
        resolution=every / float(np.mean(steps)) if steps else 0.0,
        bounds=(0.0, float(cap)),
        logarithmic=True,
        notes=notes,
    )
    curves = {
        name: {
            "steps": [step for step, _ in result.curve],
            "accuracy": [value for _, value in result.curve],
        }
        for name, result in runs.items()
    }
    return [test], {"relearn": {"level": level, "curves": curves}}


def distance_figures(case: Case) -> Figures:
    """Distances of outputs and of representations on the forgotten training images."""
    if not case.retrained:
        return [], {}
    tests = []
    questions = {
        "jensen_shannon": ("Jensen-Shannon divergence", "nats"),
        "total_variation": ("total variation", "fraction"),
        "activation_distance": ("L2 distance of the softmax outputs", "distance"),
    }
    for name, function in distance.DISTANCES.items():

        def per_image(model: Measured, other: Measured, f=function) -> np.ndarray:
            return f(model.forgotten.logits, other.forgotten.logits)

        values, others = to_retraining(
            case, lambda m, other, f=per_image: float(np.mean(f(m, other)))
        )
        measure, unit = questions[name]
        tests.append(
            judge(
                name,
                values,
                others,
                kind="distance",
                question=(
                    "How far are the answers on forgotten images from retraining "
                    f"({measure})?"
                ),
                unit=unit,
                higher_is=WORSE,
                confidence=case.confidence,
                resolution=_mean_error(case, per_image),
                bounds=(0.0, None),
                leave_one_out=True,
            )
        )

    def alignment(model: Measured, other: Measured) -> dict[str, float]:
        return distance.cka_by_layer(
            model.forgotten.activations, other.forgotten.activations
        )

    layers = {
        name: _mean_by_layer(
            [alignment(model, other) for other in case.retrained if other is not model]
        )
        for name, model in everyone(case)
    }
    shown = {name: layers[name] for name in case.shown}
    others = [layers[f"retrained_{i}"] for i in range(len(case.retrained))]
    if all(shown.values()):
        tests.append(
            judge(
                "cka_distance",
                {name: _apart(values) for name, values in shown.items()},
                [_apart(values) for values in others if values],
                kind="distance",
                question=(
                    "How unlike retraining are the layers' activations on forgotten "
                    "images (one minus linear CKA, mean over layers)?"
                ),
                unit="distance",
                higher_is=WORSE,
                confidence=case.confidence,
                bounds=(0.0, 1.0),
                leave_one_out=True,
            )
        )
    return tests, {"cka": layers}


def _mean_error(case: Case, per_image) -> float:
    """Standard error, over images, of the mean distance among retrained models."""
    if len(case.retrained) < 2:
        return 0.0
    among = np.mean(
        [
            per_image(model, other)
            for model in case.retrained
            for other in case.retrained
            if model is not other
        ],
        axis=0,
    )
    return float(among.std(ddof=1) / np.sqrt(len(among))) if len(among) > 1 else 0.0


def _mean_by_layer(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    if not tables:
        return {}
    common = [layer for layer in tables[0] if all(layer in table for table in tables)]
    return {
        layer: float(np.mean([table[layer] for table in tables])) for layer in common
    }


def _apart(by_layer: Mapping[str, float]) -> float:
    return 1.0 - float(np.mean(list(by_layer.values())))
