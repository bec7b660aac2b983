"""DAMP: projecting the directions of the forgotten class out of what layers read.

Hatami, Aalishah and Monosov, "Class Unlearning via Depth-Aware Removal of
Forget-Specific Directions" (2026). For every layer, with the class means ("prototypes")
of what it reads, m_u [C], and R the span of the means of the classes that stay,

    d = (m_f - P_R m_f) / |m_f - P_R m_f|,    W <- (I - s d d^T) W,

for the weights W [C, O] that read it. The paper scales s in [0, 1] by how well a probe
separates the class in that layer, which takes single images. Here clients send sums
only, and s is the share of the mean that the other classes do not explain,
|m_f - P_R m_f| / |m_f - mean_u m_u|.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fuprune.errors import UnlearnError
from fuprune.surgery.arrays import names
from fuprune.unlearning.client_sums import SIMULATED
from fuprune.unlearning.job import Job, UnlearnResult, tree_bytes
from fuprune.unlearning.method import method
from fuprune.unlearning.request import participating


@method("damp", reads_forgotten=True, simulated=SIMULATED)
def damp(job: Job) -> UnlearnResult:
    """Make layers blind to the forgotten class's direction, then fine-tune.

    The network is a Linen module. The stage `damped` is the model before the
    fine-tuning.
    """

    def input_sum(model):
        def summed(variables, batch):
            means = layer_inputs(model, variables, batch.images)
            member = jax.nn.one_hot(batch.labels, job.num_classes)
            member = member * batch.mask[:, None]
            sums = {layer: member.T @ x for layer, x in means.items()}
            return sums, jnp.sum(member, axis=0)

        return summed

    data = participating(job.data, job.participants)
    (sums, counts), _ = job.sum(input_sum, chunk=64)(job.variables, data)
    if not sums:
        raise UnlearnError(
            "the network has no Linen layer whose inputs could be read; use "
            "class_pruning, which cuts any network."
        )
    forgotten = [u for u in job.classes if counts[u]]
    staying = np.setdiff1d(np.flatnonzero(counts), job.classes)
    if not (forgotten and staying.size):
        raise UnlearnError(
            "damp needs examples of a class to forget and of one that stays with the "
            "participants; let more clients take part (unlearn.participants)."
        )
    shares: dict[str, list[float]] = {}

    def edited(path, leaf):
        *layer, array = names(path)
        layer = "/".join(layer)
        if array != "kernel" or layer not in sums:
            return leaf
        means = sums[layer] / np.maximum(counts, 1)[:, None]
        if means.shape[1] != leaf.shape[-2]:
            return leaf  # a depthwise kernel reads one channel at a time
        blind, shares[layer] = projection(means[forgotten], means[staying])
        return jnp.einsum("ij,...jo->...io", blind.astype(leaf.dtype), leaf)

    params = jax.tree_util.tree_map_with_path(edited, dict(job.variables["params"]))
    return job.recover(
        {**job.variables, "params": params},
        stage="damped",
        notes={"scales": shares},
        upload_bytes=tree_bytes((sums, counts)),
    )


def projection(
    forgotten: np.ndarray, staying: np.ndarray
) -> tuple[np.ndarray, list[float]]:
    """I - sum_i s_i d_i d_i^T [C, C] of class means [F, C] and [R, C]; and the s_i."""
    forgotten, staying = (np.asarray(x, np.float64) for x in (forgotten, staying))
    centre = np.mean(staying, axis=0)
    # Left singular vectors, so that means which depend on each other are no trouble.
    vectors, sizes, _ = np.linalg.svd(staying.T, full_matrices=False)
    basis = vectors[:, sizes > 1e-6 * max(sizes[0], 1e-30)]
    blind, scales = np.eye(staying.shape[1]), []
    for mean in forgotten:
        rest = mean - basis @ (basis.T @ mean)
        length, whole = np.linalg.norm(rest), np.linalg.norm(mean - centre)
        # A mean that lies in the span, but for rounding, has nothing of its own.
        own = length > 1e-6 * max(np.linalg.norm(mean), 1e-30)
        scale = min(length / whole, 1.0) if own and whole > 0 else 0.0
        scales.append(float(scale))
        if scale:
            direction = rest / length
            blind = blind - scale * np.outer(direction, direction)
            basis = np.column_stack([basis, direction])
    return blind, scales


def layer_inputs(model, variables, images) -> dict[str, jax.Array]:
    """What each convolution and dense layer reads, averaged over space: [B, C]."""
    found: dict[str, jax.Array] = {}

    def look(call, arguments, options, context):
        if isinstance(context.module, nn.Conv | nn.Dense) and arguments:
            read = arguments[0].astype(jnp.float32)
            layer = "/".join(context.module.path)
            found[layer] = jnp.mean(read, axis=tuple(range(1, read.ndim - 1)))
        return call(*arguments, **options)

    with nn.intercept_methods(look):
        model.apply(variables, images, train=False)
    return found
