"""Each kind of evidence, from measured outputs to judged figures.

A function here takes the `Case` (what every model answered on the same images),
computes its figures for the candidates, the raw model and every retrained seed, and
hands back evidence and what a report draws. Distances to retraining are taken to every
retrained model and averaged; a retrained model's own distance leaves itself out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fuprune.audit import accuracy, distance, likelihood_ratio, membership, shadow
from fuprune.audit.evidence import BETTER, TWO_SIDED, WORSE, Evidence
from fuprune.audit.outputs import Outputs
from fuprune.audit.probe import SHOTS, linear_probe
from fuprune.audit.relearn import Relearned
from fuprune.audit.verdict import binomial_error, judge

RAW = "raw"
RANDOM = "random_init"
LOW_RATES = {"1": 0.01, "0.1": 0.001}

Figures = tuple[list[Evidence], dict[str, Any]]


class Measured(NamedTuple):
    """What one model answered."""

    forgotten: Outputs  # on training images of the forgotten classes, with activations
    retained: Outputs  # on training images of the other classes
    test: Outputs  # on test images of all classes


class Case(NamedTuple):
    """Everything that is judged: outputs of all models on the same images."""

    shown: dict[str, Measured]  # the candidates, in order, and "raw"
    retrained: list[Measured]
    random_init: Measured
    forgotten_labels: np.ndarray  # [F] of the forgotten training images
    retained_labels: np.ndarray  # [R]
    test_labels: np.ndarray  # [T]
    classes: tuple[int, ...]
    num_classes: int
    confidence: float

    @property
    def forgotten_test(self) -> np.ndarray:
        """`[T]` bool: the test images of forgotten classes."""
        return np.isin(self.test_labels, self.classes)


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
    u_values = _each(case, lambda m: accuracy.accuracy_on(confusion(m), case.classes))
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
    r_values = _each(case, lambda m: accuracy.accuracy_on(confusion(m), retained))
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
        values, others = _to_retraining(
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
                reachable=noise,
                bounds=(0.0, None),
                leave_one_out=True,
            )
        )
    detail = {
        "class_accuracies": {
            name: _plain(by_class(model)) for name, model in _everyone(case)
        },
        "confusions": {
            name: confusion(model).tolist() for name, model in _everyone(case)
        },
        "test_images_per_class": per_class.tolist(),
    }
    return tests, detail


def membership_figures(case: Case) -> Figures:
    """Thresholds on loss, confidence, entropy and modified entropy."""
    tests, curves = [], {}
    for name, score in membership.SCORES.items():
        rocs = _rocs(
            case,
            lambda m, s=score: (
                s(m.forgotten.logits, case.forgotten_labels),
                s(m.test.logits, case.test_labels)[case.forgotten_test],
            ),
        )
        curves[name] = _curves(rocs)
        tests += _attack_evidence(
            case,
            f"threshold_{name}",
            "membership",
            f"a threshold on the {name.replace('_', ' ')}",
            rocs,
            balanced=True,
        )
    return tests, {"roc": curves}


def shadow_figures(
    case: Case,
    shadow_logits: np.ndarray,
    shadow_labels: np.ndarray,
    shadow_members: np.ndarray,
) -> Figures:
    """Shokri's attack, learnt from shadow models `[S, N, U]`, turned on every model."""
    attack = shadow.fit_attack(shadow_logits, shadow_labels, shadow_members)

    def scores(model: Measured):
        return (
            shadow.attack_scores(attack, model.forgotten.logits, case.forgotten_labels),
            shadow.attack_scores(
                attack,
                model.test.logits[case.forgotten_test],
                case.test_labels[case.forgotten_test],
            ),
        )

    values, retrained = _each(case, lambda m: shadow.success_rate(*scores(m)))
    rocs = _rocs(case, scores)
    success = judge(
        "shadow_success_rate",
        values,
        retrained,
        kind="shadow",
        question=(
            "How often is an attacker with shadow models right about whether an image "
            "of the forgotten class was trained on (0.5 is guessing)?"
        ),
        higher_is=WORSE,
        confidence=case.confidence,
        resolution=_balanced_error(case),
        bounds=(0.0, 1.0),
        notes=[f"{len(shadow_logits)} shadow models of the raw model's architecture"],
    )
    area = _attack_evidence(
        case, "shadow", "shadow", "an attacker with shadow models", rocs, balanced=False
    )
    right = shadow_logits.argmax(axis=-1) == shadow_labels
    detail = {
        "roc": {"shadow": _curves(rocs)},
        "shadow_models": [
            {
                "members": int(inside.sum()),
                "member_accuracy": float(hits[inside].mean()),
                "non_member_accuracy": float(hits[~inside].mean()),
            }
            for hits, inside in zip(right, shadow_members, strict=True)
        ],
    }
    return [success, *area], detail


def likelihood_ratio_figures(
    case: Case,
    shadow_scores: np.ndarray | None,
    shadow_members: np.ndarray | None,
) -> Figures:
    """LiRA, online with shadow models `[S, F + T']` and offline with retrained ones.

    The columns of the two arrays are the forgotten training images and then the
    forgotten test images.
    """
    split = len(case.forgotten_labels)

    def own(model: Measured) -> np.ndarray:
        return membership.logit_confidence(
            np.concatenate(
                [model.forgotten.logits, model.test.logits[case.forgotten_test]]
            ),
            np.concatenate(
                [case.forgotten_labels, case.test_labels[case.forgotten_test]]
            ),
        )

    tests, curves = [], {}
    if shadow_scores is not None and shadow_members is not None:

        def online(model: Measured):
            ratio = likelihood_ratio.online_scores(
                own(model), shadow_scores, shadow_members
            )
            return ratio[:split], ratio[split:]

        rocs = _rocs(case, online)
        curves["likelihood_ratio_online"] = _curves(rocs)
        tests += _attack_evidence(
            case,
            "likelihood_ratio_online",
            "likelihood_ratio",
            "a likelihood-ratio attacker (online, shadow models as references)",
            rocs,
            low_rates=True,
        )
    if len(case.retrained) >= 2:

        def offline(model: Measured):
            references = [own(m) for m in case.retrained if m is not model]
            ratio = likelihood_ratio.offline_scores(own(model), references)
            return ratio[:split], ratio[split:]

        rocs = _rocs(case, offline)
        curves["likelihood_ratio_offline"] = _curves(rocs)
        tests += _attack_evidence(
            case,
            "likelihood_ratio_offline",
            "likelihood_ratio",
            "a likelihood-ratio attacker (offline, retrained models as references)",
            rocs,
            low_rates=True,
        )
    return tests, {"roc": curves}


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
    area_error = membership.area_error(positives, len(case.test_labels) - positives)
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
                    area_error if field == "area" else binomial_error(others, positives)
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
    everyone = {
        **shown,
        **{f"retrained_{i}": result for i, result in enumerate(retrained)},
    }
    late = [name for name, result in everyone.items() if not result.reached]
    notes = [f"back means {level:.3f} accuracy on the forgotten test images"]
    if late:
        notes.append(f"not back within {cap} steps, shown as {cap}: {', '.join(late)}")
    test = judge(
        "relearn_steps",
        {name: result.steps for name, result in shown.items()},
        [result.steps for result in retrained],
        kind="relearn",
        question="How many training steps until the forgotten class is back?",
        unit="steps",
        higher_is=BETTER,
        confidence=case.confidence,
        resolution=every,
        bounds=(0.0, float(cap)),
        notes=notes,
    )
    curves = {
        name: {
            "steps": [step for step, _ in result.curve],
            "accuracy": [value for _, value in result.curve],
        }
        for name, result in everyone.items()
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

        values, others = _to_retraining(
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
        for name, model in _everyone(case)
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


def _each(case: Case, figure: Callable[[Measured], float]):
    """`figure` of every shown and every retrained model."""
    return (
        {name: figure(model) for name, model in case.shown.items()},
        [figure(model) for model in case.retrained],
    )


def _to_retraining(case: Case, figure: Callable[[Measured, Measured], float]):
    """The mean of `figure` over the retrained models, each of them leaving itself out.

    So both sides are means of distances between a model and independent retrainings.
    """

    def mean(model: Measured) -> float:
        return float(
            np.mean([figure(model, m) for m in case.retrained if m is not model])
        )

    shown = {name: mean(model) for name, model in case.shown.items()}
    if len(case.retrained) < 2:
        return shown, []
    return shown, [mean(model) for model in case.retrained]


def _everyone(case: Case) -> Iterator[tuple[str, Measured]]:
    yield from case.shown.items()
    for i, model in enumerate(case.retrained):
        yield f"retrained_{i}", model


def _rocs(case: Case, scores) -> dict[str, membership.Roc]:
    return {
        name: membership.roc_curve(*scores(model)) for name, model in _everyone(case)
    }


def _curves(rocs: Mapping[str, membership.Roc]) -> dict[str, Any]:
    return {
        name: {
            "false_positives": _plain(thin.false_positives),
            "true_positives": _plain(thin.true_positives),
        }
        for name, thin in ((name, membership.thin(roc)) for name, roc in rocs.items())
    }


def _attack_evidence(
    case: Case,
    name: str,
    kind: str,
    attacker: str,
    rocs: Mapping[str, membership.Roc],
    *,
    balanced: bool = False,
    low_rates: bool = False,
) -> list[Evidence]:
    members, non_members = len(case.forgotten_labels), int(case.forgotten_test.sum())

    def split(figure):
        return {model: figure(rocs[model]) for model in case.shown}, [
            figure(rocs[f"retrained_{i}"]) for i in range(len(case.retrained))
        ]

    tests = [
        judge(
            f"{name}_auc",
            *split(membership.area_under),
            kind=kind,
            question=(
                f"How well does {attacker} tell training from test images of the "
                "forgotten class (AUC, 0.5 is guessing)?"
            ),
            # An area below that of retraining is a trace of the removal itself.
            higher_is=TWO_SIDED,
            confidence=case.confidence,
            resolution=membership.area_error(members, non_members),
            bounds=(0.0, 1.0),
        )
    ]
    if balanced:
        tests.append(
            judge(
                f"{name}_balanced_accuracy",
                *split(membership.balanced_accuracy),
                kind=kind,
                question=f"How often is {attacker} right at its best threshold?",
                higher_is=WORSE,
                confidence=case.confidence,
                resolution=_balanced_error(case),
                bounds=(0.0, 1.0),
            )
        )
    for percent, rate in LOW_RATES.items() if low_rates else ():
        values, retrained = split(
            lambda roc, r=rate: membership.true_positives_at(roc, r)
        )
        hits = binomial_error(retrained, members)
        alarms = rate * (1 - rate) / non_members
        tests.append(
            judge(
                f"{name}_tpr_at_{percent}_percent",
                values,
                retrained,
                kind=kind,
                question=(
                    f"How many training images does {attacker} find at {percent}% "
                    "false alarms?"
                ),
                higher_is=WORSE,
                confidence=case.confidence,
                resolution=float(np.sqrt(hits**2 + alarms)),
                bounds=(0.0, 1.0),
                undecidable=(
                    None
                    if non_members * rate >= 1
                    else f"{non_members} non-members cannot resolve {percent}% false "
                    "alarms; the value is at none"
                ),
            )
        )
    return tests


def _balanced_error(case: Case) -> float:
    """Standard error of a balanced accuracy near one half."""
    members, non_members = len(case.forgotten_labels), int(case.forgotten_test.sum())
    return float(np.sqrt(1 / members + 1 / non_members) / 4)


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


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
