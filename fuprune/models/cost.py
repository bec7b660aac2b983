"""What a model of the zoo holds and costs, from its wiring and without running it."""

import math
from typing import NamedTuple

import flax.linen as nn

from fuprune.models.layers import DENSE_LAYERS


class LayerCost(NamedTuple):
    """Size and work of one layer, its norm included."""

    parameters: int  # trained numbers
    flops: int  # of one image forward, two per multiply-add; norms not counted
    channels: int  # output channels, or units of a dense layer


def variable_shapes(model: nn.Module) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Returns the shape of every variable by its path, layers in forward order."""
    norm = [("params", "scale"), ("params", "bias")]
    if model.norm == "batch":
        norm += [("batch_stats", "mean"), ("batch_stats", "var")]
    shapes: dict[tuple[str, ...], tuple[int, ...]] = {}
    for layer, wiring in model.wiring().items():
        kernel = (len(wiring.inputs), len(wiring.outputs))
        if layer in DENSE_LAYERS:
            shapes["params", layer, "kernel"] = kernel
            shapes["params", layer, "bias"] = kernel[1:]
            continue
        shapes["params", layer, "conv", "kernel"] = (3, 3, *kernel)
        for collection, name in norm:
            shapes[collection, layer, "norm", name] = kernel[1:]
    return shapes


def layer_costs(
    model: nn.Module, input_shape: tuple[int, int, int] | None = None
) -> dict[str, LayerCost]:
    """Returns the cost of every layer in forward order, dense layers included.

    For images of `input_shape` (H, W, C), by default those the model was made for.
    """
    if input_shape is not None:
        model = model.clone(input_shape=tuple(input_shape))
    sizes, held = model.output_sizes(), {}
    for (collection, layer, *_, name), shape in variable_shapes(model).items():
        if collection == "params":
            held.setdefault(layer, {})[name] = math.prod(shape)
    return {
        layer: LayerCost(
            sum(numbers.values()),
            2 * numbers["kernel"] * math.prod(sizes.get(layer, ())),
            numbers["bias"],  # one per channel
        )
        for layer, numbers in held.items()
    }
