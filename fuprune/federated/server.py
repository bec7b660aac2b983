"""The server's half of a round: what clients send becomes a step of the model.

A round is the client's program on every client of a cohort, the checks of `uploads`, a
rule of `aggregate`, and an optax optimiser; `batch_norm` wraps what statistics need.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import optax

from fuprune.data.preprocess import Preprocess, to_float
from fuprune.errors import InputError
from fuprune.federated.aggregate import Rule, weighted_mean
from fuprune.federated.batch_norm import (
    LocalBatchNorm,
    LocalStatistics,
    recalibrated,
    with_own_statistics,
)
from fuprune.federated.client import (
    ClientUpdate,
    TrainContext,
    local_gradient,
    local_sgd,
    split_params,
)
from fuprune.federated.cohort import (
    clients_of,
    for_each_client,
    keep_compiled,
    resolve_backend,
)
from fuprune.federated.local_work import check_local_work
from fuprune.federated.objective import Objective, as_objective, classification
from fuprune.federated.program import ClientProgram, Shared, Transport
from fuprune.federated.sharded import make_client_mesh, on_mesh
from fuprune.federated.uploads import Upload, make_receive
from fuprune.models.adapt import Variables, adapt
from fuprune.models.layers import loops_are_fast


class ServerState(NamedTuple):
    """What the next round needs."""

    variables: Variables  # {"params", "batch_stats"}
    opt_state: Any  # of the server optimiser
    round_number: jax.Array  # [] int32, rounds that changed the state
    local: LocalStatistics | None = None  # if clients keep statistics of their own


class RoundInfo(NamedTuple):
    """Diagnostics of one round."""

    loss: jax.Array  # [] mean over the examples trained on
    accuracy: jax.Array  # [] on the same examples, in training mode
    examples: jax.Array  # [] weight of the accepted clients
    seen: jax.Array  # [] images that they trained on; every epoch counts
    participants: jax.Array  # [] int32, accepted clients that hold data
    rejected: jax.Array  # [M] bool, turned away
    clients: jax.Array  # [M] int32, ids
    weights: jax.Array  # [M] float32, each client's in the aggregation
    updates: Any = None  # [M, ...] with `keep_updates`
    batch_stats: Any = None  # [M, ...] between a round and `with_own_statistics`


class FedAlgorithm(NamedTuple):
    """A federated algorithm as a pair of functions."""

    init: Callable[[Variables], ServerState]
    round: Callable[..., tuple[ServerState, RoundInfo]]


class Rounds(TypedDict, total=False):
    """Options of every algorithm: what a round minimises, reads, admits and merges."""

    # An `Objective` such as `distillation(...)`, or a function `(logits, batch) ->
    # losses [B]`; the cross-entropy by default.
    objective: Objective | Callable | None
    preprocess: Preprocess  # `(key, uint8 images) -> float images`
    aggregate: Rule  # `weighted_mean` by default; another, such as `trimmed_mean(0.2)`
    max_update_norm: float  # a longer update is turned away; infinite by default
    keep_updates: bool  # put every client's update into `RoundInfo`
    # What becomes of BatchNorm's statistics: "aggregate", the default, "recalibrate" or
    # `LocalBatchNorm(num_clients)`.
    bn: str | LocalBatchNorm
    backend: str | Transport  # one of `cohort.BACKENDS`, "auto" by default
    mesh: Any  # devices for `shard_map`; all by default


def fed_avg(
    model,
    *,
    client_optimizer: optax.GradientTransformation,
    local_epochs: int = 1,
    local_steps: int = 0,
    batch_size: int = 32,
    server_optimizer: optax.GradientTransformation | None = None,
    schedule: Callable[[Any], Any] | None = None,
    **rounds: Unpack[Rounds],
) -> FedAlgorithm:
    """Federated averaging (McMahan et al. 2017).

    Clients start from the server's parameters with a fresh optimiser, train
    `local_epochs` epochs or `local_steps` steps, and send their parameter change; the
    server applies the mean weighted by the clients' numbers of images, however many
    they saw, through `server_optimizer`.

    Args:
      model: any network that `models.adapt.adapt` takes.
      client_optimizer: any optax optimiser.
      local_epochs: E.
      local_steps: K, at most this many steps per client and round; 0 for no bound.
      batch_size: B of local SGD.
      server_optimizer: fed the negative mean change as gradient; `sgd(1.0)` by default.
      schedule: round number -> factor on the client's learning rate.
      **rounds: the options of `Rounds`.
    """
    check_local_work(local_epochs, local_steps)
    work = dict(
        local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size
    )
    client = (local_sgd, (adapt(model), client_optimizer), tuple(work.items()))
    optimizer = follow(server_optimizer) if server_optimizer else _ADD_THE_CHANGE
    return _make_algorithm(model, client, optimizer, schedule, batch_size, **rounds)


def fed_sgd(
    model,
    *,
    server_optimizer: optax.GradientTransformation,
    batch_size: int | None = None,
    microbatch: int = 128,
    **rounds: Unpack[Rounds],
) -> FedAlgorithm:
    """FedSGD: one gradient per client and round, one server step on their mean.

    Args:
      model: any network that `models.adapt.adapt` takes.
      server_optimizer: fed the mean gradient; its schedule counts rounds.
      batch_size: examples that a client draws per round; None for all it has.
      microbatch: examples per piece, in which a client accumulates its gradient.
      **rounds: the options of `Rounds`.
    """
    work = (("batch_size", batch_size), ("microbatch", microbatch))
    client = (local_gradient, (adapt(model),), work)
    return _make_algorithm(model, client, server_optimizer, None, microbatch, **rounds)


@functools.lru_cache(maxsize=8)
def follow(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser, fed a change to follow in place of a gradient to descend."""

    def update(updates, state, params=None):
        gradient = jax.tree.map(jnp.negative, updates)
        return optimizer.update(gradient, state, params)

    return optax.GradientTransformation(optimizer.init, update)


_ADD_THE_CHANGE = follow(optax.sgd(1.0))  # FedAvg's server as it is


def _make_algorithm(
    model,
    client: tuple[Callable[..., ClientProgram], tuple, tuple],
    optimizer: optax.GradientTransformation,
    schedule: Callable[[Any], Any] | None,
    statistics_batch: int,
    *,
    objective: Objective | Callable | None = None,
    preprocess: Preprocess = to_float,
    aggregate: Rule = weighted_mean,
    max_update_norm: float = math.inf,
    keep_updates: bool = False,
    bn: str | LocalBatchNorm = "aggregate",
    backend: str | Transport = "auto",
    mesh=None,
) -> FedAlgorithm:
    """The rounds of clients that run a program and of a server that descends."""
    if not isinstance(bn, LocalBatchNorm) and bn not in ("aggregate", "recalibrate"):
        raise InputError(
            f"bn is {bn!r}, but must be aggregate, recalibrate or, for statistics by "
            "client, LocalBatchNorm(num_clients=...)."
        )
    if not callable(aggregate):
        raise InputError(
            f"aggregate is {aggregate!r:.40}, but must be a rule such as "
            "coordinate_median, trimmed_mean(...) or a function (updates, weights)."
        )
    goal = as_objective(objective or classification())
    if isinstance(backend, str):
        # By its own name, for this network and these devices.
        fast, devices = loops_are_fast(model), None if mesh is None else mesh.size
        backend, _ = resolve_backend(backend, loops_are_fast=fast, device_count=devices)
    # Where state and context are put; None for backends without a mesh.
    spread = None
    if backend == "shard_map":
        spread = mesh = mesh or make_client_mesh()
    # A mean is summed up client by client; other rules need all updates at once.
    add_up = aggregate is weighted_mean
    admission = (add_up, keep_updates, max_update_norm)

    # The objective's arrays are arguments of a round, and no part of the program.
    parts = (preprocess, goal._replace(context=()), admission, backend, mesh)
    # By the length of rows, of which a run has one or a few.
    train_rows_of = functools.cache(lambda most: _make_training(*client, most, *parts))
    rule = None if add_up else aggregate
    finish_round = _make_finish_round(optimizer, rule, keep_updates)
    # One program in place of one for every operation of a schedule.
    factor_of = jax.jit(lambda number: jnp.float32(schedule(number) if schedule else 1))
    # Put on the mesh once: a teacher does not change from round to round.
    teacher = on_mesh(goal.context, spread) if spread else goal.context

    def init(variables) -> ServerState:
        params, _ = split_params(variables)
        start = jnp.zeros((), jnp.int32)
        return ServerState(dict(variables), optimizer.init(params), start)

    def round_(state: ServerState, cohort, key) -> tuple[ServerState, RoundInfo]:
        train = train_rows_of(cohort.rows.shape[1])
        if spread is not None:
            state = on_mesh(state, spread)
        context = TrainContext(
            state.variables,
            key,
            factor_of(state.round_number),
            None if state.local is None else state.local.batch_stats,
            teacher,
        )
        shared = Shared(cohort.images, cohort.labels, context)
        total, each = train(shared, clients_of(cohort))
        return finish_round(state, total, each, cohort.clients)

    algorithm = FedAlgorithm(init, round_)
    if isinstance(bn, LocalBatchNorm):
        return with_own_statistics(algorithm, bn.num_clients)
    if bn == "recalibrate":
        return recalibrated(
            algorithm,
            client[1][0],
            batch_size=statistics_batch,
            preprocess=preprocess,
            backend=backend,
            mesh=mesh,
        )
    return algorithm


# Algorithms that differ in their schedule or their server share the clients' program:
# to trace and load one takes longer than many rounds of a small network.
@keep_compiled
def _make_training(
    make, parts, work, max_length, preprocess, objective, admission, backend, mesh
):
    program = make(
        *parts,
        **dict(work),
        max_length=max_length,
        preprocess=preprocess,
        objective=objective,
    )
    return for_each_client(
        program, receive=make_receive(*admission), backend=backend, mesh=mesh
    )


@keep_compiled
def _make_finish_round(optimizer, rule: Rule | None, keep_updates: bool):
    """`(state, total, uploads, ids) -> (state, info)`: the server's own step.

    Without a rule, totals are weighted sums already.
    """

    def merge(before, total: ClientUpdate, each: Upload):
        """The update, and BatchNorm's statistics."""
        if rule is None:
            some = jnp.maximum(total.num_examples, 1.0)
            return jax.tree.map(lambda x: x / some, (total.update, total.batch_stats))
        update = rule(each.update, each.weight)
        if not before:
            return update, before
        # A rule that clips or trims is about changes, so statistics become changes.
        change = jax.tree.map(jnp.subtract, each.batch_stats, before)
        change = rule(change, each.weight)
        return update, jax.tree.map(jnp.add, before, change)

    def finish_round(state: ServerState, total: ClientUpdate, each: Upload, ids):
        params, rest = split_params(state.variables)
        before = rest.get("batch_stats", {})
        update, stats = merge(before, total, each)
        step, opt_state = optimizer.update(update, state.opt_state, params)
        variables = {**rest, "params": optax.apply_updates(params, step)}
        if before:
            variables["batch_stats"] = stats
        new = ServerState(variables, opt_state, state.round_number + 1, state.local)
        # A round of nobody changes nothing, not even momentum or the round number.
        changed = total.num_examples > 0
        new = jax.tree.map(lambda a, b: jnp.where(changed, a, b), new, state)
        seen = jnp.maximum(total.seen, 1.0)
        info = RoundInfo(
            loss=total.loss_sum / seen,
            accuracy=total.correct / seen,
            examples=total.num_examples,
            seen=total.seen,
            participants=jnp.sum(each.weight > 0).astype(jnp.int32),
            rejected=~each.accepted,
            clients=ids,
            weights=each.weight,
            updates=each.update if keep_updates else None,
            batch_stats=None if state.local is None else each.batch_stats,
        )
        return new, info

    return jax.jit(finish_round)
