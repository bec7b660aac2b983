"""Writes the measured tables of README.md from results/*.json.

A table stands between `<!-- name -->` and `<!-- end of name -->`; what is outside is
written by hand. A result that has not been measured leaves a line that says so.

    python benchmarks/tables.py
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import bfloat16_accuracy  # noqa: E402
import growth  # noqa: E402
import roofline  # noqa: E402
import round_throughput  # noqa: E402
from scaling_model import fill_between  # noqa: E402

README = HERE / "README.md"


def main():
    """Rewrite the tables in place."""
    README.write_text(filled(README.read_text()))


def filled(text: str, results: pathlib.Path = HERE / "results") -> str:
    """The page with every table made from the results in a folder."""

    def body(name):
        path = results / f"{name}.json"
        if not path.exists():
            return f"Not measured yet: there is no `results/{name}.json`."
        return TABLES[name](json.loads(path.read_text()))

    return fill_between(text, body)


def overhead_table(report):
    """What a round costs besides arithmetic."""

    def line(section, row):
        machine = section["machine"]
        load = max(machine["load_before"], machine["load_after"])
        return (
            f"| {row['name']} | {row['value']:.3g} | {row['target']} |"
            f" {verdict(row)} | {section['date']}, {load:.1f} |"
        )

    sections = report["sections"].values()
    rows = [line(section, row) for section in sections for row in section["rows"]]
    head = ["| | measured | target | | when, load |", "|---|---:|---:|---|---|"]
    return "\n".join([*head, *rows])


def capture_table(report):
    """Scoring against two rounds."""
    return written(
        when(report),
        "| | scoring, s | two FedAvg rounds, s | ratio | first call | target | |",
        "|---|---:|---:|---:|---:|---:|---|",
        (
            f"| {row['net']} | {row['scoring_seconds']:.2f} |"
            f" {row['two_rounds_seconds']:.2f} | {row['ratio']:.2f} |"
            f" {row['first_ratio']:.2f} | {row['target']} | {verdict(row)} |"
            for row in report["rows"]
        ),
    )


def accelerator_table(report):
    """Estimated cycles of a cohort's step."""

    def order(row):
        return row["topology"], row["net"], row["cycles"]

    def line(row):
        ratio = f"{row['ratio']:.2f}x" if row["ratio"] else "-"
        return (
            f"| {row['topology'].split(':')[0]} | {row['form']} | {row['net']} |"
            f" {row['dtype']} | {row['cycles'] / 1e6:.1f}M | {ratio} |"
            f" {row['bytes'] / 1e6:.0f} |"
        )

    rounds = written(
        f"Compiled {report['date']}, jax {report['versions']['jax']}. Estimates, not"
        " measurements.",
        "| TPU | form | net | type | cycles, estimated | to the floor | memory, MB |",
        "|---|---|---|---|---:|---:|---:|",
        map(line, sorted(report["rows"], key=order)),
    )
    return f"{rounds}\n\n{accelerator_convolutions(report)}"


def accelerator_convolutions(report):
    """Estimated cycles of single convolutions, by type."""
    given = report.get("convolutions", {})
    kinds = ("float32 default", "float32 highest", "bfloat16 default")

    def line(topology, row):
        cycles = [f"{row['cycles'][kind] / 1e3:.0f}k" for kind in kinds]
        pixels = f"{row['side']}x{row['side']}"
        return (
            f"| {topology.split(':')[0]} | {row['channels']}, {pixels} |"
            f" {' | '.join(cycles)} |"
        )

    return written(
        "One 3x3 convolution of 256 images, cycles estimated:",
        "| TPU | channels, pixels | float32 | float32, `highest` | bfloat16 |",
        "|---|---|---:|---:|---:|",
        [line(name, row) for name in sorted(given) for row in given[name]],
    )


def gpu_table(report):
    """The least time of a cohort's step, and what it consists of."""

    def order(row):
        return row["device"], row["net"], row["dtype"] != "float32", row["seconds"]

    def line(row):
        grouped = sum(
            number for kind, number in row["kinds"].items() if kind.endswith("grouped")
        )
        return (
            f"| {row['device'].upper()} | {row['form']} | {row['net']} |"
            f" {row['dtype']} | {1e3 * row['seconds']:.1f} | {row['kernels']:.0f} |"
            f" {grouped:.0f} | {row['gflop']:.0f} | {row['gigabytes']:.1f} |"
            f" {row['memory_bytes'] / 1e6:.0f} |"
        )

    return written(
        f"Compiled {report['date']}, jax {report['versions']['jax']}; a kernel takes at"
        f" least {1e6 * report['launch_seconds']:.0f} \N{MICRO SIGN}s. Rooflines, not"
        " measurements.",
        "| GPU | form | net | type | at best, ms | kernels | grouped convolutions |"
        " GFLOP | GB moved | memory, MB |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|",
        map(line, sorted(report["rows"], key=order)),
    )


def prune_table(report):
    """Compacted against masked training steps."""
    return written(
        f"Load of the machine: {report['machine']['load']:.1f}.",
        "| | conv | masked, ms | compacted, ms | time | FLOPs |",
        "|---|---|---:|---:|---:|---:|",
        (
            f"| {row['model']} | {row['conv']} | {1e3 * row['masked_seconds']:.1f} |"
            f" {1e3 * row['compacted_seconds']:.1f} | {row['time_ratio']:.2f}x |"
            f" {row['flops_ratio']:.2f}x |"
            for row in report["rows"]
        ),
    )


def traced_table(report):
    """Networks cut by tracing against the same widths written by hand."""
    targets, machine = report["targets"], report["machine"]

    def line(row):
        ratio = row.get("time_ratio")
        shown = f"{ratio:.3f}x" if ratio else "-"
        met = "" if ratio is None or ratio <= targets["time"] else " (**missed**)"
        return (
            f"| {row['model']} | {row['against']} | {row['what']} |"
            f" {row['flops_ratio']:.3f}x | {shown}{met} |"
        )

    table = written(
        f"{report['date']}, {machine['cores']} cores, load {machine['load']:.1f}, jax"
        f" {machine['jax']}; targets: FLOPs {targets['flops']}x, time"
        f" {targets['time']}x.",
        "| | against | what | FLOPs | processor time |",
        "|---|---|---|---:|---:|",
        map(line, report["rows"]),
    )
    seconds = report["resnet50_seconds"]
    return (
        f"{table}\n\nResNet50 is traced and cut in {seconds:.1f} s of processor time."
    )


def any_table(report):
    """The rows of a report whose columns are not known here: its plain numbers."""
    rows = report["rows"] if isinstance(report, dict) else report
    plain = (str, int, float, bool)
    columns = [k for k, v in rows[0].items() if isinstance(v, plain)]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        cells = [f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def federation_table(report):
    """What one message costs a client, in CPU seconds."""
    return written(
        when(report),
        "| answer | CPU s | lowest |",
        "|---|---:|---:|",
        (
            f"| {row['answer']} | {row['cpu_seconds']:.2f} | {row['lowest']:.2f} |"
            for row in report["rows"]
        ),
    )


def written(about, head, rule, rows):
    """A sentence, and under it a table."""
    return "\n".join([about, "", head, rule, *rows])


def when(report):
    """Date, machine and how busy it was."""
    machine = report["machine"]
    return (
        f"{report['date']}, {machine['cores']} cores of {machine['cpu']}, load"
        f" {machine['load_before']:.1f} before and {machine['load_after']:.1f} after."
    )


def verdict(row):
    """Whether a row's target was met."""
    return "met" if row["met"] else "**missed**"


TABLES = {
    "round_throughput": round_throughput.table,
    "round_throughput_backends": round_throughput.table,
    "round_throughput_bfloat16": round_throughput.table,
    "host_overhead": overhead_table,
    "capture": capture_table,
    "accelerator_estimate": accelerator_table,
    "growth": growth.table,
    "roofline": roofline.table,
    "gpu_estimate": gpu_table,
    "bfloat16_accuracy": bfloat16_accuracy.table,
    "prune_speed": prune_table,
    "traced_speed": traced_table,
    "convolution": any_table,
    "fisher": any_table,
    "scaling": any_table,
    "federation": federation_table,
}


if __name__ == "__main__":
    main()
