"""Membership inference: can an attacker tell which images a model was trained on?

Of a class this shows little where training and test images are answered alike; the
measures that describe it stand beside the paper's Table 4. Of clients and examples it
is the question itself. `rmia` trains shadow models and is off by default: it takes tens
of them, and sees something only where the raw model is overfitted.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import ks_2samp
from threadpoolctl import threadpool_limits

from fuprune.audit.answers import label_score, log_probabilities
from fuprune.audit.judge import EITHER, HIGHER, Measure
from fuprune.audit.measures import (
    Subject,
    of_images,
    of_numbers,
    to_retraining,
)
from fuprune.audit.outputs import logits_of
from fuprune.audit.probe import linear_probe, placements
from fuprune.audit.record import RAW
from fuprune.audit.training import batch_rows, init_state, sgd_step
from fuprune.data.dataset import Dataset, concatenated
from fuprune.errors import InputError
from fuprune.models.fresh import init_variables


def membership_measures(
    subject: Subject, generator: np.random.Generator
) -> list[Measure]:
    """Attacks by the loss, by outputs on other classes, and with shadow models."""
    labels = subject.forgotten.labels
    rows, what = subject.unseen, "the class" if subject.classes else "their classes"
    losses = subject.each(
        lambda one: (
            label_score(one.forgotten, labels),
            label_score(one.test[rows], subject.test.labels[rows]),
        )
    )
    members = {name: own for name, (own, _) in losses.items()}
    measures = [
        of_images(
            "membership_loss",
            "membership",
            {name: placements(*pair) for name, pair in losses.items()},
            f"How well does the loss tell the forgotten images from unseen ones of "
            f"{what} (AUC, 0.5 is guessing)?",
            # Of a class, training and test images are told apart nowhere by it.
            headline=not subject.classes,
            harm=EITHER,
        ),
        of_numbers(
            "loss_distribution",
            "membership",
            to_retraining(members, lambda a, b: ks_2samp(a, b)[0]),
            "How far is the distribution of losses on the forgotten images from "
            "retraining's (Kolmogorov-Smirnov)?",
            unit="distance",
            harm=HIGHER,
        ),
        of_numbers(
            "forgetting_quality",
            "membership",
            to_retraining(members, _log_p_value),
            "How likely are losses on the forgotten images so far apart if both models "
            "were retrained (log10 of the Kolmogorov-Smirnov p-value)?",
            unit="log10",
            harm="lower",
        ),
    ]
    if subject.classes:
        measures.append(
            of_images(
                "membership_paper",
                "membership",
                attack_by_other_classes(subject),
                "How many forgotten training images does an attack call members that "
                "learned from the model's outputs on the other classes (Table 4)?",
                harm=HIGHER,
            )
        )
    if subject.options.shadows:
        measures.append(rmia(subject, generator))
    return measures


def _log_p_value(own: np.ndarray, other: np.ndarray) -> float:
    # The least positive number keeps the logarithm finite.
    return float(np.log10(max(ks_2samp(own, other)[1], 1e-300)))


def attack_by_other_classes(subject: Subject) -> dict[str, np.ndarray]:
    """`[F]` which forgotten training images each model's attack calls members.

    The attack on a model is a logistic regression on its sorted log-probabilities,
    fitted to tell training from test images of the other classes.
    """
    rest = ~subject.is_forgotten

    def attack(answers) -> np.ndarray:
        inside, outside = sorted_outputs(answers.retained, answers.test[rest])
        with threadpool_limits(limits=1):
            fitted = linear_probe().fit(
                np.concatenate([inside, outside]),
                np.repeat([True, False], [len(inside), len(outside)]),
            )
            return fitted.predict(*sorted_outputs(answers.forgotten))

    return subject.each(attack)


def sorted_outputs(*logits: np.ndarray, top: int = 3) -> list[np.ndarray]:
    """`[N, top]` the greatest log-probabilities, at least -30, for each array."""
    return [
        np.maximum(-np.sort(-log_probabilities(one), axis=-1)[:, :top], -30.0)
        for one in logits
    ]


def rmia(subject: Subject, generator: np.random.Generator) -> Measure:
    """The relative membership attack (Zarifzadeh et al. 2024) with shadow models.

    An image is a likelier member the more of a population of test images its
    likelihood ratio beats: the model's probability of the label over the mean of
    shadow models, half of which were trained on it.
    """
    forgotten, test = subject.forgotten, subject.test
    asked = Dataset(*(part[subject.unseen] for part in test))
    others = np.setdiff1d(np.arange(len(test.labels)), subject.unseen)
    crowd = generator.permutation(others)[: subject.options.max_examples]
    population = Dataset(*(part[crowd] for part in test))
    targets = concatenated([forgotten, asked])
    pool = concatenated([targets, subject.retained])
    shadows = train_shadows(subject, pool, generator)
    everything = concatenated([targets, population])

    def scores(model: Any) -> np.ndarray:
        logits = logits_of(model, everything.images, subject.preprocess)
        return label_score(logits, everything.labels)

    mean = np.logaddexp.reduce([scores(one) for one in shadows]) - np.log(len(shadows))
    found = {}
    for name, answers in subject.answers.items():
        parts = (answers.forgotten, answers.test[subject.unseen], answers.test[crowd])
        own = label_score(np.concatenate(parts), everything.labels)
        # What gives all targets one score says nothing about any; its attack would
        # rank them by the shadow models alone.
        silent = np.ptp(own[: len(targets.labels)]) == 0
        ratios = np.zeros_like(own) if silent else own - mean
        split = len(targets.labels)
        beaten = placements(ratios[:split], ratios[split:])
        members = len(forgotten.labels)
        found[name] = placements(beaten[:members], beaten[members:])
    return of_images(
        "membership_rmia",
        "membership",
        found,
        "How well does an attack with shadow models (RMIA) tell the forgotten images "
        "from unseen ones (AUC, 0.5 is guessing)?",
        headline=True,
        note=f"{len(shadows)} shadow models, each trained on half of "
        f"{len(pool.labels)} images.",
    )


def train_shadows(
    subject: Subject, pool: Dataset, generator: np.random.Generator
) -> list[Any]:
    """Models of the raw model's network, each trained on its own half of a pool.

    Each image is in half of them, or in one more or less.

    Raises:
      InputError: a single shadow model was asked for, or the pool is too small.
    """
    options = subject.options
    network, like = subject.models[RAW]
    count = len(pool.labels)
    if options.shadows < 2 or count < 2:
        raise InputError(
            f"{options.shadows} shadow models on {count} images were asked for; give 2 "
            "or more of both, or 0 shadow models for none"
        )
    order = np.argsort(generator.random((options.shadows, count)), axis=0)
    members = order < options.shadows // 2
    sample = jax.device_put(subject.preprocess(pool.images[:2]))
    shadows = []
    for i, inside in enumerate(members):
        subject.notify(f"shadow model {i + 1} of {options.shadows}")
        key = jax.random.key(int(generator.integers(2**31)))
        state = init_state(dict(init_variables(network, key, sample, like)))
        rows = np.flatnonzero(inside)
        if not len(rows):
            rows = np.arange(count)
        lesson = batch_rows(generator, rows, options.shadow_steps, options.batch_size)
        for step, batch in enumerate(lesson):
            # Along a cosine from the given rate to nothing.
            decay = 0.5 * (1 + np.cos(np.pi * step / len(lesson)))
            rate = jnp.asarray(options.shadow_learning_rate * decay, jnp.float32)
            images = jax.device_put(subject.preprocess(pool.images[batch]))
            labels = jax.device_put(pool.labels[batch])
            drop = jax.random.fold_in(key, step)
            state = sgd_step(network, state, images, labels, drop, rate)
        shadows.append((network, state.variables))
    return shadows
