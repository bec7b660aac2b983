"""VGG11/13/16/19 for small images: convolutions with a norm, and two dense layers.

After the last pool the map is flattened and read by a hidden layer of 512 units. An
image too small for five pools is pooled until it is one pixel.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fuprune.kernels.normalisation import at_least_float32
from fuprune.models.layers import ConvolutionalNetwork

HIDDEN_UNITS = 512
# Convolutions in each of the five stages, each stage ending in a pool.
STAGE_DEPTHS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
STAGE_WIDTHS = (64, 128, 256, 512, 512)


class VGG(ConvolutionalNetwork):
    """A CIFAR VGG with norms, of depth 11, 13, 16 or 19."""

    @nn.compact
    def __call__(self, images, train: bool = False, mask=None):
        """Maps images [B, H, W, C] to logits [B, num_classes], as `ResNet` does."""
        values = self.typed(images)
        number = 0
        for repeats, width in zip(STAGE_DEPTHS[self.depth], STAGE_WIDTHS, strict=True):
            for _ in range(repeats):
                number += 1
                layer = self.layer(f"conv{number}", width)
                values = layer(values, train=train, mask=mask, relu=True)
            values = max_pool(values)
        values = at_least_float32(values.reshape(values.shape[0], -1))
        values = nn.relu(nn.Dense(HIDDEN_UNITS, name="hidden")(values))
        return nn.Dense(self.num_classes, name="head")(values)


def max_pool(values: jax.Array) -> jax.Array:
    """Takes the maximum over 2x2 windows of [B, H, W, C]; a side of 1 stays 1."""
    # In float32, because XLA on CPU converts bfloat16 around every selection.
    pooled = at_least_float32(values)
    for axis in (1, 2):
        pairs = values.shape[axis] // 2
        if pairs:
            shape = (*pooled.shape[:axis], pairs, 2, *pooled.shape[axis + 1 :])
            whole = jax.lax.slice_in_dim(pooled, 0, 2 * pairs, axis=axis)
            # Split, because its gradient puts the halves back side by side. That of
            # strided slices adds arrays.
            even, odd = (
                jnp.squeeze(half, axis + 1)
                for half in jax.lax.split(whole.reshape(shape), (1, 1), axis + 1)
            )
            # Compared and selected, so that each gradient goes to exactly one pixel.
            # XLA's windowed maximum has a far slower gradient, and that of jnp.max
            # looks for the maximum again: NaN if recomputing the map rounds otherwise.
            pooled = jnp.where(even >= odd, even, odd)
    return pooled.astype(values.dtype)
