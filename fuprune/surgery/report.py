"""What a plan does to a network that is cut by tracing: sizes, work, and reasons."""

import math
from collections import Counter
from typing import Any, NamedTuple

from fuprune.surgery import cutting
from fuprune.surgery.findings import Findings
from fuprune.surgery.plan import PrunePlan
from fuprune.surgery.trace import Program


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


def examine_plan(
    model: Any, variables: Any, plan: PrunePlan, example: Any = None
) -> tuple[list[LayerReport], Findings, Program]:
    """`surgery.plan_report`, what is found out about the cut network, and that."""
    before = cutting.trace_network(model, variables, example).program
    after = cutting.carry_out(before, plan)
    columns, sums = [], []
    for program in (before, after):
        _, findings = program.examine()
        batch = program.arguments[0].shape[0]
        sizes = {path: math.prod(x.shape) for path, x in program.stored().items()}
        layers = cutting.layers_of(program, findings)
        work = {n: findings.products[x.path].work // batch for n, x in layers.items()}
        columns.append(
            {n: (x.channels, sizes[x.path], work[n]) for n, x in layers.items()}
        )
        sums.append(
            (
                sum(
                    layer.channels
                    for name, layer in layers.items()
                    if layer.kind == "convolution" or name in plan.keep
                ),
                sum(size for path, size in sizes.items() if path[0] == "params"),
                sum(work.values()) + findings.inner_work // batch,
            )
        )

    def row(name, spared, old, new):
        (channels, *rest), (channels_left, *rest_left) = old, new
        pairs = zip(rest, rest_left, strict=True)
        numbers = (number for pair in pairs for number in pair)
        return LayerReport(name, channels, channels_left, spared, *numbers)

    old, new = columns
    rows = [row(name, plan.spared.get(name, 0), old[name], new[name]) for name in old]
    total = row("total", sum(plan.spared.values()), *sums)
    return [*rows, total], findings, after


def explain(model: Any, variables: Any, plan: PrunePlan, *, example: Any = None) -> str:
    """Returns in words what a plan cuts of each layer, and what runs whole and why.

    A primitive runs whole if it has no rule, or its rule does not cover the case.
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
    filled: Counter = Counter()
    for item in findings.whole:
        place = f"{item.primitive} runs whole at {item.source}: {item.reason}"
        filled[place] += item.entries // batch
    lines += [
        f"{place}; {entries:,} entries per image are filled in"
        for place, entries in filled.items()
    ]
    return "\n".join(lines if filled else [*lines, "no primitive runs whole"])
