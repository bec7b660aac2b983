"""What clients minimise: a loss of each example, and what it needs besides the labels.

The arrays of an `Objective` (a teacher's variables, say) are arguments of a round, so
they are neither constants of the compiled program nor a reason to compile it again.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fuprune.federated.program import Task
from fuprune.kernels.normalisation import at_least_float32
from fuprune.models.adapt import adapt


class Objective(NamedTuple):
    """A loss of each example of a batch.

    `losses(context, logits, batch)` maps logits [B, U] and a `client.Batch` to [B];
    what it gives for padding does not matter.
    """

    losses: Callable[[Any, jax.Array, Any], jax.Array]
    context: Any = ()  # pytree of arrays, the same for all clients and rounds
    task: Task | None = None  # what another process makes a teacher's from


def cross_entropy(logits, labels, mask):
    """Sum over real examples of the cross-entropy; logits [B, U] -> []."""
    return jnp.sum(_cross_entropies(logits, labels, 0.0) * mask)


def _cross_entropies(logits, labels, label_smoothing):
    targets = jax.nn.one_hot(labels, logits.shape[-1])
    targets = optax.smooth_labels(targets, label_smoothing)
    return optax.softmax_cross_entropy(at_least_float32(logits), targets)


@functools.cache
def classification(label_smoothing: float = 0.0) -> Objective:
    """Cross-entropy with the labels: the objective by default."""

    def losses(context, logits, batch):
        del context
        return _cross_entropies(logits, batch.labels, label_smoothing)

    return Objective(losses)


def distillation(
    teacher,
    variables,
    *,
    temperature: float = 1.0,
    weight: float = 0.5,
    masked_classes: Sequence[int] = (),
    label_smoothing: float = 0.0,
) -> Objective:
    """Labels and a teacher's answers (Hinton et al. 2015).

    With the student's and the teacher's logits s and t [U], the loss of one example is

        (1 - weight) CE(label, s) + weight T^2 KL(softmax(t / T) || softmax(s / T)),

    where t is minus infinity at masked classes. An example that the teacher takes for a
    masked class has its label alone, with weight 1, because what is left of the
    teacher's answer says nothing about it.

    Args:
      teacher: a network that `models.adapt.adapt` takes.
      variables: the teacher's, e.g. those of the model before unlearning.
      temperature: T.
      weight: share of the teacher in [0, 1].
      masked_classes: columns to leave out, e.g. the classes to forget.
      label_smoothing: of the first term.
    """
    teacher = adapt(teacher)
    masked = tuple(int(u) for u in masked_classes)

    def losses(teacher_variables, logits, batch):
        logits = at_least_float32(logits)
        answers = teacher.apply(teacher_variables, batch.images, train=False)
        answers = at_least_float32(jax.lax.stop_gradient(answers))
        classes = jnp.arange(answers.shape[-1])
        hidden = jnp.isin(classes, jnp.asarray(masked, jnp.int32))
        knows = ~hidden[jnp.argmax(answers, axis=-1)]
        # Far below any logit and finite, because infinities make NaN in a product.
        lowest = jnp.finfo(answers.dtype).min
        answers = jnp.where(hidden, lowest, answers / temperature)
        taught, log_taught = jax.nn.softmax(answers), jax.nn.log_softmax(answers)
        student = jax.nn.log_softmax(logits / temperature)
        gaps = jnp.where(hidden, 0.0, log_taught - student)
        divergence = temperature**2 * jnp.sum(taught * gaps, axis=-1)
        share = jnp.where(knows, weight, 0.0)
        labelled = _cross_entropies(logits, batch.labels, label_smoothing)
        return (1 - share) * labelled + share * divergence

    task = Task("distillation", teacher, {"masked_classes": list(masked)})
    return Objective(losses, variables, task)


def as_objective(objective: Objective | Callable) -> Objective:
    """An `Objective`, also from a plain `(logits, batch) -> losses [B]`."""
    if isinstance(objective, Objective):
        return objective
    return Objective(lambda context, logits, batch: objective(logits, batch))
