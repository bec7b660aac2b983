"""NoT: forgetting by negating the weights of the first layers.

Khalil, Brunswic, Lamghari, Li, Beitollahi and Chen, "NoT: Federated Unlearning via
Weight Negation" (CVPR 2025): w_l <- -w_l for the chosen layers l, by default the first,
then fine-tuning on what remains. It moves the parameters far from an optimum and keeps
them easy to optimise again. No forgotten image is needed.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from fuprune.options import option, options
from fuprune.surgery import layer_names
from fuprune.surgery.arrays import names
from fuprune.surgery.cutting import layer_name
from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS, method


@options
class Options:
    """Options of not."""

    section: ClassVar[str] = "negate"  # `not` cannot be an attribute

    layers: int = option(
        1, "convolutions whose weights change sign, from the first", ge=1, le=10_000
    )


@method("not", serves=ALL_KINDS, options=Options)
def negate(job: Job, o: Options) -> UnlearnResult:
    """Change the sign of the first layers' weights, then fine-tune.

    The stage `negated` is the model before the fine-tuning.
    """
    example = jnp.zeros((2, *job.data.images.shape[1:]))
    chosen = layer_names(job.model, job.variables, example=example)[: o.layers]

    def turned(path, leaf):
        mine = layer_name(("params", *names(path))) in chosen
        return -leaf if mine else leaf

    params = jax.tree_util.tree_map_with_path(turned, job.variables["params"])
    notes = {"negated_layers": list(chosen)}
    return job.recover(
        {**job.variables, "params": params}, stage="negated", notes=notes
    )
