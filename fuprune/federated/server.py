"""The server's half of a round: admission, aggregation, server optimiser, BatchNorm.

`fed_avg` and `fed_sgd` return a `FedAlgorithm(init, round)` pair of pure functions.
BatchNorm's running statistics are state, not parameters, and what happens to them is
an explicit policy: `aggregate` (mean weighted by examples), `recalibrate` (recomputed
under the new parameters on the cohort's data) or `LocalBatchNorm` (each client keeps
its own; the server holds the mean, weighted by examples, over those that have taken
part).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fuprune.data.preprocess import Preprocess, to_float
from fuprune.errors import InputError
from fuprune.federated import aggregate
from fuprune.federated.aggregate import PLAIN_MEAN, Aggregation
from fuprune.federated.client import (
    ClientUpdate,
    TrainContext,
    local_gradient,
    local_sgd,
    local_statistics,
    split_params,
    statistics_from_moments,
)
from fuprune.federated.cohort import clients_of, for_each_client, resolve_backend
from fuprune.federated.local_work import LocalWork, local_work
from fuprune.federated.objective import Objective, as_objective, classification
from fuprune.federated.program import ClientProgram, Shared, Transport
from fuprune.federated.sharded import make_client_mesh, on_mesh
from fuprune.federated.uploads import Upload, receive_uploads
from fuprune.models.adapt import adapt
from fuprune.models.layers import loops_are_fast

Variables = Any
POLICIES = ("aggregate", "recalibrate")


class LocalBatchNorm(NamedTuple):
    """The BatchNorm policy under which each client keeps its own statistics."""

    num_clients: int  # K, all that there are


class LocalStatistics(NamedTuple):
    """The BatchNorm statistics that each of K clients keeps for itself."""

    batch_stats: Any  # leaves [K, ...]; of a client yet to take part, the initial ones
    examples: jax.Array  # [K] float32, weight when it last took part, 0 before


class ServerState(NamedTuple):
    """What the next round needs."""

    variables: Variables  # {"params", "batch_stats"}
    opt_state: Any  # of the server optimiser
    round_number: jax.Array  # [] int32, rounds that changed the state
    local: LocalStatistics | None = None  # under `LocalBatchNorm`


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
    updates: Any = None  # [M, ...] when asked for


class FedAlgorithm(NamedTuple):
    """A federated algorithm as a pair of functions."""

    init: Callable[[Variables], ServerState]
    round: Callable[..., tuple[ServerState, RoundInfo]]


def fed_avg(
    model,
    *,
    client_optimizer: optax.GradientTransformation,
    batch_size: int = 32,
    server_optimizer: optax.GradientTransformation | None = None,
    schedule: Callable[[Any], Any] | None = None,
    objective: Objective | Callable | None = None,
    preprocess: Preprocess = to_float,
    aggregation: Aggregation = PLAIN_MEAN,
    bn: str | LocalBatchNorm = "aggregate",
    backend: str | Transport = "auto",
    mesh=None,
    **work: Unpack[LocalWork],
) -> FedAlgorithm:
    """Federated averaging (McMahan et al. 2017).

    Clients start from the server's parameters with a fresh optimiser, train
    `local_epochs` epochs or `local_steps` steps, and send their parameter change; the
    server applies the mean weighted by the clients' numbers of images, however many
    they saw, through `server_optimizer` (default: as it is).

    Args:
      model: any network that `models.adapt.adapt` takes.
      client_optimizer: any optax optimiser.
      batch_size: B of local SGD.
      server_optimizer: fed the negative mean change as gradient; `sgd(1.0)` is FedAvg.
      schedule: round number -> factor on the client's learning rate.
      objective: what clients minimise: an `Objective` such as `classification(...)` or
        `distillation(...)`, or a function `(logits, batch) -> losses [B]`; by default
        the cross-entropy.
      preprocess: `(key, uint8 images) -> float images`.
      aggregation: the rule, and what is turned away.
      bn: `"aggregate"`, `"recalibrate"` or `LocalBatchNorm(num_clients)`.
      backend: how the cohort is iterated, one of `cohort.BACKENDS`, or a
        `program.Transport`.
      mesh: devices for `shard_map`; all by default.
      **work: `local_epochs`, E, by default 1; and `local_steps`, K, at most this many
        steps per client and round, by default 0, which takes all of the E epochs.
    """
    work = local_work(**work)
    network = adapt(model)
    goal = as_objective(objective or classification())
    server_optimizer = server_optimizer or optax.sgd(1.0)

    def make_program(max_length):
        return local_sgd(
            network,
            client_optimizer,
            batch_size=batch_size,
            max_length=max_length,
            preprocess=preprocess,
            objective=goal,
            **work,
        )

    def against(change, opt_state, params):
        """The optimiser descends, so a change to follow is a negative gradient."""
        gradient = jax.tree.map(jnp.negative, change)
        return server_optimizer.update(gradient, opt_state, params)

    return _make_algorithm(
        network,
        make_program,
        server_optimizer._replace(update=against),
        goal,
        _Rounds(preprocess, aggregation, bn, _resolve(model, backend, mesh), mesh),
        statistics_batch=batch_size,
        schedule=schedule,
    )


def fed_sgd(
    model,
    *,
    server_optimizer: optax.GradientTransformation,
    batch_size: int | None = None,
    microbatch: int = 128,
    objective: Objective | Callable | None = None,
    preprocess: Preprocess = to_float,
    aggregation: Aggregation = PLAIN_MEAN,
    bn: str | LocalBatchNorm = "aggregate",
    backend: str | Transport = "auto",
    mesh=None,
) -> FedAlgorithm:
    """FedSGD: one gradient per client and round, one server step on their mean.

    A client draws `batch_size` examples per round, or all it has if that is None, and
    accumulates gradients in pieces of `microbatch` examples. `server_optimizer` is fed
    the mean gradient; its schedule counts rounds. The other arguments are those of
    `fed_avg`.
    """
    network = adapt(model)
    goal = as_objective(objective or classification())

    def make_program(max_length):
        return local_gradient(
            network,
            batch_size=batch_size,
            microbatch=microbatch,
            max_length=max_length,
            preprocess=preprocess,
            objective=goal,
        )

    rounds = _Rounds(preprocess, aggregation, bn, _resolve(model, backend, mesh), mesh)
    return _make_algorithm(
        network, make_program, server_optimizer, goal, rounds, microbatch
    )


def _resolve(model, backend, mesh):
    """The backend's own name, for this network and these devices; or a transport."""
    if not isinstance(backend, str):
        return backend
    count = None if mesh is None else mesh.size
    fast = loops_are_fast(model)
    return resolve_backend(backend, loops_are_fast=fast, device_count=count)[0]


class _Rounds(NamedTuple):
    """How a round reads, runs and combines its clients, whatever they compute."""

    preprocess: Preprocess
    aggregation: Aggregation
    bn: str | LocalBatchNorm
    backend: str | Transport
    mesh: Any


def _make_algorithm(
    model,
    make_program: Callable[[int], ClientProgram],
    server_optimizer: optax.GradientTransformation,
    objective: Objective,
    rounds: _Rounds,
    statistics_batch: int,
    schedule: Callable[[Any], Any] | None = None,
) -> FedAlgorithm:
    """The rounds of clients that run `make_program(examples of the largest one)`."""
    preprocess, aggregation, bn, backend, mesh = rounds
    aggregate.check_aggregation(aggregation)
    _check_policy(bn)
    # Where state and context are put; None for backends without a mesh.
    spread = None
    if backend == "shard_map":
        spread = mesh = mesh or make_client_mesh()
    iterate = functools.partial(for_each_client, backend=backend, mesh=mesh)

    # Rows of another length are other shapes; a run has one, or a few.
    @functools.cache
    def programs(max_length):
        """Training, and BatchNorm's moments if wanted, for rows of one length."""
        train = receive_uploads(
            make_program(max_length),
            aggregation,
            keep_statistics=isinstance(bn, LocalBatchNorm),
        )
        if bn != "recalibrate":
            return iterate(train), None
        moments = local_statistics(
            model, batch_size=statistics_batch, preprocess=preprocess
        )
        return iterate(train), iterate(moments)

    finish_round = jax.jit(_make_finish_round(server_optimizer, aggregation))
    restate = jax.jit(_restate)
    # Put on the mesh once: a teacher does not change from round to round.
    teacher = on_mesh(objective.context, spread) if spread else objective.context

    def init(variables) -> ServerState:
        params, _ = split_params(variables)
        local, stats = None, variables.get("batch_stats")
        if isinstance(bn, LocalBatchNorm) and stats:
            number = bn.num_clients
            local = LocalStatistics(
                jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), stats),
                jnp.zeros(number, jnp.float32),
            )
        opt_state = server_optimizer.init(params)
        return ServerState(dict(variables), opt_state, jnp.zeros((), jnp.int32), local)

    def round_(state: ServerState, cohort, key) -> tuple[ServerState, RoundInfo]:
        if isinstance(bn, LocalBatchNorm):
            _check_ids(cohort.clients, bn.num_clients)
        train, moments = programs(cohort.rows.shape[1])
        if spread is not None:
            state = on_mesh(state, spread)
        factor = 1.0 if schedule is None else schedule(state.round_number)
        context = TrainContext(
            state.variables,
            key,
            jnp.asarray(factor, jnp.float32),
            None if state.local is None else state.local.batch_stats,
            teacher,
        )
        clients = clients_of(cohort)
        shared = Shared(cohort.images, cohort.labels, context)
        total, each = train(shared, clients)
        state, info = finish_round(state, total, each, cohort.clients)
        # After the server's step, by the model that the statistics are for.
        if moments is not None and state.variables.get("batch_stats"):
            context = context._replace(variables=state.variables)
            # A client that was turned away has no say here, either.
            lengths = jnp.where(info.weights > 0, clients.length, 0)
            clients = clients._replace(length=lengths)
            sums, _ = moments(shared._replace(context=context), clients)
            state = restate(state, *sums)
        return state, info

    return FedAlgorithm(init, round_)


def _check_policy(bn) -> None:
    if bn == "local":
        raise InputError(
            "bn='local' keeps statistics by client and has to know how many there are; "
            "pass bn=LocalBatchNorm(num_clients=...)."
        )
    if not isinstance(bn, LocalBatchNorm) and bn not in POLICIES:
        raise InputError(
            f"bn {bn!r} is unknown; choose one of {', '.join(POLICIES)} or "
            "LocalBatchNorm(num_clients=...)."
        )


def _check_ids(clients, num_clients: int) -> None:
    # JAX would read the last client's statistics for such an id, and write nothing.
    last = max(jax.device_get(clients).tolist(), default=0)
    if last >= num_clients:
        raise InputError(
            f"Client {last} takes part, but LocalBatchNorm keeps the statistics of "
            f"{num_clients}: pass num_clients={last + 1} or more."
        )


def _make_finish_round(server_optimizer, aggregation: Aggregation):
    """`(state, total, uploads, ids) -> (state, info)`: the server's own step."""

    def finish_round(state: ServerState, total: ClientUpdate, each: Upload, ids):
        params, rest = split_params(state.variables)
        before = rest.get("batch_stats", {})
        update, stats = _combine(aggregation, before, total, each)
        updates, opt_state = server_optimizer.update(update, state.opt_state, params)
        variables = {**rest, "params": optax.apply_updates(params, updates)}
        if before:
            variables["batch_stats"] = stats
        local = state.local
        if local is not None:
            local = _keep_local(local, ids, each)
            # The server evaluates with the mean of what clients last kept, by their
            # weights.
            variables["batch_stats"] = aggregate.weighted_mean(*local)
        new = ServerState(variables, opt_state, state.round_number + 1, local)
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
            updates=each.update if aggregation.keep_updates else None,
        )
        return new, info

    return finish_round


def _combine(aggregation: Aggregation, before, total: ClientUpdate, each: Upload):
    """The update and the statistics under the aggregation rule."""
    if aggregation.rule == "mean":
        # Totals are weighted sums already: no client's update is needed by itself.
        some = jnp.maximum(total.num_examples, 1.0)
        return jax.tree.map(lambda x: x / some, (total.update, total.batch_stats))
    update = aggregate.aggregate(each.update, each.weight, aggregation)
    if not before:
        return update, before
    # A rule that clips or trims is about changes, so statistics become changes, too.
    change = jax.tree.map(jnp.subtract, each.batch_stats, before)
    change = aggregate.aggregate(change, each.weight, aggregation)
    return update, jax.tree.map(jnp.add, before, change)


def _keep_local(local: LocalStatistics, ids, each: Upload) -> LocalStatistics:
    """Write what the clients that took part sent into their rows."""
    took_part = each.weight > 0

    def write(all_rows, rows):
        shape = (-1,) + (1,) * (rows.ndim - 1)
        kept = jnp.where(took_part.reshape(shape), rows, all_rows[ids])
        return all_rows.at[ids].set(kept)

    sent = LocalStatistics(each.batch_stats, each.weight)
    return jax.tree.map(write, local, sent)


def _restate(state: ServerState, total, examples) -> ServerState:
    """The state with statistics from the cohort's moments, if it had any examples."""
    stats = statistics_from_moments(total, examples)
    old = state.variables["batch_stats"]
    stats = jax.tree.map(lambda a, b: jnp.where(examples > 0, a, b), stats, old)
    return state._replace(variables={**state.variables, "batch_stats": stats})
