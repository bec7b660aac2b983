"""SSD: dampening the weights that matter more to the forgotten data than to all data.

Foster, Schoepf and Brintrup, "Fast Machine Unlearning Without Retraining Through
Selective Synaptic Dampening" (AAAI 2024). With the importances I_f and I of a weight on
the forgotten and on all data,

    w <- min(lambda I / I_f, 1) w    where    I_f > alpha I.

An importance is the mean over batches of the squared gradient of a batch's mean loss,
as in the released code: batches of one class pull together where mixed ones cancel.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fuprune.data.federated import FederatedDataset
from fuprune.options import option, options
from fuprune.unlearning.client_sums import SIMULATED, BatchSum, gradient_sum
from fuprune.unlearning.job import Job, UnlearnResult, tree_bytes
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.request import participating


@options
class Options:
    """Options of ssd."""

    alpha: float = option(10.0, "dampened if it matters this many times more", gt=0)
    dampening: float = option(1.0, "lambda: strength of the dampening", gt=0)
    batch_size: int = option(64, "images of a batch", ge=1, le=65_536)


@method(
    "ssd", serves=ALL_KINDS, options=Options, reads_forgotten=True, simulated=SIMULATED
)
def ssd(job: Job, o: Options) -> UnlearnResult:
    """Dampen what the forgotten images need most, then fine-tune.

    The stage `dampened` is the model before the fine-tuning.
    """
    run = job.sum(importance_sum, chunk=o.batch_size)

    def importance(data: FederatedDataset) -> tuple[Any, int]:
        (squares, batches), examples = run(job.variables, data)
        return jax.tree.map(lambda x: x / batches, squares), examples

    forgotten, n_forgotten = importance(job.forgotten)
    every, n_every = importance(participating(job.data, job.participants))
    old = jax.device_get(job.variables["params"])
    params = jax.tree.map(
        lambda w, f, i: dampened(w, f, i, o.alpha, o.dampening), old, forgotten, every
    )
    return job.recover(
        {**job.variables, "params": params},
        stage="dampened",
        notes={"images": n_forgotten + n_every},
        upload_bytes=2 * tree_bytes(old),
    )


def importance_sum(model) -> BatchSum:
    """`(variables, batch) ->` the squared mean gradient, and 1 if there is an image."""
    gradient = gradient_sum(model)

    def squares(variables, batch):
        number = jnp.sum(batch.mask)
        squared = jax.tree.map(
            lambda g: (g / jnp.maximum(number, 1)) ** 2, gradient(variables, batch)
        )
        return squared, jnp.minimum(number, 1)

    return squares


def dampened(weights, forgotten, every, alpha: float, dampening: float):
    """The weights where `forgotten` <= alpha `every`, and less of them elsewhere."""
    factor = dampening * every / jnp.maximum(forgotten, jnp.finfo(jnp.float32).tiny)
    return jnp.where(
        forgotten > alpha * every, jnp.minimum(factor, 1.0) * weights, weights
    )
