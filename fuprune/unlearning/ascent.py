"""Forgetting by gradient ascent on the data, the simplest of the gradient family.

Clients that hold what is to be forgotten train on it with the sign of the loss turned
round, and the server averages them as in FedAvg. An unbounded loss would end in a
broken model, so an example stops counting once its loss has reached a cap, and the
rounds stop once the mean has.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.errors import InputError
from fuprune.federated.client import gather_batch, shuffled_positions, split_params
from fuprune.federated.local_work import count_batches
from fuprune.federated.program import ClientProgram, Task
from fuprune.unlearning.client_sums import loss_sum, make_client_sum, on_server
from fuprune.unlearning.job import Job, unlearn_fn
from fuprune.unlearning.protocol import UnlearnError, UnlearnResult, tree_bytes
from fuprune.unlearning.reading import READ_ALL, Reading


class Ascent(NamedTuple):
    """How far and how fast the loss is raised; the config's section `ascent`, and more.

    An example with a loss of `loss_cap` adds no gradient; the rounds end when the mean
    loss on the forgotten examples is this high.
    """

    rounds: int = 10  # at most
    learning_rate: float = 0.1  # of the clients' steps
    loss_cap: float = 5.0
    local_epochs: int = 1  # of a client over its forgotten examples in a round
    batch_size: int = 32  # of those passes
    clip_norm: float = 1.0  # longest gradient of a batch, in L2


CAPPED = Ascent()


@unlearn_fn
def ascent(
    job: Job, *, climb: Ascent = CAPPED, reading: Reading = READ_ALL
) -> UnlearnResult:
    """Raise the loss on the forgotten examples, then fine-tune on the others.

    BatchNorm uses its running statistics, which stay as they are: the forgotten images
    must not leave a trace in them. The stage `ascended` is the model before the
    fine-tuning.
    """
    if not climb.loss_cap > 0:
        raise InputError(f"loss_cap is {climb.loss_cap}, but must be positive.")
    model, forgotten = job.model, reading.forgotten(job.data, job.request)
    run_loss = make_client_sum(model, loss_sum, chunk=climb.batch_size, reading=reading)
    program = local_ascent(
        model, climb, max_length=job.data.max_length, preprocess=reading.preprocess
    )
    run_round = reading.make_run(model, program)
    params, rest = split_params(on_server(job.variables))

    def mean_loss(params) -> float:
        total, examples = run_loss({**rest, "params": params}, forgotten)
        return float(total) / examples

    losses: list[float] = []
    done = 0
    if np.any(jax.device_get(forgotten.lengths)):
        losses.append(mean_loss(params))
        while done < climb.rounds and losses[-1] < climb.loss_cap:
            context = (params, rest, jax.random.fold_in(job.own_key, done))
            uploads, _ = run_round(context, forgotten)
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
    notes = {
        "ascent_rounds": done,
        "forgotten_loss": losses,
        "reached_cap": bool(losses) and losses[-1] >= climb.loss_cap,
    }
    upload_bytes = tree_bytes(params) * done
    return job.recover(
        ascended, stage="ascended", notes=notes, upload_bytes=upload_bytes
    )


def local_ascent(model, climb: Ascent, *, max_length, preprocess) -> ClientProgram:
    """A client's round; `finish` gives `((n_k * parameter change, n_k), ())`.

    `max_length` is that of the largest client; `preprocess` does not augment.
    """
    batch_size, local_epochs = climb.batch_size, climb.local_epochs
    # Whole batches: a slice past the end would be moved back and repeat examples.
    padded = -(-max_length // batch_size) * batch_size

    def capped_loss(params, state, batch):
        logits = model.apply({"params": params, **state}, batch.images, train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), batch.labels
        )
        # At the cap the minimum is constant, so the gradient of such an example is
        # zero.
        capped = jnp.where(batch.mask > 0, jnp.minimum(losses, climb.loss_cap), 0.0)
        return jnp.sum(capped) / jnp.maximum(jnp.sum(batch.mask), 1.0)

    def batches(client):
        return count_batches(client.length, batch_size)

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
        # The key is the same in every step: nothing is drawn without augmentation.
        batch = gather_batch(shared, client, positions, preprocess, key)
        gradient = jax.grad(capped_loss)(params, state, batch)
        norm = optax.tree.norm(gradient)
        shrink = jnp.minimum(1.0, climb.clip_norm / jnp.maximum(norm, 1e-12))
        scale = climb.learning_rate * shrink
        # Plus: uphill.
        return jax.tree.map(lambda w, g: w + scale * g, params, gradient), orders

    def finish(shared, client, carry):
        before, _, _ = shared.context
        weight = client.length.astype(jnp.float32)
        # Weighted here, so that the server's sum divided by the sum of weights is
        # FedAvg.
        change = jax.tree.map(lambda a, b: weight * (a - b), carry[0], before)
        return (change, weight), ()

    def num_steps(client):
        return local_epochs * batches(client)

    task = Task("ascent", model, climb._asdict())
    return ClientProgram(num_steps, init, step, finish, task=task)
