"""From channel scores to a smaller network: which channels go, and the surgery (Eq. 9).

A plan says which output channels each layer keeps. `mask` kills the others in place
and `compact` removes them; both give the same function and the same training. The
surgery knows no architecture: the model's wiring, before and after, says which rows
and columns of every array remain.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fuprune.errors import InputError
from fuprune.models import zoo
from fuprune.models.cost import layer_costs

Variables = Mapping[str, Any]

SCOPES = ("global", "layer", "balanced")
ORDERS = ("highest", "lowest", "random")


class PrunePlan(NamedTuple):
    """Which channels each layer keeps. Static data on the host.

    Channels are positions in the layer as it is, which for an already compacted layer
    are not the ids of the uncut network. A layer that is absent is kept whole.
    """

    keep: dict[str, np.ndarray]  # layer -> increasing positions, [kept] int
    spared: dict[str, int] = {}  # layer -> cuts not made because of min_channels


class LayerReport(NamedTuple):
    """What a plan does to one layer, or to all ("total")."""

    layer: str
    channels_before: int
    channels_after: int
    spared: int
    parameters_before: int
    parameters_after: int
    flops_before: int
    flops_after: int


def make_plan(
    scores: Mapping[str, Any],
    rate: float,
    *,
    scope: str = "global",
    order: str = "highest",
    min_channels: int = 1,
    seed: int = 0,
) -> PrunePlan:
    """Chooses the channels to cut from their scores.

    Args:
      scores: layer -> [C], TF-IDF of each channel. Ties fall to the earlier layer of
        this mapping, then to the lower channel.
      rate: R of the paper, the share of channels to cut, in [0, 1).
      scope: "global" ranks all channels together, as the paper does; TF sums to one in
        each layer, so narrow layers score higher and are cut first. "balanced" ranks
        them together after multiplying each layer's scores by its width, which makes
        them comparable. "layer" cuts the same share of every layer, as nearly as whole
        channels allow: the fractions left over go to the layers with the largest ones.
      order: "highest" cuts the highest scores (the paper), "lowest" the lowest (the
        authors' code), "random" any, as a control.
      min_channels: a cut that would leave a layer fewer is not made, nor replaced by
        another, and is counted in `spared`.
      seed: of "random".

    Returns:
      A plan with an entry for each layer of `scores`. In every scope it cuts
      floor(rate * channels) of all channels together, less the spared ones.
    """
    values = {layer: np.asarray(score) for layer, score in scores.items()}
    _check_choices(values, rate, scope, order, min_channels)
    values = {layer: score.astype(np.float64) for layer, score in values.items()}
    if scope == "balanced":
        values = {layer: score * score.size for layer, score in values.items()}
    generator = np.random.default_rng(seed)
    groups = {(layer,): number for layer, number in _equal_shares(values, rate).items()}
    if scope != "layer":
        groups = {tuple(values): sum(groups.values())}
    keep = {layer: np.ones(score.size, bool) for layer, score in values.items()}
    spared = dict.fromkeys(values, 0)
    for group, number in groups.items():
        channels = [(layer, c) for layer in group for c in range(values[layer].size)]
        ranked = np.concatenate([values[layer] for layer in group] or [np.zeros(0)])
        if order == "random":
            ranking = generator.permutation(len(channels))
        else:
            ranking = np.argsort(-ranked if order == "highest" else ranked, stable=True)
        for layer, channel in (channels[i] for i in ranking[:number]):
            if np.count_nonzero(keep[layer]) > min_channels:
                keep[layer][channel] = False
            else:
                spared[layer] += 1
    return PrunePlan(
        {layer: np.flatnonzero(kept) for layer, kept in keep.items()}, spared
    )


def _equal_shares(values, rate: float) -> dict[str, int]:
    """How many channels each layer gives: whole numbers, by the largest remainder."""
    # 0.29 * 100 is 28.999999999999996, and 29 was meant.
    quotas = {layer: rate * score.size + 1e-9 for layer, score in values.items()}
    shares = {layer: math.floor(quota) for layer, quota in quotas.items()}
    total = math.floor(rate * sum(score.size for score in values.values()) + 1e-9)
    # Rounded, so that equal remainders tie and fall to the earlier layer.
    by_remainder = sorted(
        values, key=lambda layer: round(shares[layer] - quotas[layer], 6)
    )
    for layer in by_remainder[: total - sum(shares.values())]:
        shares[layer] += 1
    return shares


def _check_choices(values, rate, scope, order, min_channels):
    if not 0 <= rate < 1:
        raise InputError(f"rate is {rate}, but must be at least 0 and below 1.")
    if scope not in SCOPES:
        raise InputError(f"scope is {scope!r}, but must be one of {', '.join(SCOPES)}.")
    if order not in ORDERS:
        raise InputError(f"order is {order!r}, but must be one of {', '.join(ORDERS)}.")
    if min_channels < 1:
        raise InputError(
            f"min_channels is {min_channels}, but must be at least 1, as no layer can"
            " be empty."
        )
    for layer, score in values.items():
        if score.ndim != 1 or not score.size:
            raise InputError(
                f"scores of layer {layer!r} have shape {score.shape}, but must be one"
                " number per channel."
            )
        if not np.all(np.isfinite(score)):
            raise InputError(
                f"scores of layer {layer!r} hold {score[~np.isfinite(score)][0]}, but"
                " must be finite; look for a diverged model."
            )


def live_plan(model: nn.Module, variables: Variables) -> PrunePlan:
    """Returns the plan that keeps the channels which are not dead in `variables`.

    `compact(model, variables, live_plan(model, variables))` turns a masked model into
    the compacted one. A layer with no live channel keeps its first.
    """
    keep = {}
    for layer in zoo.layer_names(model):
        norm = variables["params"][layer]["norm"]
        alive = (np.asarray(norm["scale"]) != 0) | (np.asarray(norm["bias"]) != 0)
        keep[layer] = np.flatnonzero(alive) if alive.any() else np.array([0])
    return PrunePlan(keep, {})


def mask(model: nn.Module, variables: Variables, plan: PrunePlan) -> Variables:
    """Kills the channels a plan does not keep; every shape stays as it is.

    Of a dead channel the filter, the norm's scale and bias, and whatever reads it, are
    zero; its running mean is 0 and variance 1. The layers make it stay dead under any
    optimizer, provided that the optimizer's moments are cut too
    (`cut_optimizer_state`) or fresh.
    """
    return _cut_variables(model, variables, plan, mask_tree)


def compact(
    model: nn.Module, variables: Variables, plan: PrunePlan
) -> tuple[nn.Module, Variables]:
    """Removes the channels a plan does not keep.

    Returns:
      A model with fewer channels and its variables: in evaluation the same function as
      the masked ones, and in training the same trajectory. The model's static
      `channels` remember which channels of the uncut network are left.
    """
    return (
        _compacted(model, plan),
        _cut_variables(model, variables, plan, compact_tree),
    )


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
    cuts = _cuts(model, plan)

    def cut_leaf(path, leaf):
        axes = _axes_to_cut(cuts, path, leaf)
        numpy = jnp if isinstance(leaf, Tracer) else np
        result = leaf if numpy is jnp else np.asarray(leaf)
        fill = numpy.asarray(1 if _name(path[-1]) == "var" else 0, leaf.dtype)
        for axis, positions in axes:
            kept = np.zeros(leaf.shape[axis], bool)
            kept[positions] = True
            kept = kept.reshape([-1] + [1] * (-1 - axis))
            result = numpy.where(kept, result, fill)
        return _like(leaf, result) if axes else leaf

    return jax.tree_util.tree_map_with_path(cut_leaf, tree)


def compact_tree(model: nn.Module, plan: PrunePlan, tree: Any) -> Any:
    """Does to any tree shaped like the parameters what `compact` does to them.

    Arguments are those of `mask_tree`.
    """
    cuts = _cuts(model, plan)

    def cut_leaf(path, leaf):
        axes = _axes_to_cut(cuts, path, leaf)
        numpy = jnp if isinstance(leaf, Tracer) else np
        result = leaf if numpy is jnp else np.asarray(leaf)
        for axis, positions in axes:
            result = numpy.take(result, positions, axis=axis)
        return _like(leaf, result) if axes else leaf

    return jax.tree_util.tree_map_with_path(cut_leaf, tree)


class _Cut(NamedTuple):
    shape: tuple[int, int]  # channels the layer reads and writes before the cut
    inputs: np.ndarray  # kept positions among those it reads
    outputs: np.ndarray  # kept positions among those it writes


def _cuts(model, plan) -> dict[str, _Cut]:
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
        _check_kept(layer, np.asarray(keep), wiring if layer in layers else {})
    channels = []
    for layer in layers:
        ids = wiring[layer].outputs
        if layer in plan.keep:
            ids = tuple(ids[position] for position in np.asarray(plan.keep[layer]))
        if len(ids) < wiring[layer].width:
            channels.append((layer, ids))
    return model.clone(channels=tuple(channels))


def _check_kept(layer, keep, wiring):
    if layer not in wiring:
        raise InputError(
            f"plan names layer {layer!r}, which the model has not; make it from scores"
            " of this model."
        )
    size = len(wiring[layer].outputs)
    if keep.ndim != 1 or not keep.size:
        raise InputError(
            f"plan keeps {keep.tolist()} of layer {layer!r}, but must keep a list of at"
            " least one channel."
        )
    if not np.issubdtype(keep.dtype, np.integer):
        raise InputError(
            f"plan keeps channels of type {keep.dtype} in layer {layer!r}, but must"
            " hold integers."
        )
    if keep.min() < 0 or keep.max() >= size:
        outside = keep[(keep < 0) | (keep >= size)][0]
        raise InputError(
            f"plan keeps channel {outside} of layer {layer!r}, which has {size};"
            " channels are positions in the layer as it is."
        )
    if np.any(np.diff(keep) <= 0):
        raise InputError(
            f"plan keeps {keep.tolist()} of layer {layer!r}, but channels must be"
            " increasing; sort them and drop repeats."
        )


def _axes_to_cut(cuts, path, leaf) -> list[tuple[int, np.ndarray]]:
    """Returns the (negative axis, kept positions) a leaf is to be cut along."""
    layer, where = _name(path[0]), jax.tree_util.keystr(path)
    if layer not in cuts:
        raise InputError(
            f"tree holds {where}, which is no layer of the model; pass parameters, or"
            " a tree shaped like them."
        )
    if not getattr(leaf, "ndim", 0):
        return []
    shape, inputs, outputs = cuts[layer]
    axes = [(-2, inputs), (-1, outputs)]
    if _name(path[-1]) != "kernel":
        axes, shape = axes[1:], shape[1:]
    if leaf.shape[-len(shape) :] != shape:
        raise InputError(
            f"{where} has shape {leaf.shape}, but its last axes must be {shape} for"
            " this model; start that state afresh after the cut."
        )
    return [(axis, kept) for axis, kept in axes if len(kept) < leaf.shape[axis]]


def _name(key) -> str:
    return str(getattr(key, "key", getattr(key, "name", key)))


def _like(leaf, result):
    # Cut on the host, where a hundred different shapes need no compilation, and sent
    # back to wherever the leaf was.
    if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
        return result
    return jax.device_put(result, leaf.sharding)


def cut_optimizer_state(
    model: nn.Module, plan: PrunePlan, opt_state: Any, how: str = "mask"
) -> Any:
    """Cuts the moments inside any optax state as the parameters were cut.

    Every mapping in the state with the model's layers as its keys is cut; counters and
    hyperparameters pass. A state that keeps parameters in another shape is refused.

    Args:
      model: the model before the cut.
      plan: the channels to keep.
      opt_state: state of an optax optimizer of the uncut parameters.
      how: "mask" or "compact".
    """
    cutters = {"mask": mask_tree, "compact": compact_tree}
    if how not in cutters:
        raise InputError(f"how is {how!r}, but must be one of {', '.join(cutters)}.")
    layers = set(model.wiring())
    size = sum(cost.parameters for cost in layer_costs(model).values())
    _compacted(model, plan)

    def is_parameters(node):
        return isinstance(node, Mapping) and set(node) == layers

    def cut_node(node):
        if is_parameters(node):
            return cutters[how](model, plan, node)
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
    """Returns what a plan does to each layer and, in the last row, to the whole.

    Channels of the total are those of the convolutions, which a plan can cut.

    Args:
      model: the model the plan is for.
      plan: the channels to keep.
      input_shape: (H, W, C) of an image; None for the one the model was made for.
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
    total = LayerReport(
        "total",
        sum(row.channels_before for row in prunable),
        sum(row.channels_after for row in prunable),
        sum(plan.spared.values()),
        *(sum(int(row[field]) for row in rows) for field in range(4, 8)),
    )
    return [*rows, total]


def explain(
    model: nn.Module,
    plan: PrunePlan,
    input_shape: tuple[int, int, int] | None = None,
) -> str:
    """Returns `plan_report` as a plain-text table, one line per layer."""
    rows = plan_report(model, plan, input_shape)
    width = max(len(row.layer) for row in rows)
    lines = [
        f"{'layer':<{width}} {'channels':>13} {'spared':>6} {'parameters':>23}"
        f" {'FLOPs an image':>27}"
    ]
    for row in rows:
        lines.append(
            f"{row.layer:<{width}}"
            f" {row.channels_before:>5} > {row.channels_after:>5}"
            f" {row.spared:>6}"
            f" {row.parameters_before:>10,} > {row.parameters_after:>10,}"
            f" {row.flops_before:>12,} > {row.flops_after:>12,}"
        )
    return "\n".join(lines)
