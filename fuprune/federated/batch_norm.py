"""What a federation does with BatchNorm's running statistics, as wrapped algorithms.

They are state, not parameters. An algorithm of `server` averages the clients' own,
weighted by examples; these wrap it with another policy.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fuprune.data.preprocess import Preprocess, to_float
from fuprune.errors import InputError
from fuprune.federated.aggregate import weighted_mean
from fuprune.federated.client import (
    Batch,
    TrainContext,
    apply_in_training,
    gather_batch,
)
from fuprune.federated.cohort import clients_of, for_each_client
from fuprune.federated.local_work import count_batches
from fuprune.federated.program import ClientProgram, Shared, Task, Transport

if TYPE_CHECKING:
    from fuprune.federated.server import FedAlgorithm, RoundInfo, ServerState


class LocalBatchNorm(NamedTuple):
    """The policy under which each client keeps its own statistics."""

    num_clients: int  # K, all that there are


class LocalStatistics(NamedTuple):
    """The BatchNorm statistics that each of K clients keeps for itself."""

    batch_stats: Any  # leaves [K, ...]; of a client yet to take part, the initial ones
    examples: jax.Array  # [K] float32, weight when it last took part, 0 before


def recalibrated(
    algorithm: "FedAlgorithm",
    model,
    *,
    batch_size: int,
    preprocess: Preprocess = to_float,
    backend: str | Transport = "auto",
    mesh=None,
) -> "FedAlgorithm":
    """After each round, statistics are the moments of the cohort's data.

    They are taken under the new parameters, `batch_size` images at a time. A client
    that was turned away has no say in them. The other arguments are those of
    `fed_avg`; `model` has the interface of `models.adapt`.
    """
    program = local_statistics(model, batch_size=batch_size, preprocess=preprocess)
    take_moments = for_each_client(program, backend=backend, mesh=mesh)

    @jax.jit
    def restate(state, total, examples):
        found = statistics_from_moments(total, examples)
        old = state.variables["batch_stats"]
        # A cohort without examples leaves them.
        stats = jax.tree.map(lambda a, b: jnp.where(examples > 0, a, b), found, old)
        return state._replace(variables={**state.variables, "batch_stats": stats})

    def round_(state, cohort, key) -> "tuple[ServerState, RoundInfo]":
        state, info = algorithm.round(state, cohort, key)
        if state.variables.get("batch_stats"):
            context = TrainContext(state.variables, key)
            lengths = jnp.where(info.weights > 0, cohort.lengths, 0)
            clients = clients_of(cohort)._replace(length=lengths)
            shared = Shared(cohort.images, cohort.labels, context)
            sums, _ = take_moments(shared, clients)
            state = restate(state, *sums)
        return state, info

    return algorithm._replace(round=round_)


def with_own_statistics(algorithm: "FedAlgorithm", num_clients: int) -> "FedAlgorithm":
    """Each of K = `num_clients` clients keeps its statistics from round to round.

    The server holds their mean over those that have taken part, weighted by examples.
    """

    def init(variables) -> "ServerState":
        state, stats = algorithm.init(variables), variables.get("batch_stats")
        if not stats:
            return state
        local = LocalStatistics(
            jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)), stats),
            jnp.zeros(num_clients, jnp.float32),
        )
        return state._replace(local=local)

    @jax.jit
    def keep(state, ids, stats, weights):
        took_part = weights > 0

        def write(all_rows, rows):
            shape = (-1,) + (1,) * (rows.ndim - 1)
            kept = jnp.where(took_part.reshape(shape), rows, all_rows[ids])
            return all_rows.at[ids].set(kept)

        sent = LocalStatistics(stats, weights)
        local = jax.tree.map(write, state.local, sent)
        # The server evaluates with the mean of what clients last kept.
        mean, old = weighted_mean(*local), state.variables["batch_stats"]
        anybody = jnp.any(took_part)
        mean = jax.tree.map(lambda a, b: jnp.where(anybody, a, b), mean, old)
        variables = {**state.variables, "batch_stats": mean}
        return state._replace(variables=variables, local=local)

    def round_(state, cohort, key) -> "tuple[ServerState, RoundInfo]":
        # For a higher id, JAX would read the last client's and write nothing.
        last = max(jax.device_get(cohort.clients).tolist(), default=0)
        if last >= num_clients:
            raise InputError(
                f"Client {last} takes part, but LocalBatchNorm keeps the statistics of "
                f"{num_clients}: pass num_clients={last + 1} or more."
            )
        state, info = algorithm.round(state, cohort, key)
        if state.local is not None:
            state = keep(state, info.clients, info.batch_stats, info.weights)
        return state, info._replace(batch_stats=None)

    return algorithm._replace(init=init, round=round_)


def local_statistics(
    model, *, batch_size: int, preprocess: Preprocess
) -> ClientProgram:
    """BatchNorm moments of the client's data under the server's parameters.

    `finish` gives `(moments, ())`, moments = (sum of means, sum of second moments,
    examples), each weighted by examples, so that a cohort's sum is the pooled moment.
    """

    def init(shared, client):
        del client
        stats = shared.context.variables["batch_stats"]
        zeros = jax.tree.map(jnp.zeros_like, stats)
        return zeros, jnp.zeros(())

    def step(shared, client, carry, i):
        total, seen = carry
        positions = i * batch_size + jnp.arange(batch_size)
        batch = gather_batch(shared, client, positions, preprocess, shared.context.key)
        moments = batch_moments(model, shared.context.variables, batch)
        weight = jnp.sum(batch.mask)
        total = jax.tree.map(lambda t, m: t + weight * m, total, moments)
        return total, seen + weight

    def finish(shared, client, carry):
        del shared, client
        return carry, ()

    def num_steps(client):
        return count_batches(client.length, batch_size)

    task = Task("local_statistics", model, {"batch_size": batch_size})
    return ClientProgram(num_steps, init, step, finish, task=task)


def batch_moments(model, variables, batch: Batch):
    """A batch's moments like `batch_stats`, E[x] under `mean`, E[x^2] under `var`.

    From all-zero running statistics an update leaves (1 - momentum) times the batch's.
    """
    zeros = jax.tree.map(jnp.zeros_like, variables["batch_stats"])

    def after(running):
        given = {**variables, "batch_stats": running}
        return apply_in_training(model, given, batch)[1]["batch_stats"]

    # What is kept of the old statistics, the momentum, is the derivative by them; in a
    # batch of nothing but padding it is 1.
    found, kept = jax.jvp(after, (zeros,), (jax.tree.map(jnp.ones_like, zeros),))
    exact = jax.tree.map(
        lambda x, m: jnp.where(m < 1, x / jnp.where(m < 1, 1 - m, 1), 0), found, kept
    )
    return _with_variances(lambda mean, variance: variance + mean**2, exact)


def statistics_from_moments(total, examples):
    """Pooled mean and variance from the sums of `local_statistics`."""
    moments = jax.tree.map(lambda t: t / jnp.maximum(examples, 1.0), total)
    # E[x^2] - E[x]^2; rounding can leave a little less than zero.
    return _with_variances(
        lambda mean, square: jnp.maximum(square - mean**2, 0.0), moments
    )


def _with_variances(change, tree):
    """A tree like `batch_stats` with `change(mean, var)` in the place of each `var`."""
    if isinstance(tree, dict) and set(tree) == {"mean", "var"}:
        return {"mean": tree["mean"], "var": change(tree["mean"], tree["var"])}
    return {name: _with_variances(change, child) for name, child in tree.items()}
