"""Rounds in which clients train on what is to be forgotten, by another objective.

They are rounds of FedAvg over the holders of the forgotten images, one local pass each.
The network trains as it is evaluated: these images leave no trace in its statistics.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.data.federated import FederatedDataset, whole_cohort
from fuprune.errors import UnlearnError
from fuprune.federated.objective import Objective
from fuprune.federated.server import fed_avg
from fuprune.models.adapt import adapt
from fuprune.models.layers import loops_are_fast
from fuprune.options import option, options
from fuprune.unlearning.job import Job, UnlearnResult, tree_bytes
from fuprune.unlearning.method import method

SIMULATED = "its clients train by an objective that no message describes"
taught = functools.partial(method, reads_forgotten=True, simulated=SIMULATED)


def passes(number: int, rate: float, size: int) -> Any:
    """The options of a method that teaches, with what its paper did as defaults."""

    @options
    class Passes:
        rounds: int = option(number, "passes over forgotten images", ge=0, le=100_000)
        learning_rate: float = option(rate, "of these passes", gt=0, le=1000)
        batch_size: int = option(size, "of these passes", ge=1, le=65_536)

    return Passes


class Frozen(NamedTuple):
    """A network that trains as it is evaluated: its statistics stay as they are."""

    network: Any

    @property
    def conv(self) -> str:
        """Whose convolutions it has, for `loops_are_fast`."""
        return "onednn" if loops_are_fast(self.network) else "xla"

    def apply(self, variables, images, train=False, mask=None, mutable=(), rngs=None):
        """Logits [B, U], and the collections in `mutable` as they were."""
        logits = self.network.apply(variables, images, train=False)
        kept = {name: variables[name] for name in mutable if name in variables}
        return (logits, kept) if mutable else logits


def answers_of(
    teacher, variables, change: Callable[[jax.Array, Any], jax.Array] = lambda t, b: t
) -> Objective:
    """KL(softmax(change(t, batch)) || softmax(s)) of student s and teacher t, [B].

    `change` edits the teacher's logits [B, U]; minus infinity gets no probability.
    """
    teacher = adapt(teacher)

    def losses(variables, logits, batch):
        answers = teacher.apply(variables, batch.images, train=False)
        chances = jax.nn.softmax(change(answers.astype(jnp.float32), batch))
        student = jax.nn.log_softmax(logits.astype(jnp.float32))
        return optax.losses.kl_divergence(student, chances)

    return Objective(losses, variables)


def own_label(batch, classes: int) -> jax.Array:
    """[B, U], true at each example's own label."""
    return jax.nn.one_hot(batch.labels, classes) > 0


def labels_only(logits, batch) -> jax.Array:
    """The cross-entropy of each example, [B]."""
    return optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), batch.labels
    )


def teach(
    job: Job,
    o: Any,
    objective: Objective | Callable,
    optimizer: optax.GradientTransformation,
    stage: str,
    *,
    data: FederatedDataset | None = None,
    recover: Objective | None = None,
) -> UnlearnResult:
    """Rounds of FedAvg on the forgotten images or `data`, then the fine-tuning.

    `o` are options as `passes` makes them; `stage` names the model before the
    fine-tuning, which minimises `recover`, or the cross-entropy.
    """
    data = job.forgotten if data is None else data
    variables, images = job.variables, int(np.sum(jax.device_get(data.lengths)))
    if images and o.rounds:
        algorithm = fed_avg(
            Frozen(adapt(job.model)),
            client_optimizer=optimizer,
            batch_size=o.batch_size,
            objective=objective,
            preprocess=job.preprocess,
            backend=job.backend,
            mesh=job.mesh,
        )
        state, cohort = algorithm.init(variables), whole_cohort(data)
        for number in range(o.rounds):
            key = jax.random.fold_in(job.own_key, number)
            state, _ = algorithm.round(state, cohort, key)
        # Means over clients round what all clients have in common.
        variables = {**variables, "params": state.variables["params"]}
    if not all(np.all(np.isfinite(x)) for x in jax.tree.leaves(variables)):
        raise UnlearnError(
            f"{stage}: training on the forgotten images diverged; lower the method's "
            "learning_rate."
        )
    return job.recover(
        variables,
        stage=stage,
        notes={"rounds": o.rounds, "images": o.rounds * images},
        upload_bytes=o.rounds * tree_bytes(job.variables["params"]),
        objective=recover,
    )
