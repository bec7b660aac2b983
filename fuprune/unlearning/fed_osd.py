"""FedOSD: steps that raise the leaving client's loss and leave the others' alone.

Pan, Wang, Li, Zheng, Wang, Tang and Zhao, "Federated Unlearning with Gradient Descent
and Conflict Mitigation" (AAAI 2025). The leaving client minimises the unlearning
cross-entropy -log(1 - p_y / 2), which is bounded below where the negative cross-entropy
is not. Its gradient c is projected to be orthogonal to the gradients A [n, P] of all
who stay, at its own length:

    d = c - A^T (A A^T)^+ A c,    w <- w - rate |c| d / |d|.

The paper's second phase trains on with updates that are orthogonal to the way back;
here it is the fine-tuning without the client.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fuprune.federated.client import split_params
from fuprune.options import option, options
from fuprune.unlearning.client_sums import (
    SIMULATED,
    gradient_of,
    gradient_sum,
    on_server,
    sum_program,
)
from fuprune.unlearning.job import Job, UnlearnResult, tree_bytes
from fuprune.unlearning.method import method


@options
class Options:
    """Options of fed_osd."""

    rounds: int = option(100, "rounds of unlearning", ge=0, le=100_000)
    learning_rate: float = option(4e-4, "of a round's step", gt=0, le=1000)
    chunk: int = option(64, "images at a time", ge=1, le=65_536)


@method(
    "fed_osd",
    serves=("clients",),
    options=Options,
    reads_forgotten=True,
    simulated=SIMULATED,
)
def fed_osd(job: Job, o: Options) -> UnlearnResult:
    """Unlearn the clients orthogonally to the others, then fine-tune without them.

    Every participant sends a gradient in every round. The stage `unlearned` is the
    model before the fine-tuning.
    """
    variables = on_server(job.variables)
    params, rest = split_params(variables)
    flat, unravel = ravel_pytree(params)
    raise_loss = job.sum(unlearning_gradient_sum, chunk=o.chunk)
    gradient, images = gradient_sum(job.model), 0
    program = sum_program(gradient, chunk=o.chunk, preprocess=job.preprocess)

    def finish(shared, client, carry):
        return (), ravel_pytree(carry)[0] / jnp.maximum(client.length, 1)

    run_others = job.run(program._replace(finish=finish))
    lengths = np.asarray(jax.device_get(job.remaining.lengths))
    here = np.flatnonzero(lengths)
    for _ in range(o.rounds):
        now = {**rest, "params": unravel(flat)}
        total, examples = raise_loss(now, job.forgotten)
        c = np.asarray(ravel_pytree(total)[0], np.float64) / examples
        _, others = run_others(now, job.remaining)
        images += examples + int(lengths.sum())
        step = orthogonal_step(c, np.asarray(jax.device_get(others))[here])
        flat = flat - jnp.asarray(o.learning_rate * step, flat.dtype)
    return job.recover(
        {**rest, "params": unravel(flat)},
        stage="unlearned",
        notes={"rounds": o.rounds, "clients": len(here), "images": images},
        upload_bytes=o.rounds * tree_bytes(params),
    )


def orthogonal_step(c: np.ndarray, others: np.ndarray) -> np.ndarray:
    """C [P] without its part in the span of the rows of `others` [n, P], as long as c.

    Zero if nothing is left of it.
    """
    if not len(others):
        return c
    others = others.astype(np.float64)
    products = np.linalg.pinv(others @ others.T, rcond=1e-10, hermitian=True)
    d = c
    for _ in range(2):  # the second time takes the rounding of the first away
        d = d - others.T @ (products @ (others @ d))
    length, whole = np.linalg.norm(d), np.linalg.norm(c)
    return d * whole / length if length > 1e-6 * whole else np.zeros_like(c)


def unlearning_gradient_sum(model):
    """`(variables, batch) ->` the summed gradient of -log(1 - p_y / 2)."""

    def loss(variables, batch):
        logits = model.apply(variables, batch.images, train=False)
        chances = jax.nn.softmax(logits.astype(jnp.float32))
        own = jnp.take_along_axis(chances, batch.labels[:, None], axis=-1)[:, 0]
        return -jnp.sum(jnp.log1p(-own / 2) * batch.mask)

    return gradient_of(loss)
