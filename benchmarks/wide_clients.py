"""Several clients as one wide network, for an accelerator whose lanes would idle.

A TPU computes on 128 lanes, and a client's 16 channels or 32 images fill few of them.
Here G clients' channels stand side by side, [B, H, W, G * C]: convolutions have
block-diagonal kernels, dense over as many clients as fill the lanes, and BatchNorm,
being by channel, is by client as well. The arithmetic wasted on zero blocks runs on
lanes that would have been empty. ResNets only; used by `accelerator_estimate.py`.
"""

import jax
import jax.numpy as jnp
import optax

from fuprune.models.layers import BATCH_NORM_MOMENTUM, NORM_EPSILON

LANES = 128


def make_wide_step(model, *, learning_rate=0.01, momentum=0.9):
    """`step(variables, momenta, images, labels, mask) -> (variables, momenta)`.

    Variables and momenta have a leading axis of G clients, images are
    [G, B, H, W, 3] float, labels and mask [G, B]: one SGD step of each client on its
    real examples, of which each has at least one.
    """

    def step(variables, momenta, images, labels, mask):
        wide = images.transpose(1, 2, 3, 0, 4)
        wide = wide.reshape(*wide.shape[:3], -1)

        def loss(params):
            logits, moments = _forward(model, params, wide, mask.T)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels.T)
            means = jnp.sum(losses * mask.T, axis=0) / jnp.sum(mask, axis=1)
            # The sum over clients keeps their gradients apart.
            return jnp.sum(means), moments

        gradient, moments = jax.grad(loss, has_aux=True)(variables["params"])
        keep = BATCH_NORM_MOMENTUM
        stats = {
            layer: {
                "norm": jax.tree.map(
                    lambda old, new: keep * old + (1 - keep) * new.reshape(old.shape),
                    variables["batch_stats"][layer]["norm"],
                    moments[layer],
                )
            }
            for layer in moments
        }
        momenta = jax.tree.map(lambda m, g: momentum * m + g, momenta, gradient)
        params = jax.tree.map(
            lambda p, m: p - learning_rate * m, variables["params"], momenta
        )
        return {"params": params, "batch_stats": stats}, momenta

    return step


def _forward(model, params, x, mask):
    """Logits [B, G, U] and batch moments by layer, of an uncut ResNet; mask [B, G]."""
    moments, groups = {}, mask.shape[1]

    def conv_norm(layer, x):
        y = _convolve(x, params[layer]["conv"]["kernel"], model.strides(layer))
        real = jnp.repeat(mask, y.shape[-1] // groups, axis=1)  # [B, G * C]
        size = jnp.sum(real, axis=0) * y.shape[1] * y.shape[2]
        kept = jnp.where(real[:, None, None, :] > 0, y, 0.0)
        mean = jnp.sum(kept, axis=(0, 1, 2)) / size
        square = jnp.sum(kept * kept, axis=(0, 1, 2)) / size
        variance = jnp.maximum(square - mean * mean, 0.0)
        moments[layer] = {"mean": mean, "var": variance}
        scale, bias = (params[layer]["norm"][k].reshape(-1) for k in ("scale", "bias"))
        factor = scale * jax.lax.rsqrt(variance + NORM_EPSILON)
        return y * factor + (bias - mean * factor)

    x = jax.nn.relu(conv_norm("stem", x))
    layers = [name for name in model.wiring() if name not in ("stem", "head")]
    for first, second in zip(layers[::2], layers[1::2], strict=True):
        branch = conv_norm(second, jax.nn.relu(conv_norm(first, x)))
        if model.strides(first) == 2:
            x = _shortcut(x, groups)
        x = jax.nn.relu(x + branch)
    features = jnp.mean(x, axis=(1, 2)).reshape(x.shape[0], groups, -1)
    head = params["head"]
    return jnp.einsum("bgc,gcu->bgu", features, head["kernel"]) + head["bias"], moments


def _convolve(x, kernels, stride):
    """x [B, H, W, G * I], kernels [G, 3, 3, I, O] -> [B, H', W', G * O]."""
    groups, _, _, inputs, outputs = kernels.shape
    together = max(1, min(groups, LANES // max(inputs, outputs)))
    parts = [
        jax.lax.conv_general_dilated(
            x[..., g * inputs : (g + together) * inputs],
            _block_diagonal(kernels[g : g + together]),
            (stride, stride),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        for g in range(0, groups, together)
    ]
    return jnp.concatenate(parts, axis=-1)


def _block_diagonal(kernels):
    """[G, 3, 3, I, O] -> [3, 3, G * I, G * O]."""
    groups, height, width, inputs, outputs = kernels.shape
    blocks = jnp.einsum("gh,gxyio->xygiho", jnp.eye(groups), kernels)
    return blocks.reshape(height, width, groups * inputs, groups * outputs)


def _shortcut(x, groups):
    """Option A, client by client."""
    x = x[:, ::2, ::2]
    apart = x.reshape(*x.shape[:3], groups, -1)
    side = apart.shape[-1] // 2
    padded = jnp.pad(apart, ((0, 0),) * 4 + ((side, side),))
    return padded.reshape(*x.shape[:3], -1)
