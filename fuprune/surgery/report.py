"""What a plan does to a network that is cut by tracing: sizes, work, and reasons."""

from collections import Counter
from typing import Any

import numpy as np

from fuprune.models.adapt import Variables
from fuprune.surgery import cutting, trace
from fuprune.surgery.plan import LayerReport, PrunePlan, total_report
from fuprune.surgery.slim import numbered


def plan_report(
    network: Any, variables: Variables, plan: PrunePlan, *, example: Any = None
) -> list[LayerReport]:
    """`surgery.plan_report`, by tracing.

    A layer's parameters are those of its kernel, and its FLOPs those of its products on
    one image. The total counts all parameters, the products of all layers, and the
    channels of the convolutions and of those dense layers that the plan names.
    """
    program, before = cutting.program_of(network, variables, example)
    small, _ = cutting.plan_cuts(network, variables, plan, example)
    after = numbered(small.cuts, program.paths)
    layers = cutting.layers_of(program, before)
    flops = [_layer_flops(program, cuts) for cuts in (before, after)]
    sizes = [[_size(program, leaf, cuts) for leaf in range(len(program.paths))]
             for cuts in (before, after)]  # fmt: skip
    rows = [
        LayerReport(
            name,
            layer.channels,
            len(after.get(layer.pair, range(layer.channels))),
            plan.spared.get(name, 0),
            sizes[0][layer.leaf],
            sizes[1][layer.leaf],
            flops[0][layer.leaf],
            flops[1][layer.leaf],
        )
        for name, layer in layers.items()
    ]
    trained = [i for i, path in enumerate(program.paths) if path[0] == "params"]
    cuttable = [
        row
        for row in rows
        if layers[row.layer].kind == "convolution" or row.layer in plan.keep
    ]
    parameters = [sum(size[i] for i in trained) for size in sizes]
    operations = [sum(numbers.values()) for numbers in flops]
    return [*rows, total_report(plan, cuttable, *parameters, *operations)]


def _size(program, leaf, cuts) -> int:
    return int(np.prod(trace.cut_shape(program.shapes[leaf], leaf, cuts).shape))


def _layer_flops(program, cuts) -> dict[int, int]:
    """FLOPs of each layer's product on one image, two per multiply-add, by leaf."""
    _, findings = trace.examine(program, cuts)
    batch = program.jaxpr.jaxpr.invars[len(program.shapes)].aval.shape[0]
    flops = {}
    for leaf, (axis, _) in findings.layers.items():
        held, _ = findings.outputs[leaf]
        kernel = trace.cut_shape(program.shapes[leaf], leaf, cuts).shape
        # Multiplications per output entry: the kernel without its output axis.
        each = int(np.prod(kernel)) // kernel[axis]
        flops[leaf] = 2 * each * int(np.prod(held.data.shape)) // batch
    return flops


def explain(
    network: Any, variables: Variables, plan: PrunePlan, *, example: Any = None
) -> str:
    """Returns, in plain text, what was cut from each layer, and what runs whole.

    A primitive runs whole if it has no rule, or its rule does not cover the case. Its
    cost are the FLOPs, its own and those of what is computed from its result until a
    cut parameter meets it, that fall on entries which had to be filled in.
    """
    rows = plan_report(network, variables, plan, example=example)
    width = max(len(row.layer) for row in rows)
    lines = [
        f"{row.layer:<{width}}  channels {row.channels_before} -> {row.channels_after},"
        f" parameters {row.parameters_before:,} -> {row.parameters_after:,},"
        f" FLOPs {row.flops_before:,} -> {row.flops_after:,}"
        for row in rows
    ]
    small, cut = cutting.compact(network, variables, plan, example=example)
    program, cuts = cutting.program_of(small, cut, example)
    _, findings = trace.examine(program, cuts)
    batch = program.jaxpr.jaxpr.invars[len(program.shapes)].aval.shape[0]
    if not findings.whole:
        return "\n".join([*lines, "no primitive runs whole"])
    entries: Counter = Counter()
    cost: Counter = Counter()
    for item in findings.whole:
        place = (item.primitive, item.reason, item.source)
        entries[place] += item.entries // batch
        cost[place] += item.cost // batch
    for place, filled in entries.items():
        primitive, reason, source = place
        lines.append(
            f"{primitive} runs whole at {source}: {reason}; {filled:,} entries per"
            f" image are filled in, which costs about {cost[place]:,} FLOPs"
        )
    total = sum(cost.values())
    lines.append(
        f"in all about {total:,} FLOPs per image, {total / rows[-1].flops_after:.1%} of"
        " the layers that are left, are spent on entries that were filled in"
    )
    return "\n".join(lines)
