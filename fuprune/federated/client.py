"""What one client computes in a round, as pure client programs.

`local_sgd` is FedAvg's client (local steps of mini-batch SGD), `local_gradient` is
FedSGD's (one gradient at the server's parameters). Padding never enters a loss, a
gradient or a statistic.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fuprune.data.preprocess import Preprocess
from fuprune.federated.local_work import (
    at_most,
    count_batches,
    count_steps,
)
from fuprune.federated.objective import Objective
from fuprune.federated.program import Client, ClientProgram, Shared, Task


class TrainContext(NamedTuple):
    """What the server sends to every client in a training round."""

    variables: Any  # the server's {"params", "batch_stats", ...}
    key: jax.Array  # the round's key; a client folds its own id in
    scale: Any = 1.0  # [] factor on the client's learning rate in this round
    client_stats: Any = None  # or each client's own batch_stats, leaves [K, ...]
    objective: Any = ()  # the arrays of the objective, e.g. a teacher's variables


class ClientUpdate(NamedTuple):
    """What one client sends back; or, weighted by examples, the sum over a cohort."""

    update: Any  # params-shaped: parameter change (FedAvg) or gradient (FedSGD)
    batch_stats: Any  # the client's BatchNorm running statistics
    num_examples: jax.Array  # [] float32
    loss_sum: jax.Array  # [] summed over the examples seen
    correct: jax.Array  # [] float32
    seen: jax.Array  # [] float32, examples seen (epochs count)


class Batch(NamedTuple):
    """A padded mini-batch of one client."""

    images: jax.Array  # [B, H, W, C], preprocessed
    labels: jax.Array  # [B]
    mask: jax.Array  # [B] float32, 1 where real
    key: Any = None  # for dropout; None for networks without randomness


def shuffled_positions(key, length, size: int):
    """A random order of 0..length-1, then the padding; [size] int32."""
    noise = jax.random.uniform(key, (size,))
    noise = jnp.where(jnp.arange(size) < length, noise, 2.0)
    return jnp.argsort(noise).astype(jnp.int32)


def own_key(shared: Shared, client: Client) -> jax.Array:
    """The client's key in this round, whoever else is in the cohort."""
    return jax.random.fold_in(shared.context.key, client.client_id)


def gather_batch(
    shared: Shared, client: Client, positions, preprocess: Preprocess, key
) -> Batch:
    """The batch at `positions` [B] of the client's row; past its length, padding.

    Padding goes round the row again, from its first image: a network whose BatchNorm
    takes no mask then normalises by full batches of this client's images.
    """
    mask = positions < client.length
    rows = client.row[positions % jnp.maximum(client.length, 1)]
    # The preprocessing splits or folds the key as it likes, with small numbers.
    dropout_key = None if key is None else jax.random.fold_in(key, 2**31 - 1)
    return Batch(
        preprocess(key, shared.images[rows]),
        shared.labels[rows],
        mask.astype(jnp.float32),
        dropout_key,
    )


def make_loss(model, objective: Objective):
    """`loss(params, state, batch, context) -> (mean, (sum, correct, state))`.

    `context` are the objective's arrays.
    """

    def loss(params, state, batch, context):
        logits, updated = apply_in_training(model, {"params": params, **state}, batch)
        losses = objective.losses(context, logits, batch)
        # Selected, not multiplied: a loss of padding may be anything.
        total = jnp.sum(jnp.where(batch.mask > 0, losses, 0.0))
        correct = jnp.sum((jnp.argmax(logits, -1) == batch.labels) * batch.mask)
        mean = total / jnp.maximum(jnp.sum(batch.mask), 1.0)
        return mean, (total, correct, {**state, **updated})

    return loss


def apply_in_training(model, variables, batch: Batch):
    """Logits [B, U], and the updated `batch_stats`."""
    return model.apply(
        variables,
        batch.images,
        train=True,
        mask=batch.mask,
        mutable=["batch_stats"],
        rngs=None if batch.key is None else {"dropout": batch.key},
    )


def split_params(variables):
    """`(params, everything else)`."""
    return variables["params"], {k: v for k, v in variables.items() if k != "params"}


def local_sgd(
    model,
    optimizer: optax.GradientTransformation,
    *,
    local_epochs: int,
    batch_size: int,
    max_length: int,
    preprocess: Preprocess,
    objective: Objective,
    local_steps: int = 0,
) -> ClientProgram:
    """FedAvg's client: mini-batch SGD over `local_epochs` shuffled passes.

    It stops after `local_steps` steps if that is sooner (0: never); `num_examples` is
    the number of its images in any case. `finish` gives `((), ClientUpdate)` with the
    parameter change.
    """
    most = count_steps(max_length, batch_size=batch_size, local_epochs=local_epochs)
    # If nobody comes to the bound, the program is that of no bound, also to the
    # compiler, which may round differently in another one.
    bound = local_steps if local_steps < most else 0
    padded = -(-max_length // batch_size) * batch_size
    grad = jax.value_and_grad(make_loss(model, objective), has_aux=True)

    def init(shared, client):
        orders = jax.vmap(lambda k: shuffled_positions(k, client.length, padded))(
            jax.random.split(own_key(shared, client), local_epochs)
        )
        params, state = _starting_point(shared, client)
        zero = jnp.zeros(())
        return params, state, optimizer.init(params), orders, (zero, zero, zero)

    def step(shared, client, carry, i):
        params, state, opt_state, orders, (loss_sum, correct, seen) = carry
        batches = count_batches(client.length, batch_size)
        epoch, j = i // batches, i % batches
        places = j * batch_size + jnp.arange(batch_size)
        # A last batch is filled up from the start of the same shuffled order; adding
        # the length marks those as padding.
        length = jnp.maximum(client.length, 1)
        positions = orders[epoch, places % length] + length * (places >= length)
        # `init` split the same key into `local_epochs`: the numbers of steps begin
        # beyond.
        key = jax.random.fold_in(own_key(shared, client), local_epochs + 1 + i)
        batch = gather_batch(shared, client, positions, preprocess, key)
        (_, (loss, hits, state)), grads = grad(
            params, state, batch, shared.context.objective
        )
        updates, opt_state = optimizer.update(grads, opt_state, params)
        updates = jax.tree.map(lambda u: shared.context.scale * u, updates)
        params = optax.apply_updates(params, updates)
        sums = (loss_sum + loss, correct + hits, seen + jnp.sum(batch.mask))
        return params, state, opt_state, orders, sums

    def finish(shared, client, carry):
        params, state, _, _, (loss_sum, correct, seen) = carry
        before = shared.context.variables["params"]
        change = jax.tree.map(jnp.subtract, params, before)
        stats = state.get("batch_stats", {})
        examples = client.length.astype(jnp.float32)
        return (), ClientUpdate(change, stats, examples, loss_sum, correct, seen)

    def num_steps(client):
        return count_steps(
            client.length,
            batch_size=batch_size,
            local_epochs=local_epochs,
            local_steps=bound,
        )

    arguments = dict(local_epochs=local_epochs, batch_size=batch_size)
    if local_steps:
        arguments["local_steps"] = local_steps
    task = Task("local_sgd", model, arguments)
    return ClientProgram(num_steps, init, step, finish, task=task)


def local_gradient(
    model,
    *,
    batch_size: int | None,
    microbatch: int,
    max_length: int,
    preprocess: Preprocess,
    objective: Objective,
) -> ClientProgram:
    """FedSGD's client: the gradient of its mean loss at the server's parameters.

    Over `batch_size` random examples of its own (all of them when None), accumulated in
    pieces of `microbatch`; BatchNorm sees one piece at a time and its running
    statistics are averaged over the pieces. `finish` gives `((), ClientUpdate)`.
    """
    take = max_length if batch_size is None else min(batch_size, max_length)
    piece = min(microbatch, take)
    padded = -(-max_length // piece) * piece + piece
    loss_fn = make_loss(model, objective)

    def summed_loss(params, state, batch, context):
        mean, aux = loss_fn(params, state, batch, context)
        # Sums add up over pieces of different sizes, which means do not.
        return mean * jnp.sum(batch.mask), aux

    grad = jax.value_and_grad(summed_loss, has_aux=True)

    def num_steps(client):
        return count_batches(at_most(client.length, take), piece)

    def init(shared, client):
        order = shuffled_positions(own_key(shared, client), client.length, padded)
        params, state = _starting_point(shared, client)
        zeros = jax.tree.map(jnp.zeros_like, params)
        stats = jax.tree.map(jnp.zeros_like, state.get("batch_stats", {}))
        zero = jnp.zeros(())
        return zeros, stats, order, (zero, zero, zero)

    def step(shared, client, carry, i):
        grads, stats, order, (loss_sum, correct, seen) = carry
        params, state = _starting_point(shared, client)
        places = i * piece + jnp.arange(piece)
        # Places past the first `take` of the order are padding, which goes round again.
        drawn = jnp.maximum(at_most(client.length, take), 1)
        positions = order[places % drawn] + client.length * (places >= drawn)
        key = jax.random.fold_in(own_key(shared, client), 1 + i)
        batch = gather_batch(shared, client, positions, preprocess, key)
        (_, (loss, hits, state)), g = grad(
            params, state, batch, shared.context.objective
        )
        weight = jnp.sum(batch.mask)
        stats = jax.tree.map(
            lambda a, b: a + weight * b, stats, state.get("batch_stats", {})
        )
        sums = (loss_sum + loss, correct + hits, seen + weight)
        return jax.tree.map(jnp.add, grads, g), stats, order, sums

    def finish(shared, client, carry):
        grads, stats, _, (loss_sum, correct, seen) = carry
        some = jnp.maximum(seen, 1.0)
        grads = jax.tree.map(lambda g: g / some, grads)
        before = _starting_point(shared, client)[1].get("batch_stats", {})
        stats = jax.tree.map(
            lambda s, b: jnp.where(seen > 0, s / some, b), stats, before
        )
        return (), ClientUpdate(grads, stats, seen, loss_sum, correct, seen)

    arguments = dict(batch_size=batch_size, microbatch=microbatch)
    task = Task("local_gradient", model, arguments)
    return ClientProgram(num_steps, init, step, finish, task=task)


def _starting_point(shared: Shared, client: Client):
    """`(params, everything else)` at the start, with the client's own statistics."""
    params, state = split_params(shared.context.variables)
    stats = shared.context.client_stats
    if stats is not None:
        own = jax.tree.map(lambda x: x[client.client_id], stats)
        state = {**state, "batch_stats": own}
    return params, state
