"""Relearning: how fast does a class come back that a model is taught again?

The class's rows of the last layer are set to the mean of the others first. Without
that, relearning measures the row: what a mask or a penalty has put there, not what the
layers below still know. Lessons are test images, because the training images of the
class are those that some methods teach wrongly; half of the test set teaches and the
other half is asked, and in every second draw the halves change places.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit.judge import Measure
from fuprune.audit.measures import Subject, by_method, of_images, retrained, with_hidden
from fuprune.audit.outputs import BATCH, heads_of, logits_of, with_fresh_rows
from fuprune.audit.record import Curve
from fuprune.audit.training import batch_rows, init_state, sgd_step
from fuprune.data.dataset import Dataset

LOOKS = 4  # after the start


def relearn_measures(
    subject: Subject, generator: np.random.Generator
) -> tuple[list[Measure], dict[str, Curve]]:
    """Mean accuracy on the class while it is taught again, and its course."""
    options = subject.options
    sides = halves(subject.test.labels, generator)
    steps = looks(options.relearn_steps)
    # Drawn once for all models, so that they differ by what they know alone.
    draws: list[tuple[np.ndarray, np.ndarray]] = []
    for draw in range(options.relearn_draws):
        teaching, asked = sides[draw % 2], sides[1 - draw % 2]
        asked = asked[subject.is_forgotten[asked]][:BATCH]
        if len(asked):
            size = options.batch_size
            lesson = batch_rows(generator, teaching, options.relearn_steps, size)
            draws.append((lesson, asked))
    if not draws:
        return [], {}
    taught = {}
    for name, model in subject.models.items():
        subject.notify(f"relearning, {name}")
        # [L, M] of all draws, one beside the other.
        taught[name] = np.concatenate(
            [
                relearn(
                    model,
                    subject.classes,
                    (subject.test, lesson),
                    Dataset(*(part[asked] for part in subject.test)),
                    subject.preprocess,
                    options.relearn_learning_rate,
                    steps,
                )
                for lesson, asked in draws
            ],
            axis=1,
        )
    taught = with_hidden(subject, taught)
    measure = of_images(
        "relearn",
        "relearn",
        {
            # Looks are nearly even, and the trapezoid is right if they are not.
            name: np.trapezoid(right, steps, axis=0) / steps[-1]
            for name, right in taught.items()
        },
        f"How much of the class comes back in {options.relearn_steps} steps on unseen "
        "images from a fresh row in the last layer (mean accuracy on the way)?",
        headline=True,
    )
    means = {name: right.mean(axis=1) for name, right in taught.items()}
    groups = {**by_method(means), "retrained": retrained(means)}
    curves = {
        name: Curve(list(steps), np.mean(found, axis=0).tolist())
        for name, found in groups.items()
        if found
    }
    return [measure], curves


def halves(
    labels: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two halves of a set, with half of each class in either, mixed."""
    first, second = [], []
    for c in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == c))
        half = -(-len(rows) // 2)
        first.append(rows[:half])
        second.append(rows[half:])
    # Mixed: a cut leaves all classes in.
    one, other = (generator.permutation(np.concatenate(x)) for x in (first, second))
    return one, other


def looks(steps: int) -> tuple[int, ...]:
    """When a model is asked: at the start, the end and evenly between."""
    return tuple(sorted({round(steps * i / LOOKS) for i in range(LOOKS + 1)}))


def relearn(
    model, classes, lesson, asked: Dataset, preprocess, learning_rate, steps
) -> np.ndarray:
    """`[L, M]` which of the images `asked` are recognised at each of `steps`.

    Args:
      model: the adapted network and its variables, which are not changed.
      classes: the forgotten classes.
      lesson: the images that teach, and their rows `[S, B]` step by step.
      asked: M images of the classes.
      preprocess: images -> what the model takes.
      learning_rate: fixed, with momentum 0.9.
      steps: at which the model is asked, from 0 to S.
    """
    network, variables = model
    pool, rows = lesson
    heads = heads_of(model, preprocess(pool.images[:2]))
    state = init_state(with_fresh_rows(variables, heads, classes))
    key, rate = jax.random.key(0), jnp.asarray(learning_rate, jnp.float32)
    right = []
    for step in range(len(rows) + 1):
        if step in steps:
            current = (network, state.variables)
            logits = logits_of(current, asked.images, preprocess)
            # Of a model that diverged no image is recognised; NaN would be the
            # greatest logit.
            known = ~np.isnan(logits).any(axis=-1)
            right.append((logits.argmax(axis=-1) == asked.labels) & known)
        if step < len(rows):
            images = jax.device_put(preprocess(pool.images[rows[step]]))
            labels = jax.device_put(pool.labels[rows[step]])
            # The same dropout for every model, as the batches are the same.
            drop = jax.random.fold_in(key, step)
            state = sgd_step(network, state, images, labels, drop, rate)
    return np.asarray(right, np.float64)
