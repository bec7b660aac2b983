"""The server's half of a round: admission, aggregation, server optimiser, BatchNorm.

`fed_avg` and `fed_sgd` return a `FedAlgorithm(init, round)` pair of pure functions.
BatchNorm's running statistics are state, not parameters, and what happens to them is
an explicit policy: `aggregate` (mean weighted by examples), `local` (each client keeps
its own, the server holds the mean, weighted by examples, over those that have taken
part) or `recalibrate` (recomputed under the new
parameters on the cohort's data).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fuprune.data.preprocess import to_float
from fuprune.errors import InputError
from fuprune.federated import aggregate
from fuprune.federated.client import (
    ClientUpdate,
    Preprocess,
    TrainContext,
    gather_batch,
    local_gradient,
    local_sgd,
    local_statistics,
    make_loss,
    shuffled_positions,
    split_params,
    statistics_from_moments,
)
from fuprune.federated.cohort import (
    Client,
    ClientProgram,
    Shared,
    clients_of,
    for_each_client,
    make_client_mesh,
    on_mesh,
    resolve_backend,
)

Variables = Any
POLICIES = ("aggregate", "local", "recalibrate")


class LocalStatistics(NamedTuple):
    """The BatchNorm statistics that each of K clients keeps for itself."""

    batch_stats: Any  # leaves [K, ...]; of a client yet to take part, the initial ones
    examples: jax.Array  # [K] float32, weight when it last took part, 0 before


class ServerState(NamedTuple):
    """What the next round needs."""

    variables: Variables  # {"params", "batch_stats"}
    opt_state: Any  # of the server optimiser
    round_number: jax.Array  # [] int32, rounds that changed the state
    local: LocalStatistics | None = None  # with bn="local"


class RoundInfo(NamedTuple):
    """Diagnostics of one round."""

    loss: jax.Array  # [] mean over the examples trained on
    accuracy: jax.Array  # [] on the same examples, in training mode
    examples: jax.Array  # [] weight of the accepted clients
    participants: jax.Array  # [] int32, accepted clients that hold data
    rejected: jax.Array  # [M] bool, turned away at the door
    clients: jax.Array  # [M] int32, ids
    updates: Any = None  # [M, ...] when asked for


class FedAlgorithm(NamedTuple):
    """A federated algorithm as a pair of functions."""

    init: Callable[[Variables], ServerState]
    round: Callable[..., tuple[ServerState, RoundInfo]]


class _Each(NamedTuple):
    """Per-client outcome, stacked over the cohort."""

    weight: jax.Array
    accepted: jax.Array
    update: Any
    batch_stats: Any


class _Total(NamedTuple):
    """What is summed over the cohort."""

    update: Any
    batch_stats: Any
    weight: jax.Array
    loss_sum: jax.Array
    correct: jax.Array
    seen: jax.Array


Fault = Callable[[ClientUpdate, jax.Array, jax.Array], ClientUpdate]


def fed_avg(
    model,
    *,
    client_optimizer: optax.GradientTransformation,
    local_epochs: int = 1,
    batch_size: int = 32,
    server_optimizer: optax.GradientTransformation | None = None,
    backend: str = "auto",
    bn: str = "aggregate",
    num_clients: int | None = None,
    mesh=None,
    preprocess: Preprocess = to_float,
    schedule: Callable[[Any], Any] | None = None,
    label_smoothing: float = 0.0,
    rule: str = "mean",
    clip_norm: float = 10.0,
    trim: float = 0.2,
    max_update_norm: float = float("inf"),
    keep_updates: bool = False,
    fault: Fault | None = None,
    donate: bool = False,
) -> FedAlgorithm:
    """Federated averaging (McMahan et al. 2017).

    Clients start from the server's parameters with a fresh optimiser, train
    `local_epochs` epochs, and send their parameter change; the server applies the mean
    weighted by examples through `server_optimizer` (default: as it is).

    Args:
      model: a Flax module with `apply(variables, images, train=, mask=)`.
      client_optimizer: any optax optimiser.
      local_epochs: E.
      batch_size: B of local SGD.
      server_optimizer: fed the negative mean change as gradient; `sgd(1.0)` is FedAvg.
      backend: see `cohort.for_each_client`.
      bn: `aggregate`, `local` or `recalibrate`.
      num_clients: K, needed by `bn="local"`.
      mesh: devices for `shard_map`.
      preprocess: `(key, uint8 images) -> float images`.
      schedule: round number -> factor on the client's learning rate.
      label_smoothing: of the training loss.
      rule: `mean`, `clipped_mean` (norms to `clip_norm`), `median` (by coordinate) or
        `trimmed_mean` (a `trim` share cut from either end).
      clip_norm: see `rule`.
      trim: see `rule`.
      max_update_norm: larger or non-finite updates are rejected at the door.
      keep_updates: put the stacked client updates into `RoundInfo`.
      fault: simulated misbehaviour, `(update, client id, key) -> update`.
      donate: let a round reuse the memory of the state it is given.
    """

    def make_program(max_length):
        return local_sgd(
            model,
            client_optimizer,
            local_epochs=local_epochs,
            batch_size=batch_size,
            max_length=max_length,
            preprocess=preprocess,
            label_smoothing=label_smoothing,
        )

    if server_optimizer is None:
        server_optimizer = optax.sgd(1.0)
    return _make_algorithm(
        model,
        make_program,
        sign=-1.0,
        server_optimizer=server_optimizer,
        backend=backend,
        bn=bn,
        num_clients=num_clients,
        mesh=mesh,
        preprocess=preprocess,
        schedule=schedule,
        rule=rule,
        clip_norm=clip_norm,
        trim=trim,
        max_update_norm=max_update_norm,
        keep_updates=keep_updates,
        fault=fault,
        donate=donate,
        statistics_batch=batch_size,
    )


def fed_sgd(
    model,
    *,
    server_optimizer: optax.GradientTransformation,
    batch_size: int | None = None,
    microbatch: int = 128,
    backend: str = "auto",
    bn: str = "aggregate",
    num_clients: int | None = None,
    mesh=None,
    preprocess: Preprocess = to_float,
    label_smoothing: float = 0.0,
    rule: str = "mean",
    clip_norm: float = 10.0,
    trim: float = 0.2,
    max_update_norm: float = float("inf"),
    keep_updates: bool = False,
    fault: Fault | None = None,
    fused: bool | None = None,
    donate: bool = False,
) -> FedAlgorithm:
    """FedSGD: one gradient a client a round, one server step on their weighted mean.

    All clients differentiate at the same parameters, so a cohort can be one big batch
    with BatchNorm statistics taken client by client: that is `fused`, the default with
    the `vmap` backend when a client's images fit one `microbatch`. It never forms a
    single client's gradient, so it is not used with a finite `max_update_norm`, and one
    client's NaN voids the whole round.

    Args:
      model: a Flax module with `apply(variables, images, train=, mask=)`.
      server_optimizer: fed the mean gradient; its schedule counts rounds.
      batch_size: examples a client draws a round; None for all it has.
      microbatch: gradients are accumulated in pieces of this many examples.
      backend: see `fed_avg`, as for all that follow.
      bn: see `fed_avg`.
      num_clients: see `fed_avg`.
      mesh: see `fed_avg`.
      preprocess: see `fed_avg`.
      label_smoothing: see `fed_avg`.
      rule: see `fed_avg`.
      clip_norm: see `fed_avg`.
      trim: see `fed_avg`.
      max_update_norm: see `fed_avg`.
      keep_updates: see `fed_avg`.
      fault: see `fed_avg`.
      fused: see above.
      donate: see `fed_avg`.
    """
    bounded = math.isfinite(max_update_norm)
    plain = rule == "mean" and not keep_updates and fault is None and bn != "local"
    plain = plain and not bounded
    automatic = fused is None
    if automatic:
        fused = plain and resolve_backend(backend)[0] == "vmap"
    if fused and not plain:
        raise InputError(
            "fused=True needs rule='mean', bn other than 'local', and neither "
            "keep_updates, fault nor max_update_norm, because it never forms one "
            "client's gradient; pass fused=False"
        )

    def make_program(max_length):
        return local_gradient(
            model,
            batch_size=batch_size,
            microbatch=microbatch,
            max_length=max_length,
            preprocess=preprocess,
            label_smoothing=label_smoothing,
        )

    def make_fused(max_length, program):
        take = max_length if batch_size is None else min(batch_size, max_length)
        if automatic and take > microbatch:
            return program
        return _fuse(model, program, take, preprocess, label_smoothing)

    return _make_algorithm(
        model,
        make_program,
        make_fused=make_fused if fused else None,
        sign=1.0,
        server_optimizer=server_optimizer,
        backend=backend,
        bn=bn,
        num_clients=num_clients,
        mesh=mesh,
        preprocess=preprocess,
        schedule=None,
        rule=rule,
        clip_norm=clip_norm,
        trim=trim,
        max_update_norm=max_update_norm,
        keep_updates=keep_updates,
        fault=fault,
        donate=donate,
        statistics_batch=microbatch,
    )


def _make_algorithm(
    model,
    make_program,
    *,
    make_fused=None,
    sign,
    server_optimizer,
    backend,
    bn,
    num_clients,
    mesh,
    preprocess,
    schedule,
    rule,
    clip_norm,
    trim,
    max_update_norm,
    keep_updates,
    fault,
    donate,
    statistics_batch,
) -> FedAlgorithm:
    aggregate.check_rule(rule, clip_norm=clip_norm)
    if bn not in POLICIES:
        raise InputError(f"bn {bn!r} is unknown; choose one of {', '.join(POLICIES)}")
    if bn == "local" and num_clients is None:
        raise InputError("bn='local' keeps statistics by client; pass num_clients")
    loops_are_fast = getattr(model, "conv", "xla") == "onednn"
    resolved, _ = resolve_backend(
        backend,
        loops_are_fast=loops_are_fast,
        device_count=None if mesh is None else mesh.size,
    )
    spread = None
    if resolved == "shard_map":
        spread = mesh = mesh or make_client_mesh()
    iterate_clients: dict[int, tuple[Any, Any]] = {}

    def runs_for(max_length):
        """Programs compiled for a row length; one entry in practice."""
        if max_length not in iterate_clients:
            program = make_program(max_length)
            program = _at_the_door(
                program,
                stacked=rule != "mean",
                keep_updates=keep_updates,
                keep_stats=bn == "local" or rule != "mean",
                max_norm=max_update_norm,
                fault=fault,
            )
            if make_fused is not None:
                program = make_fused(max_length, program)
            options: dict[str, Any] = dict(
                backend=backend, mesh=mesh, loops_are_fast=loops_are_fast
            )
            train = for_each_client(program, **options)
            moments = None
            if bn == "recalibrate":
                moments = for_each_client(
                    local_statistics(
                        model,
                        batch_size=statistics_batch,
                        max_length=max_length,
                        preprocess=preprocess,
                    ),
                    **options,
                )
            iterate_clients[max_length] = (train, moments)
        return iterate_clients[max_length]

    def combine(before, total, each):
        """Mean update and statistics under the aggregation rule."""
        if rule == "mean":
            some = jnp.maximum(total.weight, 1.0)
            divide = lambda tree: jax.tree.map(lambda x: x / some, tree)  # noqa: E731
            return divide(total.update), divide(total.batch_stats)
        options = dict(rule=rule, clip_norm=clip_norm, trim=trim)
        update, _ = aggregate.aggregate(each.update, each.weight, **options)
        if not before:
            return update, before
        change = jax.tree.map(jnp.subtract, each.batch_stats, before)
        change, _ = aggregate.aggregate(change, each.weight, **options)
        return update, jax.tree.map(jnp.add, before, change)

    def finish_round(state: ServerState, total: _Total, each: _Each, ids):
        params, rest = split_params(state.variables)
        before = rest.get("batch_stats", {})
        update, stats = combine(before, total, each)
        gradient = jax.tree.map(lambda x: sign * x, update)
        updates, opt_state = server_optimizer.update(gradient, state.opt_state, params)
        variables = {**rest, "params": optax.apply_updates(params, updates)}
        if before:
            variables["batch_stats"] = stats
        local = state.local
        if local is not None:
            local = _keep_local(local, ids, each)
            variables["batch_stats"] = aggregate.weighted_mean(*local)
        new = ServerState(variables, opt_state, state.round_number + 1, local)
        changed = total.weight > 0
        new = jax.tree.map(lambda a, b: jnp.where(changed, a, b), new, state)
        seen = jnp.maximum(total.seen, 1.0)
        info = RoundInfo(
            loss=total.loss_sum / seen,
            accuracy=total.correct / seen,
            examples=total.weight,
            participants=jnp.sum(each.weight > 0).astype(jnp.int32),
            rejected=~each.accepted,
            clients=ids,
            updates=each.update if keep_updates else None,
        )
        return new, info

    apply = jax.jit(finish_round, donate_argnums=(0,) if donate else ())
    restate = jax.jit(_restate)

    def init(variables) -> ServerState:
        params, _ = split_params(variables)
        opt_state = server_optimizer.init(params)
        local = None
        if bn == "local" and variables.get("batch_stats"):
            stats = jax.tree.map(
                lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)),
                variables["batch_stats"],
            )
            local = LocalStatistics(stats, jnp.zeros(num_clients, jnp.float32))
        return ServerState(dict(variables), opt_state, jnp.zeros((), jnp.int32), local)

    def round_(state: ServerState, cohort, key) -> tuple[ServerState, RoundInfo]:
        train, moments = runs_for(cohort.rows.shape[1])
        if spread is not None:
            state = on_mesh(state, spread)
        factor = 1.0 if schedule is None else schedule(state.round_number)
        context = TrainContext(
            state.variables,
            key,
            jnp.asarray(factor, jnp.float32),
            None if state.local is None else state.local.batch_stats,
        )
        clients = clients_of(cohort)
        shared = Shared(cohort.images, cohort.labels, context)
        total, each = train(shared, clients)
        state, info = apply(state, total, each, cohort.clients)
        if moments is not None and state.variables.get("batch_stats"):
            context = context._replace(variables=state.variables)
            sums, _ = moments(shared._replace(context=context), clients)
            state = restate(state, *sums)
        return state, info

    return FedAlgorithm(init, round_)


def _at_the_door(
    program: ClientProgram, *, stacked, keep_updates, keep_stats, max_norm, fault
) -> ClientProgram:
    """Check each update as it arrives; weigh it, or turn it away with weight zero."""

    def finish(shared, client, carry):
        _, sent = program.finish(shared, client, carry)
        if fault is not None:
            key = jax.random.fold_in(shared.context.key, client.client_id)
            sent = fault(sent, client.client_id, jax.random.fold_in(key, 7))
        accepted = _acceptable(sent, client, max_norm)
        weight = jnp.where(accepted, sent.num_examples, 0.0)
        clean = jax.tree.map(lambda x: jnp.where(accepted, x, jnp.zeros_like(x)), sent)
        weighted = lambda tree: jax.tree.map(lambda x: weight * x, tree)  # noqa: E731
        total = _Total(
            () if stacked else weighted(clean.update),
            () if stacked else weighted(clean.batch_stats),
            weight,
            clean.loss_sum,
            clean.correct,
            clean.seen,
        )
        each = _Each(
            weight,
            accepted,
            clean.update if stacked or keep_updates else (),
            clean.batch_stats if keep_stats else (),
        )
        return total, each

    return program._replace(finish=finish)


def _acceptable(sent: ClientUpdate, client: Client, max_norm):
    """Finite everywhere, norm within bounds, no more examples than the client has."""
    stacked = jax.tree.map(lambda x: x[None], (sent.update, sent.batch_stats))
    finite = aggregate.admit(stacked)[0]
    small = aggregate.admit(stacked[0], max_norm=max_norm)[0]
    honest = (sent.num_examples >= 0) & (sent.num_examples <= client.length)
    return finite & small & honest & jnp.isfinite(sent.loss_sum)


def _fuse(model, program, take, preprocess, label_smoothing) -> ClientProgram:
    """FedSGD over a cohort as one gradient of the summed loss.

    `vmap` over clients with shared parameters folds their images into one batch for
    every convolution, forward and backward, while BatchNorm reduces over each client's
    own images.
    """
    loss_fn = make_loss(model, label_smoothing=label_smoothing)

    def batch_of(shared, client):
        key = jax.random.fold_in(shared.context.key, client.client_id)
        order = shuffled_positions(key, client.length, client.row.shape[0])[:take]
        key = jax.random.fold_in(key, 1)
        return gather_batch(shared, client, order, preprocess, key)

    def batched(shared, clients):
        params, state = split_params(shared.context.variables)
        batch = jax.vmap(lambda c: batch_of(shared, c))(clients)
        examples = jnp.sum(batch.mask, axis=1)

        def cohort_loss(params):
            means, aux = jax.vmap(lambda b: loss_fn(params, state, b))(batch)
            return jnp.sum(means * examples), aux

        grads, (losses, hits, states) = jax.grad(cohort_loss, has_aux=True)(params)
        accepted = jnp.isfinite(losses)
        stats = jax.tree.map(
            lambda x: jnp.tensordot(examples, x, axes=1), states.get("batch_stats", {})
        )
        total = _Total(
            grads,
            stats,
            jnp.sum(examples),
            jnp.sum(losses),
            jnp.sum(hits),
            jnp.sum(examples),
        )
        # One client's bad loss spoils the shared gradient: then the round is void. A
        # gradient that is bad although all losses are good cannot be laid at anybody's
        # door, so everybody is turned away.
        finite = aggregate.admit(jax.tree.map(lambda x: x[None], (grads, stats)))[0]
        accepted = accepted & (finite | ~jnp.all(accepted))
        good = jnp.all(accepted)
        total = jax.tree.map(lambda x: jnp.where(good, x, jnp.zeros_like(x)), total)
        return total, _Each(examples * good, accepted, (), ())

    return program._replace(batched=batched)


def _keep_local(local: LocalStatistics, ids, each: _Each) -> LocalStatistics:
    """Write what the clients that took part send into their rows."""
    took_part = each.weight > 0

    def write(all_rows, rows):
        shape = (-1,) + (1,) * (rows.ndim - 1)
        kept = jnp.where(took_part.reshape(shape), rows, all_rows[ids])
        return all_rows.at[ids].set(kept)

    sent = LocalStatistics(each.batch_stats, each.weight)
    return jax.tree.map(write, local, sent)


def _restate(state: ServerState, total, examples) -> ServerState:
    stats = statistics_from_moments(total, examples)
    old = state.variables["batch_stats"]
    stats = jax.tree.map(lambda a, b: jnp.where(examples > 0, a, b), stats, old)
    return state._replace(variables={**state.variables, "batch_stats": stats})
