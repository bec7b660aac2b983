"""SalUn: random labels, learned by the salient weights only.

Fan, Liu, Zhang, Wong, Wei and Liu, "SalUn: Empowering Machine Unlearning via
Gradient-based Weight Saliency" (ICLR 2024). A weight is salient if the gradient of the
loss on the forgotten images is among the largest in size there; clients train these
images under random other labels, and only salient weights move. The paper trains the
remaining images under the same mask; here the fine-tuning may move every weight.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.options import option, options
from fuprune.unlearning.client_sums import gradient_sum
from fuprune.unlearning.job import Job, UnlearnResult, tree_bytes
from fuprune.unlearning.relabel import relabelled
from fuprune.unlearning.teaching import labels_only, passes, taught, teach


@options
class Options(passes(10, 0.013, 256)):
    """Options of salun."""

    share: float = option(0.5, "share of all weights that are salient", gt=0, le=1)


@taught("salun", options=Options)
def salun(job: Job, o: Options) -> UnlearnResult:
    """Teach the forgotten images random labels by salient weights, then fine-tune.

    The stage `relabelled` is the model before the fine-tuning.
    """
    total, examples = job.sum(gradient_sum, chunk=64)(job.variables, job.forgotten)
    mask = salient(total, o.share)
    masked = optax.stateless(
        lambda updates, _: jax.tree.map(jnp.multiply, updates, mask)
    )
    optimizer = optax.chain(optax.sgd(o.learning_rate, momentum=0.9), masked)
    relabels, notes = relabelled(job, "random")
    data = job.forgotten._replace(labels=relabels.labels)
    result = teach(job, o, labels_only, optimizer, "relabelled", data=data)
    return result._replace(
        notes={**result.notes, **notes, "images": result.notes["images"] + examples},
        upload_bytes=result.upload_bytes + tree_bytes(total),
    )


def salient(gradient: Any, share: float) -> Any:
    """1 for the `share` of all entries that are largest in size, 0 for the others."""
    sizes = jax.tree.map(lambda g: np.abs(np.asarray(g)), gradient)
    every = np.concatenate([x.ravel() for x in jax.tree.leaves(sizes)])
    number = max(round(share * every.size), 1)
    least = np.partition(every, every.size - number)[every.size - number]
    return jax.tree.map(lambda x: (x >= least).astype(np.float32), sizes)
