"""The audit of a request for clients or examples.

Nothing of a class is hidden there, so that low accuracy proves nothing and retrained
models still know most of the forgotten images. What can betray a model is that it knows
them better than images that nobody trained on: membership attacks, the distribution of
losses, the influence that the forgotten data still have on answers, a backdoor that
they carried, and the distance to retraining. Each is judged against the spread of
retrained models, as in the audit of classes, and the raw model is the positive control.
A probe or relearning asks for a class and has no meaning here.

The non-members are test images in the proportions of classes that the forgotten ones
have. Membership can be seen only where a network fits its training images much better
than others: few images and many rounds.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune.audit.audit import DEFAULTS, SEARCHES, Search, conclude, find_all
from fuprune.audit.evidence import HEADLINE, TWO_SIDED, WORSE, AuditReport
from fuprune.audit.measurements import (
    AuditData,
    Findings,
    Measurements,
    Notify,
    each,
    logits_of,
    measure,
)
from fuprune.audit.membership import loss_score, score_logits
from fuprune.audit.options import AuditOptions, Model
from fuprune.audit.sampling import generator_of, paired_error
from fuprune.audit.spread import (
    Draft,
    by_role,
    draft,
    draft_distance,
    draft_rate,
    to_retraining,
)
from fuprune.audit.weights import distance_between
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError

# Of the audit of classes, those that mean something here; the rest are below.
SHARED = ("membership", "difference", "interpolated", "distance")


class RequestData(NamedTuple):
    """The images that a request for clients or examples is judged on."""

    forgotten: Dataset  # [F] training images that the request names
    test: Dataset  # [T] images that nobody trained on
    preprocess: Callable[[np.ndarray], Any]  # images [B, H, W, C] -> what models take
    backdoor: Dataset | None = None  # images with the trigger, and their true labels
    target: int = 0  # what the trigger was trained to mean


def audit_request(
    candidates: Mapping[str, Model],
    retrained: Sequence[Model],
    raw: Model,
    data: RequestData,
    key: jax.Array,
    *,
    options: AuditOptions = DEFAULTS,
    on_step: Notify | None = None,
) -> AuditReport:
    """Measures all models and judges each number against the spread of retraining.

    Args:
      candidates: name -> (module, variables): unlearned models and controls.
      retrained: models trained from scratch on what remains, one per seed; three or
        more for a verdict on every test.
      raw: the model before unlearning, the positive control.
      data: the images.
      key: the only source of randomness.
      options: how many images, batches and kinds; kinds that have no meaning here are
        passed over.
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
    most = options.max_examples
    forgotten = _some(data.forgotten, most, generator)
    held_out = matched(data.test, forgotten.labels, most, generator)
    measurements = measure(
        candidates,
        retrained,
        raw,
        AuditData(forgotten, held_out, data.preprocess),
        forgotten,
        # Every held-out image is a non-member: those of these classes, which are all.
        tuple(np.unique(held_out.labels).tolist()),
        options,
        key,
        on_step,
    )
    asked = SHARED if options.kinds is None else set(SHARED) & set(options.kinds)
    searches = [*(one for one in SEARCHES if one.kind in asked), *OWN]
    if data.backdoor is not None:
        find = functools.partial(
            find_backdoor, triggered=data.backdoor, target=data.target
        )
        searches.append(Search("backdoor", find))
    found = find_all(searches, measurements, key)
    tests = [_about_images(test) for test in found.tests]
    settings = {
        "kinds": sorted({test.kind for test in tests}),
        "retrained_models": len(measurements.retrained),
        "forgotten_training_images": len(forgotten.labels),
        "test_images": len(held_out.labels),
        "confidence": options.confidence,
        "key": np.asarray(jax.random.key_data(key)).reshape(-1).tolist(),
    }
    return conclude((), measurements, Findings(tests, found.detail), settings)


def matched(
    test: Dataset, labels: np.ndarray, most: int, generator: np.random.Generator
) -> Dataset:
    """Test images in the proportions that the forgotten ones' classes have.

    As many as the scarcest class allows, at most `most`; a class without test images
    is left out.
    """
    counts = np.bincount(labels, minlength=int(test.labels.max()) + 1)
    there = np.bincount(test.labels, minlength=len(counts))
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
        of_class = generator.permutation(np.flatnonzero(test.labels == label))
        chosen.append(of_class[: max(1, int(factor * counts[label]))])
    rows = np.sort(np.concatenate(chosen))
    return Dataset(test.images[rows], test.labels[rows])


def _some(data: Dataset, most: int, generator: np.random.Generator) -> Dataset:
    rows = np.sort(generator.permutation(len(data.labels))[:most])
    return Dataset(np.asarray(data.images)[rows], np.asarray(data.labels)[rows])


def _about_images(test: Draft) -> Draft:
    """The same test in words that fit: nothing here is about a class."""
    question = test.question.replace(
        "tell training from test images of the forgotten class",
        "tell the forgotten images from ones that nobody trained on",
    )
    return test._replace(question=question)


def find_accuracy(measurements: Measurements) -> Findings:
    """Accuracy on the forgotten images: retraining's own, neither more nor less."""
    labels = measurements.forgotten.labels
    test = draft_rate(
        "forgotten_accuracy",
        each(measurements, lambda m: m.forgotten.logits.argmax(axis=-1) == labels),
        question="How many of the forgotten images does the model answer correctly?",
        higher_is=TWO_SIDED,
        is_rate=False,  # see `spread.ALLOWANCES`: here no spread is lent
    )
    return Findings([test])


def find_losses(measurements: Measurements) -> Findings:
    """The distribution of losses on the forgotten images against retraining's."""
    labels = measurements.forgotten.labels
    scores = each(measurements, lambda m: loss_score(m.forgotten.logits, labels))
    test = draft_distance(
        "loss_distribution",
        to_retraining(scores, kolmogorov_smirnov),
        question=(
            "How far is the distribution of losses on the forgotten images from "
            "retraining's (Kolmogorov-Smirnov)?"
        ),
        unit="distance",
        family=HEADLINE,
        bounds=(0.0, 1.0),
    )
    return Findings([test])


def kolmogorov_smirnov(values, others) -> float:
    """The greatest difference between two empirical distribution functions."""
    values, others = np.sort(values), np.sort(others)
    points = np.concatenate([values, others])
    first, second = (
        np.searchsorted(sample, points, side="right") / len(sample)
        for sample in (values, others)
    )
    return float(np.max(np.abs(first - second)))


def find_influence(measurements: Measurements) -> Findings:
    """How much better the model does on forgotten images than on others like them.

    It is the mean log-likelihood on the forgotten images less that on the held-out
    ones: what having trained on them still does to answers about them.
    """
    found = score_logits(measurements, loss_score)
    # Forgotten and held-out images are drawn apart, so their errors add in squares.
    parts = zip(*by_role(found)[1], strict=True)
    errors = [paired_error(part, added=0.0) for part in parts]
    test = draft(
        "influence_on_predictions",
        {
            name: members.mean() - others.mean()
            for name, (members, others) in found.items()
        },
        question=(
            "By how many nats is the model surer of the forgotten images' labels than "
            "of those of images that nobody trained on?"
        ),
        higher_is=TWO_SIDED,
        unit="nats",
        resolution=math.hypot(*errors),
    )
    return Findings([test])


def find_weights(measurements: Measurements) -> Findings:
    """Distance in weight space to retrained models of the same shape."""
    test = draft_distance(
        "weight_distance_to_retrained",
        to_retraining(measurements.models, distance_between),
        question="How far are the weights from those of retrained models?",
        unit="distance",
    )
    return Findings([test])


def find_backdoor(
    measurements: Measurements, triggered: Dataset, target: int
) -> Findings:
    """How often the trigger that the forgotten data carried still decides."""
    images = triggered.images[: measurements.options.max_examples]
    answers = {
        name: logits_of(measurements, model, images).argmax(axis=-1)
        for name, model in measurements.models.items()
    }
    test = draft_rate(
        "backdoor_success",
        {name: given == target for name, given in answers.items()},
        question=f"How often does the planted trigger make the model answer "
        f"class {target}?",
        higher_is=WORSE,
        family=HEADLINE,
        is_rate=False,
    )
    return Findings([test])


# They come with every request: there are no keys of their own to ask for them.
OWN = (
    Search("accuracy", find_accuracy),
    Search("losses", find_losses, needs_retrained=1),
    Search("influence", find_influence),
    Search("weights", find_weights, needs_retrained=2),
)
REQUEST_KINDS = (*SHARED, *(one.kind for one in OWN), "backdoor")
