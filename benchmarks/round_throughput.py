"""FedAvg rounds of fuprune and its peers, interleaved in one run, as one table.

Every contender is a process in its own environment (`setup.sh` makes them) that trains
the same network on the same clients; the benchmark asks each in turn for one round,
several times over, and takes medians. A contender too slow for a whole cohort is given
fewer clients: cost is linear in them, and the table says so.

    python benchmarks/round_throughput.py              # everything, about 25 minutes
    python benchmarks/round_throughput.py --smoke      # a few seconds, ours only
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import statistics
import sys
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "peers")]

import protocol  # noqa: E402
import workload  # noqa: E402

RESULTS = HERE / "results" / "round_throughput.json"
PEERS = ROOT / ".bench"
BACKENDS = ("loop", "map", "vmap", "shard_map")
# Clients measured where a round of 25 would take minutes: XLA's convolutions in loops.
FEWER_CLIENTS = {"map xla": 1, "shard_map xla": 2, "vmap xla": 4}
HALF = "--dtype=bfloat16"


class Entry(NamedTuple):
    """A contender to be."""

    name: str
    environment: str  # "" for ours, else a folder of .bench/
    script: str
    flags: tuple[str, ...] = ()
    clients: int | None = None  # None for all of them
    net_suffix: str = ""  # " without norm" where the network is another


def entries(flops: float) -> list[Entry]:
    """Every contender, the matrix product first."""
    ours = "fuprune_rounds.py"
    result = [
        Entry("matrix product", "pytorch", "gemm.py", (f"--flops={flops}",)),
        Entry("fuprune auto", "", ours),
    ]
    for layout, name in (("contiguous_format", "NCHW"), ("channels_last", "NHWC")):
        flag = f"--memory-format={layout}"
        result.append(Entry(f"PyTorch {name}", "pytorch", "pytorch_loop.py", (flag,)))
    # PyTorch's bfloat16 takes minutes, too, where the processor does not multiply it.
    few = None if "avx512_bf16" in processor_flags() else 1
    result += [
        Entry("fuprune auto bfloat16", "", ours, (HALF,)),
        Entry("PyTorch NHWC bfloat16", "pytorch", "pytorch_loop.py", (HALF,), few),
    ]
    for framework, name in (("pytorch", "PyTorch"), ("jax", "JAX")):
        flag = f"--framework={framework}"
        result.append(Entry(f"Flower {name}", "pytorch", "flower_rounds.py", (flag,)))
    for conv in ("onednn", "xla"):
        for backend in BACKENDS:
            flags = (f"--backend={backend}", f"--conv={conv}")
            clients = FEWER_CLIENTS.get(f"{backend} {conv}")
            name = f"fuprune {backend} {conv}"
            result.append(Entry(name, "", ours, flags, clients))
    plain = " without norm"
    result += [
        Entry("FedJAX", "fedjax", "fedjax_rounds.py", (), None, plain),
        Entry("fuprune auto", "", ours, ("--norm=none",), None, plain),
        Entry("fuprune loop xla", "", ours, _plain_loop(), None, plain),
    ]
    return result


def _plain_loop():
    return ("--norm=none", "--backend=loop", "--conv=xla")


def main(arguments=None):
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=["resnet20", "vgg11"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="contenders whose name holds one")
    parser.add_argument("--clients", type=int, default=25)
    parser.add_argument("--images", type=int, default=128, help="of each client")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=32, help="pixels of a side")
    parser.add_argument("--slow-repeats", type=int, default=1, help="of the slow ones")
    parser.add_argument("--smoke", action="store_true", help="tiny, only `auto`")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.smoke:
        options.nets, options.only = ["vgg11"], ["fuprune auto"]
        options.clients, options.images, options.batch_size = 3, 4, 2
        options.size, options.repeats = 8, 1
    report = {"runs": [], "rows": []}
    if options.output.exists():
        report = json.loads(options.output.read_text())
    for net in options.nets:
        run = {
            "net": net,
            "date": now(),
            "machine": machine(),
            "workload": {
                name: getattr(options, name)
                for name in ("clients", "images", "batch_size", "size", "repeats")
            },
        }
        rows, run["absent"], run["versions"] = measure(net, options)
        run["machine"]["load_after"] = os.getloadavg()[0]
        # A network measured on its own leaves the others' rows as they are.
        report = {
            "runs": [old for old in report["runs"] if old["net"] != net] + [run],
            "rows": [r for r in report["rows"] if r["net"].split()[0] != net] + rows,
        }
        write_report(options.output, report)
    print(table(report))
    return report


def now() -> str:
    """When something was measured, as every report says it."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def write_report(path: pathlib.Path, report) -> None:
    """Writes what a benchmark found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def machine() -> dict:
    """What this runs on, and how busy it is."""
    model = _cpuinfo("model name") or platform.processor()
    cores = len(os.sched_getaffinity(0))
    return {"cpu": model, "cores": cores, "load_before": os.getloadavg()[0]}


def processor_flags() -> list[str]:
    """The instruction sets of this processor, by Linux's names."""
    return _cpuinfo("flags").split()


def _cpuinfo(field: str) -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(field):
                return line.split(":", 1)[1].strip()
    return ""


def measure(net: str, options) -> tuple[list[dict], list[str], dict]:
    """Rows of one network, contenders that are not installed, and versions."""
    flops = training_flops(net, options.size)
    whole = workload.Workload(
        net, options.clients, options.images, options.batch_size, options.size
    )
    chosen = [
        entry
        for entry in entries(flops)
        if not options.only or any(part in entry.name for part in options.only)
        if not (options.smoke and entry.net_suffix)
    ]
    started, absent = [], []
    versions = {"python": platform.python_version()}
    with contextlib.ExitStack() as stack:
        for entry in chosen:
            python = sys.executable
            if entry.environment:
                python = str(PEERS / entry.environment / "bin" / "python")
            if not pathlib.Path(python).exists():
                absent.append(f"{entry.name}: run benchmarks/setup.sh first")
                continue
            clients = min(entry.clients or whole.clients, whole.clients)
            work = whole._replace(clients=clients)
            title = f"{net}{entry.net_suffix} {entry.name}"
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
                facts = contender.answer()  # one at a time, so that none disturbs
            except protocol.ContenderError as error:
                absent.append(str(error))
                continue
            versions |= facts["versions"]
            started.append((entry, work, contender, facts, []))
            print(f"{title}: ready", file=sys.stderr, flush=True)
        for repeat in range(options.repeats):
            for entry, _, contender, _, answers in started:
                if not entry.clients or repeat < options.slow_repeats:
                    answers.append(contender.round())
            print(f"{net}: repetition {repeat + 1}", file=sys.stderr, flush=True)
    rows = []
    for entry, work, _, facts, answers in started:
        seconds = [answer["seconds"] for answer in answers]
        busy = [answer["cpu_seconds"] for answer in answers if "cpu_seconds" in answer]
        rows.append(
            {
                "name": entry.name,
                "net": net + entry.net_suffix,
                "images_per_second": work.images_per_round / statistics.median(seconds),
                "ratio": None,
                "images_per_core_second": (
                    work.images_per_round / statistics.median(busy) if busy else None
                ),
                "clients": work.clients,
                "seconds": seconds,
                **{k: facts[k] for k in ("backend", "conv", "devices") if k in facts},
            }
        )
    best = max(
        (r["images_per_second"] for r in rows if r["name"].startswith("PyTorch")),
        default=None,
    )
    for row in rows:
        row["ratio"] = row["images_per_second"] / best if best else None
    return rows, absent, versions


def training_flops(net: str, size: int) -> float:
    """FLOPs of training on one image: backward takes twice the forward pass."""
    from fuprune.models import cost, zoo

    model = zoo.create(
        net, num_classes=workload.NUM_CLASSES, input_shape=(size, size, 3)
    )
    return 3 * sum(layer.flops for layer in cost.layer_costs(model).values())


def table(report: dict) -> str:
    """The rows as Markdown, the fastest of each network first."""
    lines = []
    for run in report["runs"]:
        machine, versions = run["machine"], run["versions"]
        lines += [
            f"{run['net']}, {run['date']}, {machine['cores']} cores of"
            f" {machine['cpu']}, load {machine['load_before']:.1f} before and"
            f" {machine['load_after']:.1f} after (the benchmark itself makes 2);"
            f" median of {run['workload']['repeats']} interleaved rounds;"
            f" {', '.join(f'{k} {v}' for k, v in sorted(versions.items()))}.",
            "",
        ]
        mine = [row for row in report["rows"] if row["net"].split()[0] == run["net"]]
        for net in dict.fromkeys(row["net"] for row in mine):
            lines += [*_net_table(net, [r for r in mine if r["net"] == net]), ""]
        lines += [f"Not measured: {reason}." for reason in run["absent"]]
    return "\n".join(lines)


def _net_table(net: str, rows: list[dict]) -> list[str]:
    lines = [
        f"| {net} | images/s | to best PyTorch | images/core-s | spread | clients |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: -row["images_per_second"]):
        name = row["name"]
        if name == "fuprune auto":
            name = f"**{name}** ({row['backend']}, {row['conv']})"
        ratio = f"{row['ratio']:.2f}x" if row["ratio"] else "-"
        spread = f"{100 * (max(row['seconds']) / min(row['seconds']) - 1):.0f}%"
        if len(row["seconds"]) == 1:
            spread = "once"
        busy = row["images_per_core_second"]
        lines.append(
            f"| {name} | {row['images_per_second']:.1f} | {ratio} |"
            f" {f'{busy:.1f}' if busy else '-'} | {spread} | {row['clients']} |"
        )
    return lines


if __name__ == "__main__":
    main()
