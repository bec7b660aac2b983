"""Surgery on the networks of the zoo, by their wiring.

No architecture is known here: the model's wiring, before and after, says which rows and
columns of every array remain.
"""

import flax.linen as nn
import numpy as np

from fuprune.errors import InputError
from fuprune.models import zoo
from fuprune.models.cost import variable_shapes
from fuprune.models.layers import places
from fuprune.surgery.arrays import PlannedCut
from fuprune.surgery.plan import PrunePlan, check_kept


def plan_cuts(model: nn.Module, plan: PrunePlan) -> PlannedCut:
    """Returns the smaller model and what is left of its variables.

    The model's static `channels` remember which channels of the uncut network are left.
    """
    small, shapes, cuts = _compacted(model, plan), variable_shapes(model), []
    after = small.wiring()
    # Wires are ids of the uncut network, ascending; where they lie among the wires
    # before the cut is the position in the array.
    kept = {
        layer: (
            places(after[layer].inputs, wires.inputs),
            places(after[layer].outputs, wires.outputs),
        )
        for layer, wires in model.wiring().items()
    }
    for path, shape in shapes.items():
        # Kernels end in [inputs, outputs]; a bias, scale or statistic in [outputs].
        ends = kept[path[1]] if path[-1] == "kernel" else kept[path[1]][1:]
        axes = tuple(
            (axis, positions)
            for axis, positions in enumerate(ends, len(shape) - len(ends))
            if len(positions) < shape[axis]
        )
        if axes:
            cuts.append((path, shape, axes))
    return PlannedCut(small, tuple(cuts), shapes)


def _compacted(model, plan):
    wiring = model.wiring()
    layers = zoo.layer_names(model)
    for layer, keep in plan.keep.items():
        if layer not in layers:
            raise InputError(
                f"plan names layer {layer!r}, which the model does not have; make it"
                " from scores of this model."
            )
        check_kept(layer, np.asarray(keep), len(wiring[layer].outputs))
    channels = []
    for layer in layers:
        ids = wiring[layer].outputs
        if layer in plan.keep:
            # A plan counts positions in this model, the wiring ids of the uncut
            # network: so a cut of a cut network composes.
            ids = tuple(ids[position] for position in np.asarray(plan.keep[layer]))
        if len(ids) < wiring[layer].width:
            channels.append((layer, ids))
    return model.clone(channels=tuple(channels))
