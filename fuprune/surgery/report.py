"""What a plan does to a network that is cut by tracing: sizes, work, and reasons."""

import math
from collections import Counter
from typing import Any

from fuprune.models.cost import LayerCost
from fuprune.surgery import cutting
from fuprune.surgery.findings import Findings
from fuprune.surgery.plan import LayerReport, PrunePlan, report_rows


def plan_report(
    model: Any, variables: Any, plan: PrunePlan, *, example: Any = None
) -> list[LayerReport]:
    """`surgery.plan_report`, by tracing.

    A layer's parameters are those of its kernel, and its FLOPs those of its products on
    one image. The total counts all parameters, the products of all layers, and the
    channels of the convolutions and of those dense layers that the plan names.
    """
    return _report(model, variables, plan, example)[0]


def _report(model, variables, plan, example) -> tuple[list[LayerReport], Findings, int]:
    """The rows, what is found out about the cut network, and the batch's size."""
    before = cutting.trace_network(model, variables, example).program
    batch, costs, parameters = before.arguments[0].shape[0], [], []
    for program in (before, cutting.carry_out(before, plan)):
        _, findings = program.examine()
        layers = cutting.layers_of(program, findings)
        shapes = {path: program.stored(path).shape for path in program.shapes}
        trained = [shape for path, shape in shapes.items() if path[0] == "params"]
        parameters.append(sum(map(math.prod, trained)))
        cost = {}
        for name, layer in layers.items():
            weights = math.prod(shapes[layer.path])
            outputs = findings.products[layer.path].outputs.data
            # Multiplications per output entry: the kernel without its output axis. Each
            # counts two FLOPs.
            flops = 2 * (weights // layer.channels) * math.prod(outputs.shape) // batch
            cost[name] = LayerCost(weights, flops, layer.channels)
        costs.append(cost)
    cuttable = [n for n in layers if layers[n].kind == "convolution" or n in plan.keep]
    return report_rows(plan, costs, cuttable, parameters), findings, batch


def explain(model: Any, variables: Any, plan: PrunePlan, *, example: Any = None) -> str:
    """Returns in words what a plan cuts of each layer, and what runs whole and why.

    A primitive runs whole if it has no rule, or its rule does not cover the case. Its
    cost are the FLOPs, its own and those of what is computed from its result until a
    cut parameter meets it, that fall on entries which had to be filled in.
    """
    rows, findings, batch = _report(model, variables, plan, example)
    width = max(len(row.layer) for row in rows)
    lines = [
        f"{row.layer:<{width}}  channels {row.channels_before} -> {row.channels_after},"
        f" parameters {row.parameters_before:,} -> {row.parameters_after:,},"
        f" FLOPs {row.flops_before:,} -> {row.flops_after:,}"
        for row in rows
    ]
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
