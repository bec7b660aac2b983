"""FedAvg rounds of fuprune and its peers, interleaved in one run, as one table.

Every contender is a process in its own environment (`setup.sh` makes them) that trains
the same network on the same clients. The benchmark asks each in turn for one round,
several times over, and takes medians.

    python benchmarks/round_throughput.py              # about 10 minutes
"""

import argparse
import contextlib
import os
import pathlib
import platform
import statistics
import sys
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import protocol  # noqa: E402
import report as reports  # noqa: E402
import workload  # noqa: E402

PEERS = ROOT / ".bench"
OURS = "fuprune_rounds.py"
PYTORCH = "pytorch_loop.py"
HALF = "--dtype=bfloat16"


class Entry(NamedTuple):
    """A contender to be."""

    name: str
    environment: str  # "" for ours, else a folder of .bench/
    script: str
    flags: tuple[str, ...] = ()


ENTRIES = (
    Entry("fuprune, bfloat16", "", OURS, (HALF,)),
    Entry("PyTorch NHWC, bfloat16", "pytorch", PYTORCH, (HALF,)),
    Entry("fuprune", "", OURS),
    Entry("PyTorch NHWC", "pytorch", PYTORCH),
    Entry("PyTorch NCHW", "pytorch", PYTORCH, ("--memory-format=contiguous_format",)),
    Entry("Flower, PyTorch client", "pytorch", "flower_rounds.py"),
    Entry("Flower, JAX client", "pytorch", "flower_rounds.py", ("--framework=jax",)),
)


def main(arguments=None):
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=["resnet20", "vgg11"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="contenders whose name holds one")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--images", type=int, default=64, help="per client")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=32, help="pixels per side")
    options = parser.parse_args(arguments)
    shape = ("clients", "images", "batch_size", "size", "repeats")
    found = {
        "date": reports.now(),
        "machine": reports.machine(),
        "workload": {name: getattr(options, name) for name in shape},
        "versions": {"python": platform.python_version()},
        "absent": [],
        "rows": [],
    }
    for net in options.nets:
        measure(net, options, found)
    print(table(found))
    reports.write("round_throughput", found, table(found))
    return found


def measure(net: str, options, found: dict) -> None:
    """Add one network's rows, its missing contenders, and versions to a report."""
    work = workload.Workload(
        net, options.clients, options.images, options.batch_size, options.size
    )
    started = []
    with contextlib.ExitStack() as stack:
        for entry in ENTRIES:
            if options.only and not any(part in entry.name for part in options.only):
                continue
            python = sys.executable
            if entry.environment:
                python = str(PEERS / entry.environment / "bin" / "python")
            if not pathlib.Path(python).exists():
                found["absent"].append(f"{entry.name}: run benchmarks/setup.sh first")
                continue
            title = f"{net} {entry.name}"
            contender = protocol.Contender(
                title,
                [
                    python,
                    str(HERE / "peers" / entry.script),
                    *work.flags(),
                    *entry.flags,
                ],
                PEERS / "logs" / f"{title.replace(' ', '-')}.log",
                {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE / 'peers'}"},
            )
            stack.callback(contender.close)
            try:
                # One after the other, because compilation takes all cores.
                found["versions"] |= contender.answer()["versions"]
            except protocol.ContenderError as error:
                found["absent"].append(str(error))
                continue
            started.append((entry.name, contender, []))
        for _ in range(options.repeats):
            for _, contender, seconds in started:
                seconds.append(contender.round()["seconds"])
    images = work.images_per_round
    found["rows"] += [
        {
            "name": name,
            "net": net,
            "images_per_second": images / statistics.median(seconds),
            "seconds": seconds,
        }
        for name, _, seconds in started
    ]


def table(found: dict) -> str:
    """Images per second, with the ratio to PyTorch's best and the spread."""
    nets = list(dict.fromkeys(row["net"] for row in found["rows"]))
    cells: dict[str, dict[str, str]] = {}
    for net in nets:
        rows = [row for row in found["rows"] if row["net"] == net]
        rates = {row["name"]: row["images_per_second"] for row in rows}
        best = max((rates[n] for n in rates if n.startswith("PyTorch")), default=None)
        for row in rows:
            spread = max(row["seconds"]) / min(row["seconds"]) - 1
            ratio = f", {rates[row['name']] / best:.2f}x" if best else ""
            cells.setdefault(row["name"], {})[net] = (
                f"{rates[row['name']]:,.0f}{ratio} (±{spread / 2:.0%})"
            )
    work = found["workload"]
    versions = ", ".join(f"{k} {v}" for k, v in sorted(found["versions"].items()))
    lines = [
        f"{reports.described(found)}; {work['clients']} clients of {work['images']}"
        f" images, batches of {work['batch_size']}, medians of {work['repeats']}"
        f" rounds; {versions}.",
        "",
        f"| images/s, ratio to the best PyTorch | {' | '.join(nets)} |",
        "|---|" + "---:|" * len(nets),
    ]
    for name, by_net in cells.items():
        shown = " | ".join(by_net.get(net, "-") for net in nets)
        lines.append(f"| {name} | {shown} |")
    lines += [f"\nNot measured: {reason}." for reason in found["absent"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
