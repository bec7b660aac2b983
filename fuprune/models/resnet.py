"""ResNet20/32/44/56 for small images, after He et al., with the option-A shortcut."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fuprune.kernels.normalisation import at_least_float32
from fuprune.models.layers import ConvolutionalNetwork

STAGE_WIDTHS = (16, 32, 64)


class ResNet(ConvolutionalNetwork):
    """A CIFAR ResNet of depth 6n + 2, n >= 1: a stem and three stages of n blocks."""

    @nn.compact
    def __call__(self, images, train: bool = False, mask=None):
        """Maps normalised images [B, H, W, C] to float32 logits [B, num_classes]."""
        options: dict[str, Any] = dict(train=train, mask=mask, relu=True)
        stream = self.layer("stem", STAGE_WIDTHS[0])(self.typed(images), **options)
        for stage, width in enumerate(STAGE_WIDTHS, 1):
            for block in range(1, (self.depth - 2) // 6 + 1):
                stride = 2 if stage > 1 and block == 1 else 1
                name = f"stage{stage}_block{block}"
                branch = self.layer(f"{name}_conv1", width, stride)(stream, **options)
                if stride == 2:
                    stream = shortcut(stream, width)
                second = self.layer(f"{name}_conv2", width)
                stream = second(branch, residual=stream, **options)
        features = jnp.mean(at_least_float32(stream), axis=(1, 2))
        return nn.Dense(self.num_classes, name="head")(features)


def shortcut(stream, width: int):
    """Option A: every other pixel, and zero channels on both sides up to `width`."""
    missing = width - stream.shape[-1]
    sides = (missing // 2, missing - missing // 2)
    return jnp.pad(stream[:, ::2, ::2], [(0, 0)] * 3 + [sides])
