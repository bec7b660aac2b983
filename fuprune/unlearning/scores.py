"""Scores of channels for a class, by name: `SCORES`.

A score is a function `(A*, class) -> [C]` of one layer's mean activations by class,
[U, C]; the channels with the highest scores are cut. `tf_idf` is the paper's (Eqs. 6-8,
in `tfidf`). A pruner's scores know no class: `IMPORTANCES` are functions
`(model, variables, images, labels) -> {layer: [C]}`, and the channels with the lowest
scores are cut (`make_plan(..., order="lowest")`).
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.models.adapt import adapt
from fuprune.surgery import trace_layers
from fuprune.surgery.arrays import names
from fuprune.surgery.cutting import scales_of
from fuprune.unlearning.entry_points import load_entry_points
from fuprune.unlearning.tfidf import tf_idf

SMOOTHING = 1e-3  # share of a layer's mean activation that is added to a denominator


def contrast(a, target, *, floor: float = 0.0) -> jax.Array:
    """How much more a class activates each channel than the other classes do, [C].

        A[u', j] / mean over k != u' of A[k, j],

    the lift of class and channel, taken against the others: 1 for a channel that is
    the same to all classes. The ratio lies within one channel, so a filter that is
    scaled by any factor, which the norm behind it cancels, keeps its score, and scores
    of different layers compare as they are. A term frequency is a share of its layer.

    A thousandth of the layer's mean activation is added to the denominator, so that a
    channel that hardly fires scores near 0, and the `floor` of `noise_floor`.
    """
    a = jnp.asarray(a)
    row, classes = a[target], jnp.arange(a.shape[0])[:, None]
    others = jnp.sum(jnp.where(classes == target, 0.0, a), axis=0) / (len(a) - 1)
    bottom = others + SMOOTHING * jnp.mean(a) + floor
    return jnp.where(bottom > 0, row / jnp.where(bottom > 0, bottom, 1.0), 0.0)


def noise_floor(deviation: float, channels: int) -> float:
    """The `floor` of `contrast` where the target's means carry noise of a deviation.

    Among C channels that never fire, the largest mean is at most sqrt(2 ln C)
    deviations in expectation (the maximum of C normal variables), so a channel of noise
    alone scores about 1 or less, instead of the ratio of two small draws.
    """
    return deviation * math.sqrt(2 * math.log(max(channels, 2)))


def class_aware(a, target) -> jax.Array:
    """How few classes need a channel that the class needs, [C].

    After Jiang et al., "Class-Aware Pruning for Efficient Neural Networks" (DATE 2024).
    A class needs the channels at or above the mean of its own, as in Eq. 7, where the
    paper counts images on which a Taylor expansion of the loss finds a filter
    important. With n_j classes that need channel j of U, the score is

        [u' needs j] (U - n_j) + A[u', j] / sum over k of A[k, j]:

    the count decides, and the share of the class, which is at most 1, decides ties.
    """
    a = jnp.asarray(a)
    needs = (a * a.shape[1] >= jnp.sum(a, axis=1, keepdims=True)) & (a > 0)
    total = jnp.sum(a, axis=0)
    share = jnp.where(total > 0, a[target] / jnp.where(total > 0, total, 1.0), 0.0)
    return needs[target] * (a.shape[0] - jnp.sum(needs, axis=0)) + share


SCORES: dict[str, Callable[..., jax.Array]] = {
    "tf_idf": tf_idf,
    "contrast": contrast,
    "class_aware": class_aware,
}
load_entry_points("fuprune.scores", SCORES.setdefault)


def magnitude(model, variables, images, labels=None) -> dict[str, np.ndarray]:
    """The norm of every filter over the root of its size (Li et al., ICLR 2017).

    Of the images, [B, H, W, C], only the shape matters, and no label does.
    """
    layers = trace_layers(model, variables, images)
    kernels = filters(layers, variables)
    return {name: np.sqrt(np.mean(x**2, axis=0)) for name, x in kernels.items()}


def norm_scale(model, variables, images, labels=None) -> dict[str, np.ndarray]:
    """The scale of the norm behind every channel (Liu et al., ICCV 2017).

    Layers without such a norm have no score. Arguments are those of `magnitude`.
    """
    layers = trace_layers(model, variables, images)
    scales = scales_of(model, variables, layers, images)
    values = _by_path(variables)
    return {name: np.abs(values[path]) for name, path in scales.items()}


def taylor(model, variables, images, labels) -> dict[str, np.ndarray]:
    """What a batch's loss changes if a filter goes, to first order (Molchanov et al.).

    The square of the sum over a filter of weight times gradient (CVPR 2019). Images
    [B, H, W, C] are floats, as the network takes them, and labels are [B].
    """
    network = adapt(model)

    def loss(params):
        logits = network.apply({**variables, "params": params}, images, train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses)

    gradients = {"params": jax.jit(jax.grad(loss))(variables["params"])}
    layers = trace_layers(model, variables, images)
    weights, slopes = filters(layers, variables), filters(layers, gradients)
    return {n: np.sum(weights[n] * slopes[n], axis=0) ** 2 for n in weights}


IMPORTANCES = {"magnitude": magnitude, "norm_scale": norm_scale, "taylor": taylor}


def filters(layers, tree) -> dict[str, np.ndarray]:
    """[entries, C] of every traced layer's kernel in a tree like the variables."""
    values = _by_path(tree)
    # A network may call its kernels anything, and have the channels on any axis.
    kernels = {n: np.moveaxis(values[x.path], x.axis, -1) for n, x in layers.items()}
    return {name: x.reshape(-1, x.shape[-1]) for name, x in kernels.items()}


def _by_path(tree) -> dict[tuple[str, ...], np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(tree))
    return {names(path): np.asarray(leaf) for path, leaf in leaves}
