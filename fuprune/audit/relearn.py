"""Relearning: how does the forgotten class come back when it is taught again?

A model that kept what it knew of a class regains it faster than one that never saw it.
The whole curve is judged (its area, and the accuracy at fixed steps), over several
choices of images and learning rates. A model that is not back when the steps are over
has no time of return, and is never given one.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit.evidence import BETTER, FURTHER, HEADLINE, TWO_SIDED
from fuprune.audit.measurements import RAW, Findings, Measurements
from fuprune.audit.options import Model, RelearnOptions
from fuprune.audit.outputs import (
    Head,
    Variables,
    evaluation_logits,
    find_head,
    with_forgotten_columns_reset,
)
from fuprune.audit.sampling import generator_of, place_in_class
from fuprune.audit.spread import ANGULAR, LOGARITHMIC, Draft, by_role, draft, draft_rate
from fuprune.audit.training import batch_rows, in_pairs, init_state, rate, sgd_step
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError

IMAGES = ("all", "forgotten", "retained")


class Setting(NamedTuple):
    """One way of teaching a model again."""

    images: str  # which classes: "all", "forgotten" or "retained"
    images_per_class: int
    learning_rate: float

    @property
    def name(self) -> str:
        """As it stands in the name of a test."""
        return f"{self.images}_{self.images_per_class}_at_{self.learning_rate:g}"


# What one setting teaches every model, preprocessed once for all of them: for each step
# a batch of images [B, ...] and its labels [B].
Lesson = list[tuple[jax.Array, jax.Array]]


class Curve(NamedTuple):
    """What one model recognised while it was taught."""

    steps: np.ndarray  # [L] when it was looked at, from 0 on
    right: np.ndarray  # [L, M] bool, for each test image of the forgotten classes

    @property
    def accuracy(self) -> np.ndarray:
        """`[L]`."""
        return self.right.mean(axis=1)

    def area_by_image(self) -> np.ndarray:
        """`[M]` the mean over the steps of each image being recognised."""
        # Looks lie closer together at the start: a plain mean would overweigh it.
        area = np.trapezoid(self.right.astype(np.float64), self.steps, axis=0)
        return area / max(self.steps[-1], 1)

    def at(self, step: int) -> np.ndarray:
        """`[M]` whether each image is recognised at `step`, which was looked at."""
        return self.right[np.searchsorted(self.steps, step)]

    def steps_to(self, level: float) -> int | None:
        """The first look at or above `level`; None if there was none."""
        back = np.flatnonzero(self.accuracy >= level)
        return int(self.steps[back[0]]) if back.size else None


def check_options(options: RelearnOptions) -> None:
    """Refuses what nothing can be taught by, before anything is measured."""
    unknown = [images for images in options.images if images not in IMAGES]
    least = min((*options.images_per_class, options.steps, options.every), default=1)
    if unknown or least < 1 or not options.images or not options.learning_rates:
        raise InputError(
            f"relearning has images {options.images}, {options.images_per_class} per "
            f"class, rates {options.learning_rates}, {options.steps} steps and a look "
            f"every {options.every}; images may be {IMAGES}, nothing may be empty, and "
            "numbers must be 1 or more"
        )


def find_relearn(measurements: Measurements, key: jax.Array) -> Findings:
    """Teaches every model again in every setting, from the same batches."""
    asked = measurements.options.relearn
    settings = make_settings(asked)
    generator = generator_of(key)
    # Drawn once and in one order, so that models differ by what they know alone.
    lessons = {
        setting: make_lesson(
            measurements.train,
            _batches(measurements, setting, generator),
            measurements.preprocess,
        )
        for setting in settings
    }
    # One batch of test images is enough to see the class come back.
    most = measurements.options.batch_size
    forgotten = np.flatnonzero(measurements.forgotten_test)
    looked_at, classes = forgotten[:most], measurements.test.labels[forgotten]
    # If they are stored class by class, the first ones may lack a class.
    if set(classes[:most]) != set(classes):
        even = np.argsort(place_in_class(classes), kind="stable")[:most]
        looked_at = np.sort(forgotten[even])
    images, labels = (part[looked_at] for part in measurements.test)
    test = jax.device_put((measurements.preprocess(images), labels))

    steps = looks(asked.steps, asked.every, asked.fixed_steps)

    def taught(name: str, model: Model) -> dict[Setting, Curve]:
        measurements.notify(f"relearning, {name}")
        return {
            setting: relearn(
                model, setting, lesson, test, classes=measurements.classes, steps=steps
            )
            for setting, lesson in lessons.items()
        }

    models = measurements.models
    found = in_pairs(taught, models.keys(), models.values())
    curves = dict(zip(models, found, strict=True))
    # Back means a share of what the raw model had, not a fixed accuracy.
    answers = measurements.outputs[RAW].test.logits.argmax(axis=-1)
    right = (answers == measurements.test.labels)[measurements.forgotten_test]
    level = asked.level * float(right.mean())
    tests = _drafts(curves, settings, asked, level)
    return Findings(tests, {"relearn": _detail(curves, settings, level)})


def make_settings(options: RelearnOptions) -> list[Setting]:
    """The settings of a grid.

    Not every amount is crossed with every rate: the fewest images, of which a model
    that never knew the class learns least, are taught at every rate, and larger amounts
    at the middle one. Without images of the class their number hardly matters, so such
    lessons take the largest of both.
    """
    fewest, most = min(options.images_per_class), max(options.images_per_class)
    rates = sorted(options.learning_rates)
    middle = rates[len(rates) // 2]
    found = []
    for images in options.images:
        if images == "retained":
            found.append(Setting(images, most, rates[-1]))
            continue
        found += [
            Setting(images, amount, learning_rate)
            for amount in options.images_per_class
            for learning_rate in options.learning_rates
            if amount == fewest or learning_rate == middle
        ]
    return found


def make_lesson(train: Dataset, batches: np.ndarray, preprocess) -> Lesson:
    """The images and labels behind `[steps, B]` rows of the training images."""
    return [
        jax.device_put((preprocess(train.images[batch]), train.labels[batch]))
        for batch in batches
    ]


def _batches(
    measurements: Measurements, setting: Setting, generator: np.random.Generator
) -> np.ndarray:
    """`[steps, B]` rows of training images, the same for every model."""
    labels = np.asarray(measurements.train.labels)
    chosen = []
    for c in np.unique(labels):
        forgotten = c in measurements.classes
        # Lessons of "retained" images skip the forgotten classes, and vice versa.
        if setting.images == ("retained" if forgotten else "forgotten"):
            continue
        of_class = generator.permutation(np.flatnonzero(labels == c))
        chosen.append(of_class[: setting.images_per_class])
    rows, options = np.concatenate(chosen), measurements.options
    return batch_rows(generator, rows, options.relearn.steps, options.train_batch_size)


def relearn(
    model: Model,
    setting: Setting,
    lesson: Lesson,
    test: tuple[jax.Array, jax.Array],
    *,
    classes: Sequence[int],
    steps: Sequence[int],
) -> Curve:
    """Teaches one model and looks at it along the way.

    Steps are looped on the host over one jitted step: inside a device loop XLA's CPU
    convolutions are many times slower.

    Args:
      model: the module and its variables, which are not changed.
      setting: has the learning rate, which is fixed, with momentum 0.9. If there are
        images of the forgotten classes in it, their columns of the last layer start
        from zero, so that a logit pinned far down cannot pass for forgetting.
      lesson: one batch per step.
      test: `[M, ...]` images of the forgotten classes, preprocessed, and `[M]` labels.
      classes: the forgotten classes.
      steps: at which the model is looked at, from 0 on; see `looks`.
    """
    module, variables = model
    head = find_head(module, variables, lesson[0][0])
    # Without images of the class, a column at zero could never return.
    if setting.images != "retained":
        variables = with_forgotten_columns_reset(variables, head, classes)
    # A copy, because each step reuses the buffers of the state it is given.
    state = init_state(variables)
    # The same dropout for every model, as the batches are the same.
    key = jax.random.key(0)
    right = [_recognised(module, head, state.variables, *test)]
    for step, batch in enumerate(lesson, start=1):
        state = sgd_step(
            module,
            head,
            state,
            *batch,
            jax.random.fold_in(key, step),
            rate(setting.learning_rate),
        )
        if step in steps:
            right.append(_recognised(module, head, state.variables, *test))
    # Fetched at the end, so that no look holds up the steps after it.
    return Curve(np.asarray(steps), np.asarray(jax.device_get(right)))


def looks(steps: int, every: int, fixed: Sequence[int] = ()) -> list[int]:
    """When a model is looked at: at 0, doubling up to `every`, then every so often.

    The `fixed` steps, at which accuracies are compared, are looked at as well.
    """
    first = [2**i for i in range(every.bit_length()) if 2**i < every]
    chosen = {0, *first, *range(every, steps, every), *fixed, steps}
    return sorted(step for step in chosen if step <= steps)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _recognised(
    module: Any, head: Head | None, variables: Variables, images, labels
) -> jax.Array:
    """`[M]` bool, by the logits as they leave the last dense layer."""
    logits = evaluation_logits(module, head, variables, images)
    # Of a model that diverged no image is recognised; NaN would be the greatest logit.
    return (logits.argmax(axis=-1) == labels) & ~jnp.isnan(logits).any(axis=-1)


def _drafts(
    curves: Mapping[str, Mapping[Setting, Curve]],
    settings: Sequence[Setting],
    options: RelearnOptions,
    level: float,
) -> list[Draft]:
    def rate_of(name, question, by_image, family=FURTHER) -> Draft:
        return draft_rate(
            name,
            {model: by_image(curves[model]) for model in curves},
            question=question,
            higher_is=TWO_SIDED,
            family=family,
            scale=ANGULAR,
        )

    taught = _teaching(settings)

    def mean_area(of_model):
        return np.mean([of_model[s].area_by_image() for s in taught], axis=0)

    tests = [
        rate_of(
            "relearn_area",
            "How much of the class is back while it is taught again (mean accuracy "
            "over steps and settings)?",
            mean_area,
            HEADLINE,
        )
    ]
    for step in options.fixed_steps:
        if step <= options.steps:
            tests.append(
                rate_of(
                    f"relearn_accuracy_at_{step}",
                    f"How much of the class is back after {step} steps (mean over "
                    "settings)?",
                    lambda m, at=step: np.mean([m[s].at(at) for s in taught], axis=0),
                )
            )
    for setting in settings:
        tests.append(
            rate_of(
                f"relearn_area_{setting.name}",
                f"How much is back with {setting.images_per_class} images per class, "
                f"{_WORDS[setting.images]}, at a rate of {setting.learning_rate:g}?",
                lambda m, s=setting: m[s].area_by_image(),
            )
        )
    return [*tests, _steps_draft(curves, settings, options, level)]


def _teaching(settings: Sequence[Setting]) -> list[Setting]:
    """The settings that means are taken over: those with images of the class.

    Without such images only a column of the last layer can come back, which a masked
    logit hides; mixed in, it would hide the rest of the curve, too.
    """
    return [s for s in settings if s.images != "retained"] or list(settings)


_WORDS = {
    "all": "of all classes",
    "forgotten": "of the forgotten ones only",
    "retained": "of the others only",
}


def _steps_draft(
    curves: Mapping[str, Mapping[Setting, Curve]],
    settings: Sequence[Setting],
    options: RelearnOptions,
    level: float,
) -> Draft:
    """Steps until the class is back; whoever is not back has no number."""
    # The setting with the most images, of all classes if that was asked for.
    setting = max(settings, key=lambda s: (s.images == "all", s.images_per_class))
    steps = {model: of[setting].steps_to(level) for model, of in curves.items()}
    late = [model for model, step in steps.items() if step is None]
    notes = [
        f"back means {level:.3f} accuracy on the forgotten test images; with "
        f"{setting.name.replace('_', ' ')}"
    ]
    if late:
        notes.append(f"not back within {options.steps} steps: {', '.join(late)}")
    return draft(
        "relearn_steps",
        # A model that is back before the first step took less than one look.
        {model: None if s is None else max(s, 1) for model, s in steps.items()},
        question="How many training steps until the forgotten class is back?",
        unit="steps",
        higher_is=BETTER,
        resolution=float(options.every),
        bounds=(0.0, math.inf),
        scale=LOGARITHMIC,
        undecidable=(
            None
            if None not in by_role(steps)[1]
            else "not all retrained models are back when the steps are over, so how "
            "long they take is not known"
        ),
        notes=notes,
    )


def _detail(
    curves: Mapping[str, Mapping[Setting, Curve]],
    settings: Sequence[Setting],
    level: float,
) -> dict[str, Any]:
    runs = [
        {
            "model": model,
            **setting._asdict(),
            "steps": curve.steps.tolist(),
            "accuracy": curve.accuracy.tolist(),
        }
        for model, by_setting in curves.items()
        for setting, curve in by_setting.items()
    ]
    means = {
        model: {
            "steps": by_setting[settings[0]].steps.tolist(),
            "accuracy": np.mean(
                [by_setting[s].accuracy for s in _teaching(settings)], axis=0
            ).tolist(),
        }
        for model, by_setting in curves.items()
    }
    return {"level": level, "curves": means, "runs": runs}
