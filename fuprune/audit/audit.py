"""The audit: every measure of every model, and how far each is from retraining.

`audit` serves a request for classes, `audit_request` one for clients or examples. Both
measure the candidates, the raw model and several retrained ones alike, for any network
that `models.adapt` takes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune.audit import answers, membership, probe, relearn, weights
from fuprune.audit.judge import HIGHER, Measure, judge
from fuprune.audit.measures import (
    RETRAINED,
    Answers,
    Subject,
    by_method,
    generator_of,
    is_retrained,
    of_images,
    retrained,
)
from fuprune.audit.options import AuditOptions, Model
from fuprune.audit.outputs import Preprocess, depths_of, logits_of, prepare
from fuprune.audit.record import HIDDEN, KINDS, RAW, Audit, method_of
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError
from fuprune.options import fields, make

DEFAULTS = make(AuditOptions, {})
# What a hidden logit is set to: its probability is exactly zero.
_HIDDEN_LOGIT = -1e3
Notify = Callable[[str], None]


class AuditData(NamedTuple):
    """The data that the audited models were trained and tested on."""

    train: Dataset
    test: Dataset
    preprocess: Preprocess  # images [B, H, W, C] -> what models take


class RequestData(NamedTuple):
    """The images that a request for clients or examples is judged on."""

    forgotten: Dataset  # [F] training images that the request names
    test: Dataset  # [T] images that nobody trained on
    preprocess: Preprocess
    backdoor: Dataset | None = None  # images with the trigger, and their true labels
    target: int = 0  # what the trigger was trained to mean
    retained: Dataset | None = None  # other training images, for shadow models


def audit(
    candidates: Mapping[str, Model],
    retrained: Sequence[Model],
    raw: Model,
    data: AuditData,
    classes: Sequence[int],
    key: jax.Array,
    *,
    options: AuditOptions = DEFAULTS,
    on_step: Notify | None = None,
) -> Audit:
    """Measures how far models that forgot classes are from retraining.

    Args:
      candidates: name -> (module, variables): unlearned models and controls. Models
        named `relabel`, `relabel_seed2` and so on are seeds of one method, judged
        together. A module is of Linen or NNX, or whatever else `models.adapt` takes; of
        an NNX module the variables may be None, for those it holds.
      retrained: models trained from scratch without the classes, one per seed; two or
        more for intervals, three for those of distances, ten for sharp ones.
      raw: the model before unlearning, which must be seen to differ.
      data: the training and test images, all classes included.
      classes: the forgotten classes.
      key: the only source of randomness.
      options: what is measured, and how.
      on_step: told what is being done, for a progress display.

    Returns:
      The record. A candidate that answers with NaN, as a diverged one does, is left out
      and named in `left_out`. The record has one more model, `mask_logit`, the raw
      model with the classes' logits hidden, unless it is among the candidates.

    Raises:
      InputError: an argument is not allowed.
    """
    subject = measured(
        candidates,
        retrained,
        raw,
        data,
        classes,
        key,
        options=options,
        on_step=on_step,
    )
    return _conclude(candidates, subject, key)


def measured(
    candidates: Mapping[str, Model],
    retrained: Sequence[Model],
    raw: Model,
    data: AuditData,
    classes: Sequence[int],
    key: jax.Array,
    *,
    options: AuditOptions = DEFAULTS,
    on_step: Notify | None = None,
) -> Subject:
    """All models with their answers, which measures are taken from; see `audit`."""
    classes = _checked_classes(classes, data)
    generator = generator_of(key)
    most = options.max_examples
    inside = np.isin(data.train.labels, classes)
    forgotten = _some(data.train, np.flatnonzero(inside), most, generator)
    retained = _some(data.train, np.flatnonzero(~inside), most, generator)
    in_test = np.isin(data.test.labels, classes)
    half = options.probe_images // 2
    # At most half of the probed images are of the classes.
    own = generator.permutation(np.flatnonzero(in_test))[:half]
    rest = generator.permutation(np.flatnonzero(~in_test))
    probed = np.sort(np.concatenate([own, rest[: options.probe_images - len(own)]]))
    subject = _measure(
        _models(candidates, retrained, raw),
        Subject(
            answers={},
            models={},
            classes=classes,
            test=data.test,
            forgotten=forgotten,
            retained=retained,
            probed=probed,
            unseen=np.flatnonzero(in_test),
            preprocess=data.preprocess,
            options=options,
            notify=on_step or (lambda text: None),
        ),
    )
    return subject if HIDDEN in subject.answers else _with_hidden_logits(subject)


def audit_request(
    candidates: Mapping[str, Model],
    retrained: Sequence[Model],
    raw: Model,
    data: RequestData,
    key: jax.Array,
    *,
    options: AuditOptions = DEFAULTS,
    on_step: Notify | None = None,
) -> Audit:
    """Measures how far models that forgot clients or examples are from retraining.

    Nothing of a class is hidden there, so that low accuracy proves nothing. What can
    betray a model is that it knows the forgotten images better than others, or the
    backdoor that they carried; relearning and probes ask for a class and are left out.

    Args:
      candidates: name -> (module, variables), as in `audit`.
      retrained: models trained from scratch on what remains, one per seed.
      raw: the model before unlearning.
      data: the images.
      key: the only source of randomness.
      options: what is measured, and how.
      on_step: told what is being done.

    Raises:
      InputError: an argument is not allowed.
    """
    if not len(data.forgotten.labels) or not len(data.test.labels):
        raise InputError(
            f"there are {len(data.forgotten.labels)} forgotten and "
            f"{len(data.test.labels)} test images; an audit needs some of both."
        )
    generator = generator_of(key)
    every = np.arange(len(data.forgotten.labels))
    forgotten = _some(data.forgotten, every, options.max_examples, generator)
    retained = data.retained or Dataset(*(part[:0] for part in data.forgotten))
    rest = np.arange(len(retained.labels))
    subject = _measure(
        _models(candidates, retrained, raw),
        Subject(
            answers={},
            models={},
            classes=(),
            test=data.test,
            forgotten=forgotten,
            retained=_some(retained, rest, options.max_examples, generator),
            probed=np.arange(0),
            unseen=matched(
                data.test.labels, forgotten.labels, options.max_examples, generator
            ),
            preprocess=data.preprocess,
            options=options,
            notify=on_step or (lambda text: None),
        ),
    )
    more = [] if data.backdoor is None else [_backdoor(subject, data)]
    return _conclude(candidates, subject, key, more)


def _models(
    candidates: Mapping[str, Model], retrained: Sequence[Model], raw: Model
) -> dict[str, Model]:
    taken = [name for name in candidates if is_reserved(name)]
    if taken:
        raise InputError(
            f"candidates are named {taken}, which the report uses for its references; "
            "name them otherwise"
        )
    references = {f"{RETRAINED}_{i}": model for i, model in enumerate(retrained)}
    return {**candidates, RAW: raw, **references}


def is_reserved(name: str) -> bool:
    """Whether the record uses a name for a reference, so that no candidate may."""
    return name in (RAW, RETRAINED) or is_retrained(name)


def _measure(models: Mapping[str, Model], subject: Subject) -> Subject:
    """The subject with all models and their answers, but for those that are broken.

    Raises:
      InputError: models are of different classes, or a reference answers with NaN.
    """
    adapted = {name: prepare(name, model) for name, model in models.items()}
    every = (subject.forgotten.labels, subject.retained.labels, subject.test.labels)
    highest = max(int(labels.max()) for labels in every if len(labels))
    probed = subject.test.images[subject.probed]
    kinds = subject.options.kinds
    width, found, broken = None, {}, []
    # The raw model first, which says how many classes there are.
    for name in sorted(adapted, key=lambda name: name != RAW):
        subject.notify(f"outputs of {name}")
        model = adapted[name]

        def logits(images, model=model):
            return logits_of(model, images, subject.preprocess)

        test = logits(subject.test.images)
        width = test.shape[-1] if width is None else width
        if test.shape[-1] != width or width <= highest:
            raise InputError(
                f"the model {name!r} has {test.shape[-1]} logits, the raw model {width}"
                f", and labels go up to {highest}; all models need one column for every"
                " class, the forgotten ones included"
            )
        with_probes = "probe" in kinds and len(probed)
        none = np.zeros((0, width), np.float32)
        forgotten, retained = subject.forgotten.images, subject.retained.images
        found[name] = Answers(
            test=test,
            forgotten=logits(forgotten) if len(forgotten) else none,
            retained=logits(retained) if subject.classes and len(retained) else none,
            depths=depths_of(model, probed, subject.preprocess) if with_probes else {},
        )
        # A logit of minus infinity is a hidden class.
        if any(np.isnan(part).any() for part in jax.tree.leaves(found[name])):
            broken.append(name)
    if RAW in broken:
        raise InputError("the raw model answers with NaN; give one that was trained")
    if any(is_retrained(name) for name in broken):
        raise InputError(
            "a retrained model answers with NaN, so it is no reference; leave it out"
        )
    kept = [name for name in adapted if name not in broken]
    return subject._replace(
        answers={name: found[name] for name in kept},
        models={name: adapted[name] for name in kept},
    )


def _with_hidden_logits(subject: Subject) -> Subject:
    """The subject with the raw model once more, whose logits of the classes are hidden.

    It needs no forward pass: below the logits it is the raw model.
    """

    def hidden(logits: np.ndarray) -> np.ndarray:
        logits = logits.copy()
        logits[:, list(subject.classes)] = _HIDDEN_LOGIT
        return logits

    raw = subject.answers[RAW]
    masked = raw._replace(
        test=hidden(raw.test),
        forgotten=hidden(raw.forgotten),
        retained=hidden(raw.retained),
    )
    return subject._replace(answers={**subject.answers, HIDDEN: masked})


def _conclude(
    candidates: Mapping[str, Model],
    subject: Subject,
    key: jax.Array,
    more: Sequence[Measure] = (),
) -> Audit:
    """The record of all measures that were asked for, judged together."""
    options, curves = subject.options, {}
    measures: list[Measure] = []
    for i, kind in enumerate(KINDS):
        if kind not in options.kinds:
            continue
        # Each kind draws from its own source, whichever others were asked for.
        generator = generator_of(key, i)
        subject.notify(kind)
        if kind == "accuracy":
            measures += answers.accuracy_measures(subject)
        elif kind == "distance":
            measures += answers.distance_measures(subject)
        elif kind == "relearn" and subject.classes:
            found, curves = relearn.relearn_measures(subject, generator)
            measures += found
        elif kind == "probe" and subject.classes:
            measures += probe.probe_measures(subject, generator)
        elif kind == "membership":
            measures += membership.membership_measures(subject, generator)
        elif kind == "weights":
            measures += weights.weight_measures(subject)
    return Audit(
        request="classes" if subject.classes else "images",
        classes=list(subject.classes),
        candidates=list(
            dict.fromkeys(method_of(n) for n in candidates if n in subject.models)
        ),
        retrained=len(retrained(subject.models)),
        confidence=options.confidence,
        # Distances to retraining have no values without a retrained model.
        rows=judge(
            [measure for measure in [*measures, *more] if measure.models],
            options.confidence,
            options.margin_range,
        ),
        curves=curves,
        class_accuracies=_class_accuracies(subject),
        left_out={
            name: "it answers with NaN"
            for name in candidates
            if name not in subject.models
        },
        settings={
            "key": np.asarray(jax.random.key_data(key)).reshape(-1).tolist(),
            **{name: getattr(options, name) for name in fields(AuditOptions)},
            "forgotten_training_images": len(subject.forgotten.labels),
            "test_images": len(subject.test.labels),
            "unseen_images": len(subject.unseen),
            "probed_images": len(subject.probed),
        },
    )


def _class_accuracies(subject: Subject) -> dict[str, list[float | None]]:
    """Means over seeds, and over the retrained models."""
    found: dict[str, Any] = answers.class_accuracies(subject)
    groups = {**by_method(found), RETRAINED: retrained(found)}
    return {
        name: [None if np.isnan(x) else float(x) for x in np.mean(each, axis=0)]
        for name, each in groups.items()
        if each
    }


def _backdoor(subject: Subject, data: RequestData) -> Measure:
    """How often the trigger that the forgotten data carried still decides."""
    assert data.backdoor is not None
    images = data.backdoor.images[: subject.options.max_examples]
    triggered = {
        name: logits_of(model, images, subject.preprocess).argmax(axis=-1)
        == data.target
        for name, model in subject.models.items()
    }
    return of_images(
        "backdoor_success",
        "membership",
        triggered,
        f"How often does the planted trigger make the model answer class "
        f"{data.target}?",
        headline=True,
        harm=HIGHER,
    )


def matched(
    labels: np.ndarray, wanted: np.ndarray, most: int, generator: np.random.Generator
) -> np.ndarray:
    """Rows of test images in the proportions that the forgotten ones' classes have.

    As many as the scarcest class allows, at most `most`; a class without test images
    is left out.
    """
    counts = np.bincount(wanted, minlength=int(labels.max()) + 1)
    there = np.bincount(labels, minlength=len(counts))
    shared = (counts > 0) & (there > 0)
    if not shared.any():
        raise InputError(
            "no test image is of a class of the forgotten images, so that there is "
            "nothing to compare them with; use another test split."
        )
    # The scarcest class decides, because proportions are to be kept.
    factor = min(
        float(np.min(there[shared] / counts[shared])), most / max(1, counts.sum())
    )
    chosen = []
    for label in np.flatnonzero(shared):
        of_class = generator.permutation(np.flatnonzero(labels == label))
        chosen.append(of_class[: max(1, int(factor * counts[label]))])
    return np.sort(np.concatenate(chosen))


def _some(
    data: Dataset, rows: np.ndarray, most: int, generator: np.random.Generator
) -> Dataset:
    """At most `most` of some rows, drawn without order."""
    rows = np.sort(generator.permutation(rows)[:most])
    return Dataset(np.asarray(data.images)[rows], np.asarray(data.labels)[rows])


def _checked_classes(classes: Sequence[int], data: AuditData) -> tuple[int, ...]:
    classes = tuple(sorted({int(c) for c in classes}))
    for split, dataset in (("training", data.train), ("test", data.test)):
        present = {int(label) for label in np.unique(dataset.labels)}
        missing = [c for c in classes if c not in present]
        # A server of clients elsewhere has no training images.
        none = split == "training" and not present
        if not classes or (not none and (missing or not present - set(classes))):
            raise InputError(
                f"classes is {classes}, but the {split} images are of "
                f"{sorted(present)}; name one or more of these and leave at least one "
                "out"
            )
    return classes
