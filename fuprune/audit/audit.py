"""The audit: every kind of evidence for every model, judged against retraining.

`audit` measures the candidates, the raw model and several retrained seeds alike, and
asks of each number whether a candidate could be one more retrained model. It works on
any network that `models.adapt` takes, also one that no code here made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from fuprune.audit import probe, shadow
from fuprune.audit.accuracy import find_accuracy
from fuprune.audit.distance import find_distance
from fuprune.audit.evidence import AuditReport, Detail
from fuprune.audit.likelihood_ratio import find_offline, find_online
from fuprune.audit.measurements import (
    RAW,
    AuditData,
    Findings,
    Measurements,
    Notify,
    gather,
    measure,
)
from fuprune.audit.membership import (
    find_difference,
    find_interpolated,
    find_membership,
)
from fuprune.audit.options import AuditOptions, Model
from fuprune.audit.relearn import check_options, find_relearn
from fuprune.audit.sampling import generator_of, place_in_class
from fuprune.audit.unlearned_shadow import find_unlearned_shadow
from fuprune.audit.verdict import headline, settle
from fuprune.audit.weights import find_weights
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError
from fuprune.results import to_plain


class Search(NamedTuple):
    """How evidence of one kind is found, and what that needs."""

    kind: str
    find: Callable[..., Findings]  # of `Measurements` and, if it draws, of a key
    step: str = ""  # what a display is told; empty if `find` tells it itself
    draws: bool = False
    needs_shadows: bool = False
    needs_retrained: int = 0  # with fewer retrained models there is nothing to find


SEARCHES = (
    Search("accuracy", find_accuracy, "accuracy", draws=True),
    Search("membership", find_membership, "membership inference by thresholds"),
    Search("shadow", shadow.find_shadow, "shadow attack", needs_shadows=True),
    Search(
        "likelihood_ratio",
        find_online,
        "likelihood-ratio attack, online",
        needs_shadows=True,
    ),
    Search(
        "likelihood_ratio",
        find_offline,
        "likelihood-ratio attack, offline",
        needs_retrained=2,
    ),
    Search("unlearned_shadow", find_unlearned_shadow, draws=True, needs_shadows=True),
    Search("difference", find_difference, "attack with the model before and after"),
    Search("interpolated", find_interpolated, "interpolated score", needs_retrained=1),
    Search("probe", probe.find_probe, draws=True),
    Search("relearn", find_relearn, draws=True),
    Search("distance", find_distance, "distance to retraining", needs_retrained=1),
    Search("weights", find_weights, "distance in weight space"),
)
KINDS = tuple(dict.fromkeys(search.kind for search in SEARCHES))
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
    if "relearn" in kinds:
        check_options(options.relearn)
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
    searches = [one for kind in kinds for one in SEARCHES if one.kind == kind]
    if options.shadow.models and any(one.needs_shadows for one in searches):
        shadows = shadow.train_shadows(measurements, retained, shadow_key)
        measurements = measurements._replace(shadows=shadows)
    findings = find_all(searches, measurements, kind_key)
    settings = _settings(measurements, len(retained.labels), kinds, key)
    return conclude(classes, measurements, findings, settings)


def find_all(
    searches: Sequence[Search], measurements: Measurements, key: jax.Array
) -> Findings:
    """What the searches that have what they need find, all together."""
    possible = [
        one
        for one in searches
        if len(measurements.retrained) >= one.needs_retrained
        and not (one.needs_shadows and measurements.shadows is None)
    ]
    found = {}
    # The probes last, because they may be computed elsewhere meanwhile.
    for search in sorted(possible, key=lambda one: one.kind == "probe"):
        if search.step:
            measurements.notify(search.step)
        keys = (_key_of(search.kind, key),) if search.draws else ()
        tests, detail = search.find(measurements, *keys)
        tests = [test._replace(kind=search.kind) for test in tests]
        found[search] = Findings(tests, detail)
    return gather(found[search] for search in possible)


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
    # Functions have no place in a file; the names of those they serve do.
    named = options.shadow._replace(unlearn=sorted(options.shadow.unlearn))
    plain = to_plain(options._replace(shadow=named))
    return {
        "key": np.asarray(jax.random.key_data(key)).reshape(-1).tolist(),
        **traverse_util.flatten_dict(plain, sep="_"),
        "kinds": list(kinds),
        "retrained_models": len(measurements.retrained),
        "forgotten_training_images": len(measurements.forgotten.labels),
        "retained_training_images": num_retained,
        "forgotten_test_images": int(measurements.forgotten_test.sum()),
        "test_images": len(measurements.test.labels),
    }


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
