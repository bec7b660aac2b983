"""Forgetting by growing the deepest layers anew.

What a network knows of one class sits mostly in its deep layers; the shallow ones hold
edges and textures that any class would teach. It is of the family of EU-k (Goel et al.,
"Towards Adversarial Evaluations for Inexact Machine Unlearning", arXiv 2201.06640,
2022): re-initialise the last k layers and train them again without the class. EU-k
freezes the layers before; here they are fine-tuned, too.
"""

import jax
import jax.numpy as jnp

from fuprune.models.fresh import init_variables
from fuprune.options import option, options
from fuprune.surgery import layer_names
from fuprune.surgery.trace import names
from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS, method


@options
class Options:
    """Options of regrow."""

    share: float = option(
        1 / 3, "share of the convolutions that start afresh, from the last", ge=0, le=1
    )
    shrink: float = option(
        1.0, "share of the old weights in the other layers; 1 keeps them", ge=0, le=1
    )


@method("regrow", serves=ALL_KINDS, options=Options)
def regrow(job: Job, o: Options) -> UnlearnResult:
    """Give the deepest layers fresh weights, then fine-tune on what remains.

    Every dense layer starts afresh, too. The weights of the layers that stay become
    `shrink` times the old ones plus `1 - shrink` times fresh ones. The stage `regrown`
    is the model before the fine-tuning.
    """
    images = jnp.zeros((2, *job.data.images.shape[1:]))
    fresh = init_variables(job.model, job.own_key, images[:1])
    layers = layer_names(job.model, job.variables, example=images)
    # Layers are in forward order, so the deepest ones are at the end.
    staying = layers[: len(layers) - round(o.share * len(layers))]
    # A module with layers of both kinds inside starts afresh.
    tops = {name.split("/")[0] for name in layers if name not in staying}
    kept = {name.split("/")[0] for name in staying} - tops

    def start(path, old, new):
        # In every collection: BatchNorm's statistics are mixed as the kernels are.
        stays = kept.intersection(names(path)[1:2])
        return o.shrink * old + (1 - o.shrink) * new if stays else new

    # Flax hands variables out as dictionaries or frozen ones; leaves sort alike.
    old = dict(job.variables)
    fresh = jax.tree.unflatten(jax.tree.structure(old), jax.tree.leaves(fresh))
    grown = jax.tree_util.tree_map_with_path(start, old, fresh)
    afresh = [name for name in layers if name.split("/")[0] not in kept]
    return job.recover(grown, stage="regrown", notes={"fresh_layers": afresh})
