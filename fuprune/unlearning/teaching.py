"""Rounds in which clients train on what is to be forgotten, by another objective.

What several methods share: rounds of FedAvg over the holders of the forgotten images,
one local pass each, with an objective and an optimiser of the method's own. The network
trains as it is evaluated, so that these images leave no trace in its statistics.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.data.federated import FederatedDataset, whole_cohort
from fuprune.errors import InputError
from fuprune.federated.objective import Objective
from fuprune.federated.server import fed_avg
from fuprune.models.adapt import adapt
from fuprune.models.layers import loops_are_fast
from fuprune.unlearning.job import Job
from fuprune.unlearning.protocol import UnlearnError, UnlearnResult, tree_bytes

SIMULATED = "its clients train by an objective that no message describes"


class Frozen(NamedTuple):
    """A network that trains as it is evaluated: its statistics stay as they are."""

    network: Any

    @property
    def conv(self) -> str:
        """Whose convolutions it has, for `loops_are_fast`."""
        return "onednn" if loops_are_fast(self.network) else "xla"

    def apply(self, variables, images, train=False, mask=None, mutable=(), rngs=None):
        """Logits [B, U], and the collections in `mutable` as they were."""
        del train, mask, rngs
        logits = self.network.apply(variables, images, train=False)
        kept = {name: variables[name] for name in mutable if name in variables}
        return (logits, kept) if mutable else logits


def answers_of(
    teacher, variables, change: Callable[[jax.Array, Any], jax.Array] = lambda t, b: t
) -> Objective:
    """KL(softmax(change(t, batch)) || softmax(s)) of student s and teacher t, [B].

    `change` edits the teacher's logits [B, U]; those of minus infinity get no
    probability.
    """
    teacher = adapt(teacher)

    def losses(variables, logits, batch):
        taught = teacher.apply(variables, batch.images, train=False)
        taught = change(taught.astype(jnp.float32), batch)
        log_taught = jax.nn.log_softmax(taught)
        gaps = log_taught - jax.nn.log_softmax(logits.astype(jnp.float32))
        # 0 log 0 is 0: an answer that is ruled out has no say.
        chances = jnp.exp(log_taught)
        return jnp.sum(jnp.where(chances > 0, chances * gaps, 0.0), axis=-1)

    return Objective(losses, variables)


def own_label(batch, classes: int) -> jax.Array:
    """[B, U], true at each example's own label."""
    return jax.nn.one_hot(batch.labels, classes) > 0


def teach(
    job: Job,
    data: FederatedDataset,
    objective: Objective | Callable,
    optimizer: optax.GradientTransformation,
    *,
    rounds: int,
    batch_size: int,
    stage: str,
    recover: Objective | None = None,
) -> UnlearnResult:
    """Rounds of FedAvg on `data`, usually the forgotten, then the fine-tuning.

    Args:
      job: the job.
      data: what the clients that hold any of it train on.
      objective: what they minimise.
      optimizer: of a client, fresh in each round.
      rounds: how many, of one local pass each: the epochs of a central method.
      batch_size: of the local passes.
      stage: the name of the model before the fine-tuning.
      recover: what the fine-tuning minimises in place of the cross-entropy.
    """
    if not isinstance(job.backend, str):
        raise InputError(
            f"the method cannot run with remote clients: {SIMULATED}; choose ascent or "
            "relabel, or run it as a simulation."
        )
    variables, lengths = job.variables, np.asarray(jax.device_get(data.lengths))
    if lengths.any() and rounds:
        algorithm = fed_avg(
            Frozen(adapt(job.model)),
            client_optimizer=optimizer,
            batch_size=batch_size,
            objective=objective,
            preprocess=job.preprocess,
            backend=job.backend,
            mesh=job.mesh,
        )
        state, cohort = algorithm.init(variables), whole_cohort(data)
        for number in range(rounds):
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
        notes={"rounds": rounds, "images": rounds * int(lengths.sum())},
        upload_bytes=rounds * tree_bytes(job.variables["params"]),
        objective=recover,
    )
