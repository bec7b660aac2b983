"""Forgetting by gradient ascent on the class, the simplest of the gradient family.

Clients that hold the class train on it with the sign of the loss turned round, and the
server averages them as in FedAvg. An unbounded loss would end in a broken model, so an
example stops counting once its loss has reached a cap, and the rounds stop once the
mean has.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.classes import check_classes
from fuprune.data.federated import FederatedDataset, keep_classes, whole_cohort
from fuprune.data.preprocess import to_float
from fuprune.errors import InputError
from fuprune.federated.client import (
    Preprocess,
    gather_batch,
    shuffled_positions,
    split_params,
)
from fuprune.federated.cohort import (
    ClientProgram,
    Shared,
    clients_of,
    for_each_client,
)
from fuprune.unlearning.client_sums import (
    client_sum_options,
    make_client_sum,
    make_loss_sum,
    on_server,
)
from fuprune.unlearning.head import head_classes
from fuprune.unlearning.participants import participating
from fuprune.unlearning.protocol import (
    FineTune,
    Stage,
    UnlearnError,
    UnlearnResult,
    Variables,
    tree_bytes,
)
from fuprune.unlearning.recovery import recover


def ascent(
    model,
    variables: Variables,
    data: FederatedDataset,
    classes: tuple[int, ...],
    *,
    key: jax.Array,
    fine_tune: FineTune,
    rounds: int = 10,
    learning_rate: float = 0.1,
    loss_cap: float = 5.0,
    local_epochs: int = 1,
    batch_size: int = 32,
    clip_norm: float = 1.0,
    participants: Sequence[int] | None = None,
    preprocess: Preprocess = to_float,
    backend: str = "auto",
    mesh=None,
    head: str = "head",
) -> UnlearnResult:
    """Raise the loss on the forgotten classes, then fine-tune on the others.

    BatchNorm uses its running statistics, which stay as they are: the forgotten images
    must not leave a trace in them.

    Args:
      model: any Flax model.
      variables: its trained variables.
      data: every client's data. The forgotten examples are read: they are what the
        ascent is on.
      classes: to forget.
      key: of the order of batches and the fine-tuning.
      fine_tune: see `protocol.FineTune`.
      rounds: of ascent, at most.
      learning_rate: of the clients' steps.
      loss_cap: an example with this loss adds no gradient; the rounds end when the
        mean loss on the forgotten examples is this high.
      local_epochs: passes of a client over its forgotten examples in a round.
      batch_size: of those passes.
      clip_norm: longest gradient of a batch, in L2.
      participants: ids of the clients that are read; None for all.
      preprocess: as in training, without augmentation.
      backend: how clients are iterated.
      mesh: devices for `shard_map`; all by default.
      head: name of the last layer.

    Returns:
      The fine-tuned model; the stage `ascended` is the one before.
    """
    if not loss_cap > 0:
        raise InputError(f"loss_cap is {loss_cap}, but must be positive.")
    classes = check_classes(classes, head_classes(variables, head))
    forgotten = keep_classes(participating(data, participants), classes)
    options = client_sum_options(
        model, preprocess=preprocess, backend=backend, mesh=mesh
    )
    loss = make_loss_sum(model)
    run_loss = make_client_sum(
        lambda w, batch: loss(*split_params(w), batch), chunk=batch_size, **options
    )
    program = _local_ascent(
        model,
        learning_rate=learning_rate,
        loss_cap=loss_cap,
        local_epochs=local_epochs,
        batch_size=batch_size,
        clip_norm=clip_norm,
        max_length=data.max_length,
        preprocess=options.pop("preprocess"),
    )
    run_round = for_each_client(program, **options)
    cohort = whole_cohort(forgotten)
    params, rest = split_params(on_server(variables))

    def mean_loss(params) -> float:
        total, examples = run_loss({**rest, "params": params}, forgotten)
        return float(total) / examples

    losses: list[float] = []
    done = 0
    if np.any(jax.device_get(forgotten.lengths)):
        losses.append(mean_loss(params))
        round_key = jax.random.split(key, 4)[0]
        while done < rounds and losses[-1] < loss_cap:
            context = (params, rest, jax.random.fold_in(round_key, done))
            shared = Shared(cohort.images, cohort.labels, context)
            uploads, _ = run_round(shared, clients_of(cohort))
            change, weight = jax.device_get(uploads)
            params = jax.tree.map(lambda w, c, n=weight: w + c / n, params, change)
            losses.append(mean_loss(params))
            done += 1
            if not np.isfinite(losses[-1]):
                raise UnlearnError(
                    f"gradient ascent diverged in round {done}: the loss is "
                    f"{losses[-1]}; lower ascent.learning_rate."
                )
    ascended = {**rest, "params": params}
    fit = recover(model, ascended, data, classes, key=key, fine_tune=fine_tune)
    notes = {
        "ascent_rounds": done,
        "forgotten_loss": losses,
        "reached_cap": bool(losses) and losses[-1] >= loss_cap,
    }
    stages = (Stage("ascended", model, ascended),)
    upload_bytes = tree_bytes(params) * done
    return UnlearnResult(model, fit.state.variables, stages, fit, upload_bytes, notes)


def _local_ascent(
    model,
    *,
    learning_rate,
    loss_cap,
    local_epochs,
    batch_size,
    clip_norm,
    max_length,
    preprocess,
) -> ClientProgram:
    """`finish` gives `((n_k * parameter change, n_k), ())`."""
    padded = -(-max_length // batch_size) * batch_size

    def capped_loss(params, state, batch):
        logits = model.apply({"params": params, **state}, batch.images, train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), batch.labels
        )
        capped = jnp.where(batch.mask > 0, jnp.minimum(losses, loss_cap), 0.0)
        return jnp.sum(capped) / jnp.maximum(jnp.sum(batch.mask), 1.0)

    def batches(client):
        return (client.length + batch_size - 1) // batch_size

    def init(shared, client):
        params, _, key = shared.context
        key = jax.random.fold_in(key, client.client_id)
        orders = jax.vmap(lambda k: shuffled_positions(k, client.length, padded))(
            jax.random.split(key, local_epochs)
        )
        return params, orders

    def step(shared, client, carry, i):
        params, orders = carry
        _, state, key = shared.context
        epoch, j = i // batches(client), i % batches(client)
        positions = jax.lax.dynamic_slice(
            orders, (epoch, j * batch_size), (1, batch_size)
        )[0]
        batch = gather_batch(shared, client, positions, preprocess, key)
        gradient = jax.grad(capped_loss)(params, state, batch)
        norm = optax.tree.norm(gradient)
        scale = learning_rate * jnp.minimum(1.0, clip_norm / jnp.maximum(norm, 1e-12))
        return jax.tree.map(lambda w, g: w + scale * g, params, gradient), orders

    def finish(shared, client, carry):
        before, _, _ = shared.context
        weight = client.length.astype(jnp.float32)
        change = jax.tree.map(lambda a, b: weight * (a - b), carry[0], before)
        return (change, weight), ()

    def num_steps(client):
        return local_epochs * batches(client)

    return ClientProgram(num_steps, init, step, finish)
