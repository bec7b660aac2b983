"""Relearn time: how many steps until the forgotten class is back?

A model that kept what it knew of a class needs fewer steps than one that never saw it.
The class's column of the last layer is first set to zero in every model alike, so that
a logit pinned far down cannot pass for forgetting.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit.outputs import (
    Variables,
    compute_outputs,
    find_head,
    with_forgotten_columns_reset,
)
from fuprune.audit.training import init_state, rate, sgd_step


class Relearned(NamedTuple):
    """The way back of one model."""

    steps: int  # the first evaluation at or above the level; the cap if never
    reached: bool
    curve: list[tuple[int, float]]  # (step, accuracy on the forgotten test images)


def relearn_time(
    model: nn.Module,
    variables: Variables,
    images: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    preprocess: Callable[[np.ndarray], Any],
    *,
    classes: Sequence[int],
    level: float,
    learning_rate: float = 0.003,
    every: int = 2,
    batch_size: int = 256,
) -> Relearned:
    """Trains on all classes until the forgotten ones are back at `level`.

    Steps are looped on the host over one jitted step: inside a device loop XLA's CPU
    convolutions are many times slower.

    Args:
      model: the module.
      variables: its variables; not changed.
      images: `[N, ...]` training images, the forgotten classes among them.
      labels: `[N]`.
      rows: `[steps, B]` the batches, the same for every model.
      test_images: `[M, ...]` of the forgotten classes.
      test_labels: `[M]`.
      preprocess: images -> what the model takes.
      classes: the forgotten classes.
      level: the accuracy to reach.
      learning_rate: fixed, with momentum 0.9.
      every: steps between evaluations.
      batch_size: of the evaluation.

    Returns:
      The steps needed, capped at `len(rows)`.
    """
    sample = jnp.asarray(preprocess(images[rows[0]]))
    head = find_head(model, variables, sample)
    state = init_state(with_forgotten_columns_reset(variables, head, classes))
    key = jax.random.key(0)

    def accuracy() -> float:
        logits = compute_outputs(
            model, state.variables, test_images, preprocess, batch_size=batch_size
        ).head_logits
        return float(np.mean(logits.argmax(axis=-1) == test_labels))

    curve = [(0, accuracy())]
    for step, batch in enumerate(rows, start=1):
        if curve[-1][1] >= level:
            break
        state = sgd_step(
            model,
            head,
            state,
            jnp.asarray(preprocess(images[batch])),
            jnp.asarray(labels[batch]),
            jax.random.fold_in(key, step),
            rate(learning_rate),
        )
        if step % every == 0 or step == len(rows):
            curve.append((step, accuracy()))
    reached = curve[-1][1] >= level
    return Relearned(curve[-1][0] if reached else len(rows), reached, curve)
