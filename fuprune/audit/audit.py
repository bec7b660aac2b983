"""The audit: every kind of evidence for every model, judged against retraining.

`audit` measures the candidates, the raw model and several retrained seeds alike, and
asks of each number whether a candidate could be one more retrained model. It works on
any network that `models.adapt` takes, also one that no code here made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune.audit import (
    accuracy,
    difference,
    distance,
    likelihood_ratio,
    membership,
    probe,
    relearn,
    shadow,
    unlearned_shadow,
    weights,
)
from fuprune.audit.evidence import AuditReport, Detail
from fuprune.audit.measurements import (
    RAW,
    AuditData,
    Findings,
    Measurements,
    Notify,
    gather,
    measure,
)
from fuprune.audit.options import AuditOptions, Model
from fuprune.audit.sampling import generator_of, place_in_class
from fuprune.audit.verdict import headline, settle
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError


class Kind(NamedTuple):
    """A kind of evidence: how it is found, and what it needs."""

    find: Callable[[Measurements, jax.Array], Findings]
    needs_shadows: bool = False
    needs_retrained: bool = False  # there is nothing to find without retrained models


KIND_TABLE: dict[str, Kind] = {
    "accuracy": Kind(accuracy.find_accuracy),
    "membership": Kind(membership.find_membership),
    "shadow": Kind(shadow.find_shadow, needs_shadows=True),
    "likelihood_ratio": Kind(
        likelihood_ratio.find_likelihood_ratio, needs_shadows=True
    ),
    "unlearned_shadow": Kind(
        unlearned_shadow.find_unlearned_shadow, needs_shadows=True
    ),
    "difference": Kind(difference.find_difference),
    "interpolated": Kind(difference.find_interpolated, needs_retrained=True),
    "probe": Kind(probe.find_probe),
    "relearn": Kind(relearn.find_relearn),
    "distance": Kind(distance.find_distance, needs_retrained=True),
    "weights": Kind(weights.find_weights),
}
KINDS = tuple(KIND_TABLE)
DEFAULTS = AuditOptions()


def audit(
    candidates: Mapping[str, Model],
    retrained: Sequence[Model],
    raw: Model,
    data: AuditData,
    classes: Sequence[int],
    key: jax.Array,
    *,
    options: AuditOptions = DEFAULTS,
    begin_probes: probe.Begin | None = None,
    on_step: Notify | None = None,
) -> AuditReport:
    """Measures all models and judges each number against the spread of retraining.

    Args:
      candidates: name -> (module, variables): unlearned models and controls. A module
        is of Linen or NNX, or whatever else `models.adapt` takes, also one that was
        cut; of an NNX module the variables may be None, for those it holds.
      retrained: models trained from scratch without the classes, one per seed; three or
        more for a verdict on every test, five for a sharp one. A candidate must not be
        among them.
      raw: the model before unlearning, the positive control.
      data: the training and test images, all classes included.
      classes: the forgotten classes.
      key: the only source of randomness.
      options: which evidence to gather, and how.
      begin_probes: fits the probes' classifiers elsewhere while the rest goes on; None
        fits them in turn.
      on_step: told what is being done, for a progress display.

    Returns:
      The report. A candidate that answers with NaN, as a diverged one does, is left out
      and named in `detail["left_out"]`.

    Raises:
      InputError: an argument is not allowed.
    """
    kinds = KINDS if options.kinds is None else tuple(options.kinds)
    classes = _checked_classes(classes, data)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"kinds has {unknown}; it may hold only {KINDS}")
    if options.max_examples < 2:
        raise InputError(
            f"max_examples is {options.max_examples}, but must be 2 or more: an image "
            "of a forgotten class and one of another"
        )
    subset_key, random_key, shadow_key, kind_key = jax.random.split(key, 4)
    generator = generator_of(subset_key)
    # The same images for every model, so that differences are paired image by image.
    train = _sample(data.train, classes, options.max_examples, generator)
    test = _sample(data.test, classes, options.max_examples, generator)
    is_forgotten = np.isin(train.labels, classes)
    retained = Dataset(*(part[~is_forgotten] for part in train))
    measurements = measure(
        candidates,
        retrained,
        raw,
        data._replace(test=test),
        Dataset(*(part[is_forgotten] for part in train)),
        classes,
        options,
        random_key,
        on_step,
    )
    if begin_probes is not None and "probe" in kinds:
        tasks = probe.make_tasks(measurements, _key_of("probe", kind_key))
        measurements = measurements._replace(probes=begin_probes(tasks))
    if options.shadow.models and any(KIND_TABLE[k].needs_shadows for k in kinds):
        shadows = shadow.train_shadows(measurements, retained, shadow_key)
        measurements = measurements._replace(shadows=shadows)
    findings = find_kinds(kinds, measurements, kind_key)
    settings = _settings(measurements, len(retained.labels), kinds, key)
    return conclude(classes, measurements, findings, settings)


def find_kinds(
    kinds: Sequence[str], measurements: Measurements, key: jax.Array
) -> Findings:
    """What kinds of evidence find, all together."""
    findings = {}
    # The probes last, because they may be computed elsewhere meanwhile.
    for name in sorted(kinds, key=lambda kind: kind == "probe"):
        if KIND_TABLE[name].needs_retrained and not measurements.retrained:
            continue
        findings[name] = KIND_TABLE[name].find(measurements, _key_of(name, key))
    return gather(findings[name] for name in kinds if name in findings)


def _key_of(kind: str, key: jax.Array) -> jax.Array:
    """A kind's own, whichever others were asked for."""
    return jax.random.fold_in(key, KINDS.index(kind))


def conclude(
    classes: Sequence[int],
    measurements: Measurements,
    findings: Findings,
    settings: dict[str, Any],
) -> AuditReport:
    """The report on all that was found, judged together."""
    options = measurements.options
    tests = settle(findings.tests, confidence=options.confidence, margin=options.margin)
    return AuditReport(
        classes=list(classes),
        candidates=[name for name in measurements.judged if name != RAW],
        tests=tests,
        detail=Detail(left_out=measurements.left_out, **findings.detail),
        settings=settings,
        headlines={name: headline(tests, name) for name in measurements.judged},
    )


def _settings(
    measurements: Measurements,
    num_retained: int,
    kinds: Sequence[str],
    key: jax.Array,
) -> dict[str, Any]:
    """What the audit was run with, one number or list per name."""
    options = measurements.options
    chosen: dict[str, Any] = {
        name: value
        for name, value in options._asdict().items()
        if not hasattr(value, "_asdict")
    }
    for group in ("shadow", "relearn", "probe", "weights"):
        for name, value in getattr(options, group)._asdict().items():
            chosen[f"{group}_{name}"] = value
    # Functions have no place in a file; the names of those they serve do.
    chosen["shadow_unlearn"] = sorted(options.shadow.unlearn)
    sizes = {
        "retrained_models": len(measurements.retrained),
        "forgotten_training_images": len(measurements.forgotten.labels),
        "retained_training_images": num_retained,
        "forgotten_test_images": int(measurements.forgotten_test.sum()),
        "test_images": len(measurements.test.labels),
    }
    found = {
        "key": np.asarray(jax.random.key_data(key)).reshape(-1).tolist(),
        **chosen,
        "kinds": kinds,
        **sizes,
    }
    return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items()}


def _sample(
    data: Dataset, classes: Sequence[int], cap: int, generator: np.random.Generator
) -> Dataset:
    """At most `cap` images, a quarter of them forgotten, the rest even over classes."""
    images, labels = np.asarray(data.images), np.asarray(data.labels)
    order = generator.permutation(len(labels))
    place = np.empty(len(labels), np.int64)
    place[order] = place_in_class(labels[order])
    is_forgotten = np.isin(labels, classes)
    by_place = np.lexsort((order, place))
    forgotten = by_place[is_forgotten[by_place]]
    others = by_place[~is_forgotten[by_place]]
    if len(labels) > cap:
        # More than a quarter where the others do not fill the rest, and never none.
        forgotten = forgotten[: max(cap // 4, cap - len(others), 1)]
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
