"""What a plan does to a network that is cut by tracing: sizes, work, and reasons."""

import math
from collections import Counter
from typing import Any

from fuprune.surgery import cutting
from fuprune.surgery.findings import Findings
from fuprune.surgery.plan import LayerCost, LayerReport, PrunePlan, report_rows
from fuprune.surgery.trace import Program


def examine_plan(
    model: Any, variables: Any, plan: PrunePlan, example: Any = None
) -> tuple[list[LayerReport], Findings, Program]:
    """`surgery.plan_report`, what is found out about the cut network, and that."""
    before = cutting.trace_network(model, variables, example).program
    batch, costs, parameters = before.arguments[0].shape[0], [], []
    inner: list[int] = []
    for program in (before, cutting.carry_out(before, plan)):
        _, findings = program.examine()
        layers = cutting.layers_of(program, findings)
        sizes = {path: math.prod(x.shape) for path, x in program.stored().items()}
        parameters.append(sum(sizes[path] for path in sizes if path[0] == "params"))
        cost = {}
        for name, layer in layers.items():
            work = findings.products[layer.path].work // batch
            cost[name] = LayerCost(sizes[layer.path], work, layer.channels)
        costs.append(cost)
        inner.append(findings.inner_work // batch)
    cuttable = [n for n in layers if layers[n].kind == "convolution" or n in plan.keep]
    *rows, total = report_rows(plan, costs, cuttable, parameters)
    total = total._replace(
        flops_before=total.flops_before + inner[0],
        flops_after=total.flops_after + inner[1],
    )
    return [*rows, total], findings, program


def explain(model: Any, variables: Any, plan: PrunePlan, *, example: Any = None) -> str:
    """Returns in words what a plan cuts of each layer, and what runs whole and why.

    A primitive runs whole if it has no rule, or its rule does not cover the case. Its
    cost are the FLOPs, its own and those of what is computed from its result until a
    cut parameter meets it, that fall on entries which had to be filled in.
    """
    rows, findings, program = examine_plan(model, variables, plan, example)
    batch = program.arguments[0].shape[0]
    width = max(len(row.layer) for row in rows)
    lines = [
        f"{row.layer:<{width}}  channels {row.channels_before} -> {row.channels_after},"
        f" parameters {row.parameters_before:,} -> {row.parameters_after:,},"
        f" FLOPs {row.flops_before:,} -> {row.flops_after:,}"
        for row in rows
    ]
    lines += [
        f"{name} has no entry per image, so that no class has a score there; it is not"
        " offered"
        for name, layer in cutting.layers_of(program, findings).items()
        if not cutting.reads_images(program, findings.products[layer.path])
    ]
    lines += [
        f"{'/'.join(path[1:])} is used in ways that disagree on which axis its output"
        " channels lie; it is not offered"
        for path in findings.disagree
    ]
    if findings.inner_work:
        lines.append(
            f"about {findings.inner_work // batch:,} FLOPs per image are inside loops"
            " or branches, whose layers are not found and stay whole"
        )
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
