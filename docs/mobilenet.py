"""A MobileNetV2 for 32x32 images, as its owner would write it: plain Flax.

It knows nothing of fuprune. The command line takes it by name from the repository's
top folder, `--config.model.name=docs.mobilenet:make_model`; a run is in results.md.
"""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project by 1x1 (Sandler et al.)."""

    width: int
    stride: int = 1
    expansion: int = 3

    @nn.compact
    def __call__(self, x, train: bool):
        """Maps [B, H, W, C] to [B, H / stride, W / stride, width]."""
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        conv = partial(nn.Conv, use_bias=False)
        hidden = self.expansion * x.shape[-1]
        y = nn.relu6(norm(name="expand_norm")(conv(hidden, (1, 1), name="expand")(x)))
        strides = (self.stride, self.stride)
        y = conv(hidden, (3, 3), strides, feature_group_count=hidden, name="filter")(y)
        y = nn.relu6(norm(name="filter_norm")(y))
        y = norm(name="project_norm")(conv(self.width, (1, 1), name="project")(y))
        return x + y if x.shape == y.shape else y


class MobileNetV2(nn.Module):
    """A stem, five inverted residuals, and a 1x1 convolution before the head."""

    num_classes: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        """Maps images [B, H, W, C] to logits [B, num_classes]."""
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.Conv(16, (3, 3), (2, 2), use_bias=False, name="stem")(x)
        x = nn.relu6(norm(name="stem_norm")(x))
        for i, (width, stride) in enumerate(
            ((16, 1), (24, 2), (24, 1), (32, 2), (32, 1))
        ):
            x = InvertedResidual(width, stride, name=f"block{i}")(x, train)
        x = nn.Conv(96, (1, 1), use_bias=False, name="last")(x)
        x = nn.relu6(norm(name="last_norm")(x))
        return nn.Dense(self.num_classes, name="head")(jnp.mean(x, axis=(1, 2)))


def make_model(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """The factory that the command line asks for the network."""
    del input_shape  # any side that is a multiple of 8 will do
    return MobileNetV2(num_classes)
