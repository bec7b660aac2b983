"""The audit: every kind of evidence for every model, judged against retraining.

`audit` measures the candidates, the raw model and several retrained seeds alike, and
asks of each figure whether a candidate could be one more retrained model. It works on
any Flax model, also one that no code here made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit import attack_figures, figures, shadow
from fuprune.audit.case import RANDOM, RAW, Case, Figures, Measured
from fuprune.audit.evidence import AuditReport
from fuprune.audit.membership import logit_confidence
from fuprune.audit.outputs import (
    Variables,
    compute_outputs,
    forward,
    init_variables,
)
from fuprune.audit.relearn import Relearned, relearn_time
from fuprune.audit.training import batch_rows
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError

Model = tuple[nn.Module, Variables]

KINDS = (
    "accuracy",
    "membership",
    "shadow",
    "likelihood_ratio",
    "probe",
    "relearn",
    "distance",
)


class AuditData(NamedTuple):
    """The data that the audited models were trained and tested on."""

    train: Dataset
    test: Dataset
    preprocess: Callable[[np.ndarray], Any]  # images [B, H, W, C] -> what models take


class Speed(NamedTuple):
    """What it took to reach the target accuracy; None where it was not reached."""

    rounds: int | None
    seconds: float | None


def audit(
    candidates: Mapping[str, Model],
    retrained: Sequence[Model],
    raw: Model,
    data: AuditData,
    classes: Sequence[int],
    key: jax.Array,
    *,
    kinds: Sequence[str] = KINDS,
    confidence: float = 0.95,
    max_examples: int = 4000,
    batch_size: int = 256,
    num_shadows: int = 4,
    shadow_steps: int = 150,
    shadow_learning_rate: float = 0.05,
    shadow_backend: str = "auto",
    relearn_level: float = 0.9,
    relearn_steps: int = 150,
    relearn_every: int = 2,
    relearn_learning_rate: float = 0.003,
    train_batch_size: int = 64,
    speed: Mapping[str, Speed] | None = None,
    speed_reference: str = "retrain",
    on_step: Callable[[str], None] | None = None,
) -> AuditReport:
    """Measures all models and judges each figure against the spread of retraining.

    Args:
      candidates: name -> (module, variables): unlearned models and controls.
      retrained: models trained from scratch without the classes, one per seed; three or
        more for a verdict on every test, five for a sharp one. A candidate must not be
        among them.
      raw: the model before unlearning, the positive control.
      data: the training and test images, all classes included.
      classes: the forgotten classes.
      key: the only source of randomness.
      kinds: which evidence to gather, of `KINDS`.
      confidence: of the interval a candidate has to lie in, for each test.
      max_examples: cap on training and on test images that are looked at; up to a
        quarter of them are of the forgotten classes, the rest even over the others.
      batch_size: images in a forward pass.
      num_shadows: shadow models, an even number; 0 for none.
      shadow_steps: SGD steps of each.
      shadow_learning_rate: at the start of their training.
      shadow_backend: see `shadow.train_models_in_parallel`.
      relearn_level: the part of the raw model's accuracy on the forgotten classes at
        which they count as relearned.
      relearn_steps: the cap on relearning.
      relearn_every: steps between two looks.
      relearn_learning_rate: fixed.
      train_batch_size: of shadow training and relearning.
      speed: name -> what it took to reach the target accuracy, for the table.
      speed_reference: the name in `speed` that speed-ups are over.
      on_step: told what is being done, for a progress display.

    Returns:
      The report. A candidate that answers with NaN, as a diverged one does, is left out
      and named in `detail["left_out"]`.

    Raises:
      ValueError: an argument is not allowed.
    """
    told = on_step or (lambda name: None)
    classes = _checked_classes(classes, data)
    _check_names(candidates, kinds)
    raw = _on_device(RAW, raw)
    candidates = {name: _on_device(name, model) for name, model in candidates.items()}
    retrained = [_on_device("retrained", model) for model in retrained]
    seeds = jax.random.split(key, 6)
    subset_rng, noise_rng, batch_rng, member_rng = (
        np.random.default_rng(np.asarray(jax.random.key_data(seed)))
        for seed in seeds[:4]
    )
    train = _sample(data.train, classes, max_examples, subset_rng)
    test = _sample(data.test, classes, max_examples, subset_rng)
    is_forgotten = np.isin(train.labels, classes)
    forgotten = Dataset(train.images[is_forgotten], train.labels[is_forgotten])
    retained = Dataset(train.images[~is_forgotten], train.labels[~is_forgotten])

    def outputs(model: Model, images: np.ndarray, activations: bool = False):
        return compute_outputs(
            *model,
            images,
            data.preprocess,
            batch_size=batch_size,
            activations=activations,
        )

    sample = jnp.asarray(data.preprocess(train.images[:1]))
    highest = int(max(train.labels.max(), test.labels.max()))
    # The raw model says how many classes there are: a small sample may lack some.
    columns = jax.eval_shape(lambda: forward(*raw, sample)).logits.shape[-1]

    def measured(name: str, model: Model) -> Measured:
        told(f"outputs of {name}")
        answers = outputs(model, test.images)
        if answers.logits.shape[-1] != columns or columns <= highest:
            raise InputError(
                f"the model {name!r} has {answers.logits.shape[-1]} logits, the raw "
                f"model {columns}, and labels go up to {highest}; all models need one "
                "column for every class, the forgotten ones included"
            )
        return Measured(
            forgotten=outputs(model, forgotten.images, activations=True),
            retained=outputs(model, retained.images),
            test=answers,
        )

    shown: dict[str, Model] = {**candidates, RAW: raw}
    random = (raw[0], init_variables(raw[0], seeds[4], sample))
    every_answer = {name: measured(name, model) for name, model in shown.items()}
    broken = [name for name, answers in every_answer.items() if not _sane(answers)]
    if RAW in broken:
        raise InputError("the raw model answers with NaN; give one that was trained")
    shown = {name: model for name, model in shown.items() if name not in broken}
    raw_measured = every_answer[RAW]
    case = Case(
        shown={name: every_answer[name] for name in shown},
        retrained=[
            measured(f"retrained_{i}", model) for i, model in enumerate(retrained)
        ],
        random_init=measured(RANDOM, random),
        forgotten_labels=forgotten.labels,
        retained_labels=retained.labels,
        test_labels=test.labels,
        classes=classes,
        num_classes=columns,
        confidence=confidence,
    )

    if not all(_sane(answers) for answers in case.retrained):
        raise InputError(
            "a retrained model answers with NaN, so it is no reference; leave it out"
        )

    results: list[Figures] = []
    if "accuracy" in kinds:
        told("accuracy")
        results.append(figures.accuracy_figures(case, noise_rng))
    if "membership" in kinds:
        told("membership inference by thresholds")
        results.append(attack_figures.membership_figures(case))
    shadow_scores = shadow_members = None
    if num_shadows and {"shadow", "likelihood_ratio"} & set(kinds):
        pool = Dataset(
            np.concatenate([forgotten.images, test.images, retained.images]),
            np.concatenate([forgotten.labels, test.labels, retained.labels]),
        )
        members = shadow.balanced_members(member_rng, num_shadows, len(pool.labels))
        shadows = shadow.train_models_in_parallel(
            raw[0],
            seeds[5],
            pool.images,
            pool.labels,
            members,
            data.preprocess,
            steps=shadow_steps,
            batch_size=train_batch_size,
            learning_rate=shadow_learning_rate,
            backend=shadow_backend,
            on_step=told,
        )
        told("shadow attack")
        logits = np.stack([outputs((raw[0], v), pool.images).logits for v in shadows])
        targets = np.concatenate(
            [
                np.arange(len(forgotten.labels)),
                len(forgotten.labels) + np.flatnonzero(case.forgotten_test),
            ]
        )
        shadow_members = members[:, targets]
        shadow_scores = np.stack(
            [logit_confidence(one[targets], pool.labels[targets]) for one in logits]
        )
        if "shadow" in kinds:
            results.append(
                attack_figures.shadow_figures(case, logits, pool.labels, members)
            )
    if "likelihood_ratio" in kinds:
        told("likelihood-ratio attack")
        results.append(
            attack_figures.likelihood_ratio_figures(case, shadow_scores, shadow_members)
        )
    if "probe" in kinds:
        told("linear probe")
        results.append(figures.probe_figures(case, int(noise_rng.integers(2**31))))
    if "relearn" in kinds:
        rows = batch_rows(
            batch_rng,
            np.arange(len(data.train.labels)),
            relearn_steps,
            train_batch_size,
        )
        answers = raw_measured.test.logits.argmax(axis=-1) == test.labels
        level = relearn_level * float(answers[case.forgotten_test].mean())
        # One batch of test images is enough to see the class come back.
        looked_at = np.flatnonzero(case.forgotten_test)[:batch_size]

        def relearned(name: str, model: Model) -> Relearned:
            told(f"relearning, {name}")
            return relearn_time(
                *model,
                data.train.images,
                data.train.labels,
                rows,
                test.images[looked_at],
                test.labels[looked_at],
                data.preprocess,
                classes=classes,
                level=level,
                learning_rate=relearn_learning_rate,
                every=relearn_every,
                batch_size=batch_size,
            )

        results.append(
            figures.relearn_figures(
                case,
                {name: relearned(name, model) for name, model in shown.items()},
                [relearned(f"retrained_{i}", m) for i, m in enumerate(retrained)],
                level=level,
                every=relearn_every,
                cap=relearn_steps,
            )
        )
    if "distance" in kinds:
        told("distance to retraining")
        results.append(figures.distance_figures(case))

    detail: dict[str, Any] = {
        "left_out": {name: "it answers with NaN" for name in broken},
        "roc": {},
        "speed": _speed_table(speed, speed_reference),
    }
    for _, found in results:
        curves = found.pop("roc", {})
        detail["roc"].update(curves)
        detail.update(found)
    return AuditReport(
        classes=list(classes),
        candidates=[name for name in candidates if name in shown],
        tests=[test for tests, _ in results for test in tests],
        detail=detail,
        settings={
            "key": np.asarray(jax.random.key_data(key)).reshape(-1).tolist(),
            "kinds": list(kinds),
            "confidence": confidence,
            "retrained_models": len(retrained),
            "forgotten_training_images": len(forgotten.labels),
            "retained_training_images": len(retained.labels),
            "forgotten_test_images": int(case.forgotten_test.sum()),
            "test_images": len(test.labels),
            "max_examples": max_examples,
            "shadow_models": num_shadows,
            "shadow_steps": shadow_steps,
            "shadow_learning_rate": shadow_learning_rate,
            "relearn_level": relearn_level,
            "relearn_steps": relearn_steps,
            "relearn_every": relearn_every,
            "relearn_learning_rate": relearn_learning_rate,
            "train_batch_size": train_batch_size,
        },
    )


def _speed_table(speed: Mapping[str, Speed] | None, reference: str) -> list[dict]:
    """Rounds, seconds and the speed-up over `reference` of each name."""
    speed = speed or {}
    base = speed.get(reference, Speed(None, None))

    def ratio(base_value, value):
        return base_value / value if base_value is not None and value else None

    return [
        {
            "name": name,
            "rounds": one.rounds,
            "seconds": one.seconds,
            "speedup_rounds": ratio(base.rounds, one.rounds),
            "speedup_seconds": ratio(base.seconds, one.seconds),
        }
        for name, one in speed.items()
    ]


def _sane(answers: Measured) -> bool:
    """Whether no output is NaN; a logit of minus infinity is a masked class."""
    return not any(
        np.isnan(part.logits).any() or not np.isfinite(part.features).all()
        for part in answers
    )


def _on_device(name: str, model: Model) -> Model:
    module, variables = model
    try:
        hash(module)
    except TypeError as error:
        raise InputError(
            f"the module of {name!r} cannot be hashed ({error}), which jit needs; make "
            "its attributes tuples and numbers"
        ) from error
    return module, jax.tree.map(jnp.asarray, dict(variables))


def _sample(
    data: Dataset, classes: Sequence[int], cap: int, generator: np.random.Generator
) -> Dataset:
    """At most `cap` images, a quarter of them forgotten, the rest even over classes."""
    images, labels = np.asarray(data.images), np.asarray(data.labels)
    order = generator.permutation(len(labels))
    # An image's place among those of its class, in random order: taking the lowest
    # places first takes the same number of every class.
    place = np.empty(len(labels), np.int64)
    for c in np.unique(labels):
        of_class = order[labels[order] == c]
        place[of_class] = np.arange(len(of_class))
    is_forgotten = np.isin(labels, classes)
    by_place = np.lexsort((order, place))
    forgotten = by_place[is_forgotten[by_place]]
    others = by_place[~is_forgotten[by_place]]
    if len(labels) > cap:
        forgotten = forgotten[: max(cap // 4, cap - len(others))]
        others = others[: cap - len(forgotten)]
    rows = np.sort(np.concatenate([forgotten, others]))
    return Dataset(images[rows], labels[rows])


def _checked_classes(classes: Sequence[int], data: AuditData) -> tuple[int, ...]:
    classes = tuple(sorted({int(c) for c in classes}))
    for split, dataset in (("training", data.train), ("test", data.test)):
        present = {int(label) for label in np.unique(dataset.labels)}
        missing = [c for c in classes if c not in present]
        if not classes or missing or not present - set(classes):
            raise InputError(
                f"classes is {classes}, but the {split} images are of "
                f"{sorted(present)}; name one or more of these and leave at least one "
                "out"
            )
    return classes


def is_reserved(name: str) -> bool:
    """Whether the report uses a name for a reference, so that no candidate may."""
    return name in (RAW, RANDOM) or name.startswith("retrained")


def _check_names(candidates: Mapping[str, Model], kinds: Sequence[str]) -> None:
    taken = [name for name in candidates if is_reserved(name)]
    if taken:
        raise InputError(
            f"candidates are named {taken}, which the report uses for its references; "
            "name them otherwise"
        )
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"kinds has {unknown}; it may hold only {KINDS}")
