"""Networks made smaller: which channels go, and how they are taken out.

`held` says what is stored of an array with dead channels, `trace` runs a network's
jaxpr on such arrays by a rule for each primitive (`arithmetic`, `layout`), and
`cutting` asks that run for layers and carries out plans.
"""

from typing import Any

import jax
import numpy as np
from flax import nnx

from fuprune.errors import check_choice
from fuprune.models.adapt import Variables, adapt, own_variables
from fuprune.surgery import cutting, report
from fuprune.surgery.arrays import cut_moments, cut_tree, start_afresh
from fuprune.surgery.cutting import capture as capture
from fuprune.surgery.cutting import observe as observe
from fuprune.surgery.cutting import pin as pin
from fuprune.surgery.cutting import plan_cuts
from fuprune.surgery.cutting import trace_layers as trace_layers
from fuprune.surgery.findings import SurgeryError as SurgeryError
from fuprune.surgery.plan import ORDERS as ORDERS
from fuprune.surgery.plan import SCOPES as SCOPES
from fuprune.surgery.plan import PrunePlan as PrunePlan
from fuprune.surgery.plan import load_plan as load_plan
from fuprune.surgery.plan import make_plan as make_plan
from fuprune.surgery.report import explain as explain
from fuprune.surgery.slim import SlimModule as SlimModule
from fuprune.surgery.slim import SlimNetwork as SlimNetwork


def mask(model: Any, variables: Any, plan: PrunePlan, *, example: Any = None) -> Any:
    """Kills the channels a plan does not keep; every shape stays as it is.

    Of a dead channel the filter, the scale, the bias and whatever reads it are zero;
    its running mean is 0 and variance 1. The zoo's norms make it stay dead, provided
    that the optimizer's moments are fresh or cut too (`cut_optimizer_state`). Train
    what `compact` or `pin` gives.

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
    cuts = plan_cuts(model, variables, plan, example).cuts
    masked = cut_tree(cuts, own_variables(model, variables), fill=True)
    if variables is not None or not isinstance(model, nnx.Module):
        return masked
    if isinstance(model, SlimModule):
        return SlimModule(model.slim, masked)
    return adapt(model).module(masked)


def compact(
    model: Any, variables: Any, plan: PrunePlan, *, example: Any = None
) -> tuple[Any, Any]:
    """Removes the channels a plan does not keep; the arguments are those of `mask`.

    Returns:
      A network with fewer channels, a `SlimNetwork`, and its variables: the function
      and the gradients of the masked ones. An NNX module given without variables
      becomes a `SlimModule` and its state. With nothing to cut, all is as it was.
    """
    slim, cuts, _ = plan_cuts(model, variables, plan, example)
    left = cut_tree(cuts, own_variables(model, variables))
    if variables is None and isinstance(model, nnx.Module):
        module = SlimModule(slim, left) if cuts else model
        return module, nnx.state(module)
    return slim if cuts else adapt(model), left


def reset(
    model: Any, variables: Any, plan: PrunePlan, *, key: jax.Array, example: Any = None
) -> Any:
    """Variables in which the channels a plan does not keep start afresh.

    Every shape stays; other arguments are those of `mask`.
    """
    cuts = plan_cuts(model, variables, plan, example).cuts
    layers = trace_layers(model, variables, example, dense=True).values()
    written = {layer.path: layer.axis for layer in layers}
    return start_afresh(cuts, own_variables(model, variables), written, key)


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

    Arguments are those of `mask`, before the cut; the variables may be missing if the
    network says its `input_shape`. `how` is "mask" or "compact".
    """
    check_choice("how", how, ("mask", "compact"))
    _, cuts, before = plan_cuts(model, variables, plan, example)
    shapes = {path: stored.shape for path, stored in before.stored().items()}
    return cut_moments(cuts, shapes, opt_state, fill=how == "mask")


def plan_report(
    model: Any,
    plan: PrunePlan,
    input_shape: tuple[int, int, int] | None = None,
    *,
    variables: Variables | None = None,
) -> list[report.LayerReport]:
    """Returns what a plan does to each layer and, in the last row, to the whole.

    A layer's parameters are those of its kernel, and its FLOPs those of its products on
    one image (H, W, C). The total counts all parameters and products, and the channels
    of the convolutions and of those dense layers that the plan names. The variables may
    be missing if the network says its `input_shape`.
    """
    example = None if input_shape is None else np.empty((2, *input_shape), np.float32)
    return report.examine_plan(model, variables, plan, example)[0]


def layer_names(
    model: Any, variables: Any = None, *, example: Any = None, dense: bool = False
) -> tuple[str, ...]:
    """Returns the names of `trace_layers`."""
    return tuple(trace_layers(model, variables, example, dense=dense))


def kept_channels(
    model: Any, variables: Any = None, *, example: Any = None
) -> dict[str, tuple[int, ...]]:
    """Returns the channels each layer has, as ids in the uncut network."""
    program = cutting.trace_network(model, variables, example).program
    layers = cutting.layers_of(program, program.examine()[1])
    return {
        name: tuple(program.kept(layer.pair).tolist()) for name, layer in layers.items()
    }
