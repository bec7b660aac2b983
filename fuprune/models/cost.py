"""What each layer of a model costs, counted from its wiring without running it."""

import math
from typing import NamedTuple

import flax.linen as nn


class LayerCost(NamedTuple):
    """Size and work of one layer, its norm included."""

    parameters: int  # trained numbers
    flops: int  # of one image forward, two per multiply-add; norms not counted
    channels: int  # output channels, or units of a dense layer


def layer_costs(
    model: nn.Module, input_shape: tuple[int, int, int] | None = None
) -> dict[str, LayerCost]:
    """Returns the cost of every layer in forward order, dense layers included.

    For images of `input_shape` (H, W, C), by default those the model was made for.
    """
    if input_shape is not None:
        model = model.clone(input_shape=tuple(input_shape))
    sizes = model.output_sizes()
    costs = {}
    for layer, wiring in model.wiring().items():
        inputs, outputs = len(wiring.inputs), len(wiring.outputs)
        # A 3 x 3 kernel and a norm's scale and bias, or a dense kernel and its bias.
        window, vectors = (9, 2 * outputs) if layer in sizes else (1, outputs)
        weights = window * inputs * outputs
        flops = 2 * weights * math.prod(sizes.get(layer, ()))
        costs[layer] = LayerCost(weights + vectors, flops, outputs)
    return costs
