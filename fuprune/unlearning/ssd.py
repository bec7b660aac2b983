"""SSD: dampening the weights that matter more to the forgotten data than to all data.

Foster, Schoepf and Brintrup, "Fast Machine Unlearning Without Retraining Through
Selective Synaptic Dampening" (AAAI 2024). With the diagonals I_f and I of the Fisher
information on the forgotten and on all data,

    w <- min(lambda I / I_f, 1) w    where    I_f > alpha I.

The sums are those of `fisher`, with the expectation over the model's own labels where
the paper takes the true ones. Clients upload two of them and train nothing.
"""

import jax
import jax.numpy as jnp

from fuprune.options import option, options
from fuprune.unlearning.fisher import fisher_sum, mean_over_clients
from fuprune.unlearning.job import Job
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.protocol import UnlearnResult, tree_bytes


@options
class Options:
    """Options of ssd."""

    alpha: float = option(
        10.0,
        "a weight is dampened if it matters this many times more to the forgotten",
        gt=0,
        allow_inf_nan=False,
    )
    dampening: float = option(
        1.0, "lambda: strength of the dampening", gt=0, allow_inf_nan=False
    )
    chunk: int = option(
        1, "images whose gradients are in memory at once", ge=1, le=65_536
    )


@method("ssd", serves=ALL_KINDS, options=Options, reads_forgotten=True)
def ssd(job: Job, o: Options) -> UnlearnResult:
    """Dampen what the forgotten images need most, then fine-tune.

    The stage `dampened` is the model before the fine-tuning.
    """
    what = "the Fisher information"
    forgotten, n_forgotten = mean_over_clients(
        job, fisher_sum, what, job.forgotten, o.chunk
    )
    remaining, n_remaining = mean_over_clients(
        job, fisher_sum, what, job.remaining, o.chunk
    )
    share = n_forgotten / (n_forgotten + n_remaining)
    every = jax.tree.map(lambda f, r: share * f + (1 - share) * r, forgotten, remaining)
    old = jax.device_get(job.variables["params"])
    params = jax.tree.map(
        lambda w, f, i: dampened(w, f, i, o.alpha, o.dampening), old, forgotten, every
    )
    chosen = jax.tree.map(lambda f, i: (f > o.alpha * i).sum(), forgotten, every)
    weights = sum(x.size for x in jax.tree.leaves(old))
    notes = {
        "dampened_share": float(sum(jax.tree.leaves(chosen)) / weights),
        "images": n_forgotten + n_remaining,
    }
    return job.recover(
        {**job.variables, "params": params},
        stage="dampened",
        notes=notes,
        upload_bytes=2 * tree_bytes(old),
    )


def dampened(weights, forgotten, every, alpha: float, dampening: float):
    """The weights where `forgotten` <= alpha `every`, and less of them elsewhere."""
    factor = dampening * every / jnp.maximum(forgotten, jnp.finfo(jnp.float32).tiny)
    return jnp.where(
        forgotten > alpha * every, jnp.minimum(factor, 1.0) * weights, weights
    )
