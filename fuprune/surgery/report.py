"""What a plan does to a network that is cut by tracing: sizes, work, and reasons."""

import math
from collections import Counter
from typing import Any

from fuprune.models.adapt import Variables
from fuprune.models.cost import LayerCost
from fuprune.surgery import cutting, trace
from fuprune.surgery.findings import Findings
from fuprune.surgery.plan import LayerReport, PrunePlan, report_rows


def plan_report(
    network: Any, variables: Variables, plan: PrunePlan, *, example: Any = None
) -> list[LayerReport]:
    """`surgery.plan_report`, by tracing.

    A layer's parameters are those of its kernel, and its FLOPs those of its products on
    one image. The total counts all parameters, the products of all layers, and the
    channels of the convolutions and of those dense layers that the plan names.
    """
    return _report(network, variables, plan, example)[0]


def _report(
    network, variables, plan, example
) -> tuple[list[LayerReport], Findings, int]:
    """The rows, what is found out about the cut network, and the batch's size."""
    program, before = cutting.program_of(network, variables, example)
    after = cutting.plan_cuts(network, variables, plan, example).network.kept()
    batch, costs, parameters = program.arguments[0].shape[0], [], []
    for cuts in (before, after):
        _, findings = trace.examine(program, cuts)
        shapes = {
            path: trace.cut_shape(program, cuts, path).shape for path in program.shapes
        }
        trained = [shape for path, shape in shapes.items() if path[0] == "params"]
        parameters.append(sum(map(math.prod, trained)))
        costs.append(
            {
                cutting.layer_name(path): _layer_cost(
                    shapes[path], axis, findings.outputs[path][0].data.shape, batch
                )
                for path, (axis, _) in findings.layers.items()
            }
        )
    kinds = {cutting.layer_name(p): kind for p, (_, kind) in findings.layers.items()}
    cuttable = [n for n in kinds if kinds[n] == "convolution" or n in plan.keep]
    return report_rows(plan, costs, cuttable, parameters), findings, batch


def _layer_cost(kernel, axis, output, batch) -> LayerCost:
    # Multiplications per output entry: the kernel without its output axis. Each counts
    # two FLOPs.
    each = math.prod(kernel) // kernel[axis]
    flops = 2 * each * math.prod(output) // batch
    return LayerCost(math.prod(kernel), flops, kernel[axis])


def explain(
    network: Any, variables: Variables, plan: PrunePlan, *, example: Any = None
) -> str:
    """Returns, in plain text, what was cut from each layer, and what runs whole.

    A primitive runs whole if it has no rule, or its rule does not cover the case. Its
    cost are the FLOPs, its own and those of what is computed from its result until a
    cut parameter meets it, that fall on entries which had to be filled in.
    """
    rows, findings, batch = _report(network, variables, plan, example)
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
