"""VGG11/13/16/19 for small images: convolutions with a norm, and two dense layers.

After the last pool the map is flattened and read by a hidden layer of 512 units. An
image too small for five pools is pooled until it is one pixel.
"""

import math

import flax.linen as nn

from fuprune.kernels import pooling
from fuprune.kernels.normalisation import at_least_float32
from fuprune.models.layers import ConvolutionalNetwork, Wiring, wire

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

    def features(self, images, train: bool = False, mask=None):
        """Maps images [B, H, W, C] to what the head reads, float32 [B, 512]."""
        values, pool = self.typed(images), pooling.implementation(self.conv)
        for stage in self._stages():
            for layer, _ in stage:
                module = getattr(self, layer)
                values = module(values, train=train, mask=mask, relu=True)
            values = pool(values)
        values = at_least_float32(values.reshape(values.shape[0], -1))
        return nn.relu(self.hidden(values))

    @nn.nowrap
    def wiring(self) -> dict[str, Wiring]:
        """Returns the channels each layer reads and writes, in forward order."""
        wires, inputs = {}, tuple(range(self.input_shape[-1]))
        for stage in self._stages():
            for layer, width in stage:
                wires[layer] = wire(self.channels, layer, inputs, width)
                inputs = wires[layer].outputs
        pixels = math.prod(self._stage_sizes()[-1])
        # The flattened map is pixel by pixel, each with all its channels.
        flat = tuple(
            pixel * STAGE_WIDTHS[-1] + channel
            for pixel in range(pixels)
            for channel in inputs
        )
        units = tuple(range(HIDDEN_UNITS))
        wires["hidden"] = Wiring(flat, units, HIDDEN_UNITS)
        wires["head"] = Wiring(units, tuple(range(self.num_classes)), self.num_classes)
        return wires

    @nn.nowrap
    def output_sizes(self) -> dict[str, tuple[int, int]]:
        """Returns (H, W) of the map each convolution writes."""
        return {
            layer: size
            for stage, size in zip(self._stages(), self._stage_sizes(), strict=False)
            for layer, _ in stage
        }

    @nn.nowrap
    def _stage_sizes(self) -> list[tuple[int, int]]:
        # (H, W) that each of the five stages reads, then what the last pool leaves.
        height, width, _ = self.input_shape
        sizes = [(height, width)]
        for _ in STAGE_WIDTHS:
            height, width = max(height // 2, 1), max(width // 2, 1)
            sizes.append((height, width))
        return sizes

    @nn.nowrap
    def _stages(self) -> list[list[tuple[str, int]]]:
        # [(layer, uncut width), ...] of each stage.
        stages, number = [], 0
        for repeats, width in zip(STAGE_DEPTHS[self.depth], STAGE_WIDTHS, strict=True):
            stages.append([(f"conv{number + i + 1}", width) for i in range(repeats)])
            number += repeats
        return stages
