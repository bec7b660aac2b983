"""Surgery on the networks of the zoo, by their wiring.

`mask` kills the channels a plan does not keep and `compact` removes them; both give the
same function and the same training. No architecture is known here: the model's wiring,
before and after, says which rows and columns of every array remain.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from fuprune.errors import InputError
from fuprune.models import zoo
from fuprune.models.adapt import Variables
from fuprune.models.cost import layer_costs
from fuprune.surgery.arrays import cut_array
from fuprune.surgery.plan import LayerReport, PrunePlan, check_kept, total_report
from fuprune.surgery.trace import dead_value, names


def mask(model: nn.Module, variables: Variables, plan: PrunePlan) -> Variables:
    """`surgery.mask`, for a model of the zoo."""
    return _cut_variables(model, variables, plan, mask_tree)


def compact(
    model: nn.Module, variables: Variables, plan: PrunePlan
) -> tuple[nn.Module, Variables]:
    """`surgery.compact`, for a model of the zoo.

    The model's static `channels` remember which channels of the uncut network are left.
    """
    small = _compacted(model, plan)
    return small, _cut_variables(model, variables, plan, compact_tree)


def _cut_variables(model, variables, plan, cut):
    cut_collections = {
        name: cut(model, plan, variables[name])
        for name in ("params", "batch_stats")
        if name in variables
    }
    return {**variables, **cut_collections}


def mask_tree(model: nn.Module, plan: PrunePlan, tree: Any) -> Any:
    """Does to any tree shaped like the parameters what `mask` does to them.

    Args:
      model: the model the plan is for.
      plan: the channels to keep.
      tree: parameters, batch statistics, gradients, moments: {layer: {...: array}},
        arrays with any leading axes before those of the parameter. Scalars pass.
    """
    return _cut_tree(model, plan, tree, dead_value)


def compact_tree(model: nn.Module, plan: PrunePlan, tree: Any) -> Any:
    """Does to any tree shaped like the parameters what `compact` does to them.

    Arguments are those of `mask_tree`.
    """
    return _cut_tree(model, plan, tree, lambda names: None)


def _cut_tree(model, plan, tree, dead):
    cuts = _cuts(model, plan)

    def cut_leaf(path, leaf):
        path = names(path)
        return cut_array(leaf, _axes_to_cut(cuts, path, leaf), dead(path))

    return jax.tree_util.tree_map_with_path(cut_leaf, tree)


class _Cut(NamedTuple):
    shape: tuple[int, int]  # channels the layer reads and writes before the cut
    inputs: np.ndarray  # kept positions among those it reads
    outputs: np.ndarray  # kept positions among those it writes


def _cuts(model, plan) -> dict[str, _Cut]:
    # Wires are ids of the uncut network, ascending; where they lie among the wires
    # before the cut is the position in the array.
    after = _compacted(model, plan).wiring()
    return {
        layer: _Cut(
            (len(before.inputs), len(before.outputs)),
            np.searchsorted(before.inputs, after[layer].inputs),
            np.searchsorted(before.outputs, after[layer].outputs),
        )
        for layer, before in model.wiring().items()
    }


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


def _axes_to_cut(cuts, path, leaf) -> list[tuple[int, np.ndarray]]:
    """Returns the (negative axis, kept positions) a leaf is to be cut along."""
    layer, where = path[0], "/".join(path)
    if layer not in cuts:
        raise InputError(
            f"tree holds {where}, which is no layer of the model; pass parameters, or"
            " a tree shaped like them."
        )
    if not getattr(leaf, "ndim", 0):
        return []
    shape, inputs, outputs = cuts[layer]
    # Flax kernels end in [inputs, outputs]; a bias, scale or statistic in [outputs].
    axes = [(-2, inputs), (-1, outputs)]
    if path[-1] != "kernel":
        axes, shape = axes[1:], shape[1:]
    if leaf.shape[-len(shape) :] != shape:
        raise InputError(
            f"{where} has shape {leaf.shape}, but its last axes must be {shape} for"
            " this model; start that state afresh after the cut."
        )
    return [(axis, kept) for axis, kept in axes if len(kept) < leaf.shape[axis]]


def cut_optimizer_state(
    model: nn.Module, plan: PrunePlan, opt_state: Any, how: str
) -> Any:
    """`surgery.cut_optimizer_state`, for a model of the zoo.

    Every mapping in the state with the model's layers as its keys is cut; counters and
    hyperparameters pass. A state that keeps parameters in another shape is refused.
    """
    cutter = mask_tree if how == "mask" else compact_tree
    layers = set(model.wiring())
    size = sum(cost.parameters for cost in layer_costs(model).values())
    # For its checks: a plan that does not fit is refused even if the state holds no
    # moments at all.
    _compacted(model, plan)

    def is_parameters(node):
        return isinstance(node, Mapping) and set(node) == layers

    def cut_node(node):
        if is_parameters(node):
            return cutter(model, plan, node)
        # As `optax.flatten` keeps them; passed on uncut, they would no longer fit.
        if getattr(node, "size", 0) == size:
            raise InputError(
                f"optimizer state holds all {size} parameters in one array of shape"
                f" {node.shape}, which cannot be cut; start it afresh after the cut."
            )
        return node

    return jax.tree.map(cut_node, opt_state, is_leaf=is_parameters)


def plan_report(
    model: nn.Module,
    plan: PrunePlan,
    input_shape: tuple[int, int, int] | None = None,
) -> list[LayerReport]:
    """`surgery.plan_report`, for a model of the zoo.

    Channels of the total are those of the convolutions, which a plan can cut.
    """
    before = layer_costs(model, input_shape)
    after = layer_costs(_compacted(model, plan), input_shape)
    rows = [
        LayerReport(
            layer,
            before[layer].channels,
            after[layer].channels,
            plan.spared.get(layer, 0),
            before[layer].parameters,
            after[layer].parameters,
            before[layer].flops,
            after[layer].flops,
        )
        for layer in before
    ]
    prunable = [row for row in rows if row.layer in zoo.layer_names(model)]
    costs = [sum(int(row[field]) for row in rows) for field in range(4, 8)]
    return [*rows, total_report(plan, prunable, *costs)]
