"""Networks made smaller: which channels go, and how they are taken out.

The door to the room: `mask` and `compact` take networks of the zoo, which are cut by
their wiring, and any other network, which is cut by tracing it. How that is done:
`held` says what is stored of an array with dead channels, `trace` runs a network's
jaxpr on such arrays, by a rule for each primitive (`arithmetic`, `layout`), and
`cutting` asks that run for layers and carries out plans.
"""

from typing import Any

import jax
import numpy as np
from flax import nnx

from fuprune.errors import check_choice
from fuprune.models import zoo
from fuprune.models.adapt import Variables, adapt, own_variables
from fuprune.models.cost import layer_costs
from fuprune.surgery import cutting, report, wiring
from fuprune.surgery.afresh import start_afresh
from fuprune.surgery.arrays import PlannedCut
from fuprune.surgery.cutting import Observed as Observed
from fuprune.surgery.cutting import capture as capture
from fuprune.surgery.cutting import observe as observe
from fuprune.surgery.cutting import trace_layers as trace_layers
from fuprune.surgery.findings import Layer as Layer
from fuprune.surgery.findings import SurgeryError as SurgeryError
from fuprune.surgery.plan import ORDERS as ORDERS
from fuprune.surgery.plan import SCOPES as SCOPES
from fuprune.surgery.plan import LayerReport as LayerReport
from fuprune.surgery.plan import PrunePlan as PrunePlan
from fuprune.surgery.plan import make_plan as make_plan
from fuprune.surgery.plan import report_rows
from fuprune.surgery.report import explain as explain
from fuprune.surgery.slim import PinnedNetwork as PinnedNetwork
from fuprune.surgery.slim import SlimModule as SlimModule
from fuprune.surgery.slim import SlimNetwork as SlimNetwork


def mask(model: Any, variables: Any, plan: PrunePlan, *, example: Any = None) -> Any:
    """Kills the channels a plan does not keep; every shape stays as it is.

    Of a dead channel the filter, the scale, the bias and whatever reads it are zero;
    its running mean is 0 and variance 1. The zoo's layers make it stay dead under any
    optimizer, provided that the optimizer's moments are cut too (`cut_optimizer_state`)
    or fresh. A layer that others wrote may revive its bias: train what `compact` gives.

    Args:
      model: a model of the zoo, a Linen or NNX module, or anything else that
        `models.adapt` takes.
      variables: its variables; of an NNX module None, for those it holds.
      plan: the channels to keep.
      example: images of the shape [B, H, W, C] that the network takes; found by trial
        if it does not say.

    Returns:
      Variables, or for an NNX module given without any, a masked copy of the module.
    """
    cut = _planned(model, variables, plan, example)
    masked = cut.variables(own_variables(model, variables), fill=True)
    if variables is not None:
        return masked
    if isinstance(model, SlimModule):
        return SlimModule(model.slim, masked)
    return adapt(model).module(masked)


def compact(
    model: Any, variables: Any, plan: PrunePlan, *, example: Any = None
) -> tuple[Any, Any]:
    """Removes the channels a plan does not keep; the arguments are those of `mask`.

    Returns:
      A network with fewer channels and its variables: in evaluation the same function
      as the masked ones, and in training the same gradients. A model of the zoo stays
      one, an NNX module given without variables becomes a `SlimModule` (and its state),
      and any other network a `SlimNetwork`. With nothing to cut, all is as it was.
    """
    cut = _planned(model, variables, plan, example)
    if variables is None:
        module = model
        if cut.cuts:
            module = SlimModule(cut.network, cut.variables(own_variables(model, None)))
        return module, nnx.state(module)
    return cut.network if cut.cuts else adapt(model), cut.variables(variables)


def pin(model: Any, variables: Any, plan: PrunePlan, *, example: Any = None) -> Any:
    """Returns the network in which what `mask` kills stays dead in training.

    A model of the zoo is one already. Arguments are those of `mask`.
    """
    if hasattr(model, "wiring"):
        return model
    cut = _planned(model, variables, plan, example)
    network = cutting.unpinned(adapt(model))
    return PinnedNetwork(network, cut.cuts, cut.network.input_shape)


def reset(
    model: Any, variables: Any, plan: PrunePlan, *, key: jax.Array, example: Any = None
) -> Any:
    """Lets the channels a plan does not keep start afresh; every shape stays.

    Returns:
      Variables in which what writes such a channel is drawn anew at the scale of the
      kept ones, and what reads it is as it was (`afresh`). Other arguments are those
      of `mask`.
    """
    cut = _planned(model, variables, plan, example)
    held = own_variables(model, variables)
    if hasattr(model, "wiring"):
        written = {path: len(s) - 1 for path, s, _ in cut.cuts if path[-1] == "kernel"}
    else:
        layers = trace_layers(model, variables, example, dense=True).values()
        written = {layer.path: layer.axis for layer in layers}
    return start_afresh(cut.cuts, held, written, key)


def cut_optimizer_state(
    model: Any,
    plan: PrunePlan,
    opt_state: Any,
    how: str = "mask",
    *,
    variables: Variables | None = None,
    example: Any = None,
) -> Any:
    """Cuts the moments inside any optax state as the parameters were cut.

    Args:
      model: the model before the cut.
      plan: the channels to keep.
      opt_state: state of an optax optimizer of the uncut parameters.
      how: "mask" or "compact".
      variables: those before the cut, for a network that is not of the zoo.
      example: images, as in `mask`.
    """
    check_choice("how", how, ("mask", "compact"))
    cut = _planned(model, variables, plan, example)
    return cut.moments(opt_state, fill=how == "mask")


def _planned(model, variables, plan, example) -> PlannedCut:
    """What a plan leaves of a network, by its wiring or by tracing its variables."""
    if hasattr(model, "wiring"):
        return wiring.plan_cuts(model, plan)
    return cutting.plan_cuts(model, variables, plan, example)


def plan_report(
    model: Any,
    plan: PrunePlan,
    input_shape: tuple[int, int, int] | None = None,
    *,
    variables: Variables | None = None,
) -> list[LayerReport]:
    """Returns what a plan does to each layer and, in the last row, to the whole.

    Of a network that is cut by tracing, a layer's parameters are those of its kernel,
    and its FLOPs those of its products on one image. The total counts all parameters,
    the products of all layers, and the channels of the convolutions, which a plan can
    cut, and of those dense layers that the plan names.

    Args:
      model: the model the plan is for.
      plan: the channels to keep.
      input_shape: (H, W, C) of an image; None for the one the model was made for.
      variables: those before the cut, for a network that is not of the zoo.
    """
    if hasattr(model, "wiring"):
        small = wiring.plan_cuts(model, plan).network
        costs = [layer_costs(network, input_shape) for network in (model, small)]
        return report_rows(plan, costs, zoo.layer_names(model))
    example = None if input_shape is None else np.empty((2, *input_shape), np.float32)
    return report.examine_plan(model, variables, plan, example)[0]


def layer_names(
    model: Any, variables: Any = None, *, example: Any = None, dense: bool = False
) -> tuple[str, ...]:
    """Returns the layers that a plan can cut, in forward order: convolutions.

    With `dense` the dense layers of a network that is not of the zoo are among them.
    """
    if hasattr(model, "wiring"):
        return zoo.layer_names(model)
    return tuple(trace_layers(model, variables, example, dense=dense))


def kept_channels(
    model: Any, variables: Any = None, *, example: Any = None
) -> dict[str, tuple[int, ...]]:
    """Returns the channels each layer has, as ids in the uncut network."""
    if hasattr(model, "wiring"):
        wires = model.wiring()
        return {layer: wires[layer].outputs for layer in zoo.layer_names(model)}
    program = cutting.trace_network(model, variables, example).program
    layers = cutting.layers_of(program, program.examine()[1])
    return {
        name: tuple(program.kept(layer.pair).tolist()) for name, layer in layers.items()
    }
