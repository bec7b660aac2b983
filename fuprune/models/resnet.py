"""ResNet20/32/44/56 for small images, after He et al., with the option-A shortcut.

Each layer of a cut network computes only the channels it keeps. The residual stream
holds only channels that some layer has written: one that nothing writes is identically
zero, and is dropped from everything that would read it. No shape ever decides how the
shortcut is formed; the wiring does, before any array exists.
"""

import flax.linen as nn
import jax.numpy as jnp

from fuprune.kernels.normalisation import at_least_float32
from fuprune.models.layers import ConvolutionalNetwork, Wiring, wire

STAGE_WIDTHS = (16, 32, 64)


class ResNet(ConvolutionalNetwork):
    """A CIFAR ResNet of depth 6n + 2, n >= 1: a stem and three stages of n blocks."""

    def features(self, images, train: bool = False, mask=None):
        """Maps images [B, H, W, C] to what the head reads, float32 [B, D]."""

        def layer(name, values, **stream):
            module = getattr(self, name)
            return module(values, train=train, mask=mask, relu=True, **stream)

        wires = self.wiring()
        stream, held = layer("stem", self.typed(images)), wires["stem"].outputs
        for first, second, reader in self.blocks():
            branch = layer(first, stream)
            # Option A: every other pixel, and zeros for the channels that come in on
            # both sides. Zeros are not stored: shifting the ids is all the padding
            # there is.
            if self.strides(first) == 2:
                stream = stream[:, ::2, ::2]
                held = shifted(held, wires[second].width)
            # The next reader's inputs are all channels that something has written so
            # far.
            after = wires[reader].inputs
            stream = layer(second, branch, residual=stream, held=held, onto=after)
            held = after
        return jnp.mean(at_least_float32(stream), axis=(1, 2))

    @nn.nowrap
    def wiring(self) -> dict[str, Wiring]:
        """Returns the channels each layer reads and writes, in forward order."""
        inputs = tuple(range(self.input_shape[-1]))
        wires = {"stem": wire(self.channels, "stem", inputs, STAGE_WIDTHS[0])}
        stream = wires["stem"].outputs
        for first, second, _ in self.blocks():
            width = STAGE_WIDTHS[int(first[len("stage")]) - 1]
            wires[first] = wire(self.channels, first, stream, width)
            wires[second] = wire(self.channels, second, wires[first].outputs, width)
            if self.strides(first) == 2:
                stream = shifted(stream, width)
            # A channel is in the stream from the first layer on that writes it.
            stream = tuple(sorted({*stream, *wires[second].outputs}))
        everything = tuple(range(self.num_classes))
        wires["head"] = Wiring(stream, everything, self.num_classes)
        return wires

    @nn.nowrap
    def output_sizes(self) -> dict[str, tuple[int, int]]:
        """Returns (H, W) of the map each convolution writes."""
        sizes, (height, width, _) = {}, self.input_shape
        for layer in self.wiring():
            if layer != "head":
                stride = self.strides(layer)
                # Rounded up: 3 x 3 windows are padded by one on each side.
                height, width = -(-height // stride), -(-width // stride)
                sizes[layer] = (height, width)
        return sizes

    @nn.nowrap
    def strides(self, layer: str) -> int:
        """Returns the stride of a layer: 2 where a stage halves the image."""
        return 2 if layer in ("stage2_block1_conv1", "stage3_block1_conv1") else 1

    @nn.nowrap
    def blocks(self) -> list[tuple[str, str, str]]:
        """Returns (first layer, second layer, reader of the stream after them)."""
        names = [
            f"stage{stage}_block{block}"
            for stage in (1, 2, 3)
            for block in range(1, (self.depth - 2) // 6 + 1)
        ]
        readers = [f"{name}_conv1" for name in names[1:]] + ["head"]
        return [
            (f"{name}_conv1", f"{name}_conv2", reader)
            for name, reader in zip(names, readers, strict=True)
        ]


def shifted(held: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Returns the ids after option A, which pads a quarter of the width each side."""
    return tuple(channel + width // 4 for channel in held)
