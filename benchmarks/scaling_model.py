"""The model of docs/scaling.md: what a round costs at other scales, and its tables.

`predict` turns the constants that scaling.py measures into the parts of a round;
`filled` writes the page's tables from a report of measurements.
"""

import pathlib
import re
from typing import NamedTuple

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs" / "scaling.md"


def scaling_table(report) -> str:
    """The measured rounds."""
    columns = [name for name in report["rows"][0] if name != "conv"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in report["rows"]:
        lines.append(f"| {' | '.join(str(row[name]) for name in columns)} |")
    return "\n".join(lines)


def constants_table(report) -> str:
    """The measured constants, by the letters the page uses."""
    c = report["constants"]
    draws = c["draw_seconds"]
    most = max(draws, key=int)
    rows = [
        ("c_image", "training on one image, ResNet20, one device", c["image_seconds"]),
        ("c_client", "one client, images aside", c["client_seconds"]),
        ("c_round", "one round, clients aside", c["round_seconds"]),
        ("c_draw", f"a cohort from {int(most):,} clients", draws[most]),
        ("c_deal", "dealing, once, per client", c["deal_seconds_per_client"]),
        ("l_sum", "a small sum, two processes", c["sum_latency_seconds"]),
        (
            "l_exchange",
            "a small exchange, two processes",
            c["exchange_latency_seconds"],
        ),
    ]
    lines = ["| | what | measured |", "|---|---|---:|"]
    lines += [f"| {name} | {what} | {duration(value)} |" for name, what, value in rows]
    for name, what in (("b_sum", "sums"), ("b_exchange", "exchanges")):
        rate = c[f"{what[:-1]}_bytes_per_second"]
        lines.append(f"| {name} | {what} over loopback | {rate / 1e6:.0f} MB/s |")
    for name, model in c["models"].items():
        lines.append(
            f"| P, {name} | parameters; a checkpoint takes "
            f"{duration(model['checkpoint_seconds'])} | {size(model['bytes'])} |"
        )
    return "\n".join(lines)


class Case(NamedTuple):
    """A federation to predict; five hundred images of 3 kB per client."""

    clients: int
    cohort: int
    hosts: int
    devices: int  # of one host
    net: str
    image_seconds: float | None = None  # None for the measured one
    pool: str = "split"  # or whole: see runtime.pool
    network: float = 1.25e9  # bytes per second between hosts, 10 Gbit/s


CASES = (
    Case(100, 25, 1, 2, "resnet20"),
    Case(100, 24, 4, 2, "resnet20"),
    Case(10_000, 256, 8, 8, "resnet20"),
    Case(10_000, 256, 8, 8, "vgg16"),
    Case(1_000_000, 1_024, 8, 8, "resnet20"),
    Case(1_000_000, 1_024, 64, 8, "resnet20"),
    Case(10_000, 256, 8, 8, "resnet20", 40e-6),
    Case(10_000, 256, 8, 8, "resnet20", 40e-6, "whole"),
    Case(1_000_000, 1_024, 64, 8, "resnet20", 40e-6),
    Case(1_000_000, 1_024, 64, 8, "vgg16", 310e-6),
)
IMAGES, IMAGE_BYTES = 500, 3072


def predict(case: Case, constants: dict) -> dict:
    """Seconds and bytes of one round of FedAvg with one local epoch.

    Sums go round the hosts in a ring; the network is the given one, the latency the
    measured one for each step.
    """
    model = constants["models"][case.net]
    per_image = case.image_seconds or constants["image_seconds"]
    share = -(-case.cohort // (case.hosts * case.devices))
    slowdown = 1.0
    if case.image_seconds is None and case.net != "resnet20":
        slowdown = RELATIVE_COST[case.net]
    compute = share * (constants["client_seconds"] + IMAGES * per_image * slowdown)
    draws = constants["draw_seconds"]
    draw = draws[str(min(int(k) for k in draws if int(k) >= case.clients))]
    around = constants["round_seconds"] + draw
    away = (case.hosts - 1) / case.hosts
    latency = constants["sum_latency_seconds"] * (case.hosts > 1)
    sum_bytes = 2 * away * (model["bytes"] + model["statistics_bytes"])
    # Each device answers for every image of the cohort; one answer of D counts.
    exchange_bytes = away * case.cohort * IMAGES * IMAGE_BYTES * case.devices
    pool = case.clients * IMAGES * IMAGE_BYTES / case.hosts
    if case.pool == "whole":
        exchange_bytes, pool = 0.0, pool * case.hosts
    exchange = exchange_bytes / case.network + latency * (exchange_bytes > 0)
    return {
        "compute": compute,
        "around": around,
        "sum": sum_bytes / case.network + latency,
        "exchange": exchange,
        "sum_bytes": sum_bytes,
        "exchange_bytes": exchange_bytes,
        "pool_bytes": pool,
        "rows_bytes": case.clients * IMAGES * 4,
    }


# Training FLOPs of an image against ResNet20's, from `fuprune.models.cost`.
RELATIVE_COST = {"resnet20": 1.0, "resnet56": 3.1, "vgg16": 7.7}


def prediction_table(report) -> str:
    """The cases, with what dominates each."""
    lines = [
        "| clients | cohort | hosts x devices | net, pool | per image | compute | "
        "around | sum | exchange | per round | sent by a host | images on a host | "
        "indices on a device |",
        "|---:" * 3 + "|---" + "|---:" * 9 + "|",
    ]
    for case in CASES:
        p = predict(case, report["constants"])
        total = p["compute"] + p["around"] + p["sum"] + p["exchange"]
        per_image = case.image_seconds or report["constants"]["image_seconds"]
        cells = [
            f"{case.clients:,}",
            f"{case.cohort:,}",
            f"{case.hosts} x {case.devices}",
            f"{case.net}, {case.pool}",
            duration(per_image) + ("*" if case.image_seconds else ""),
            *(duration(p[k]) for k in ("compute", "around", "sum", "exchange")),
            duration(total),
            size(p["sum_bytes"] + p["exchange_bytes"]),
            size(p["pool_bytes"]),
            size(p["rows_bytes"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """A time for people."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def size(number: float) -> str:
    """A number of bytes for people."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f} B"


def when(report) -> str:
    """Date, machine and how busy it was."""
    machine = report["machine"]
    return (
        f"Measured {report['date']} on {machine['cores']} cores of {machine['cpu']}, "
        f"load {machine['load_before']:.1f} before and {machine['load_after']:.1f} "
        "after."
    )


TABLES = {
    "scaling": lambda report: f"{when(report)}\n\n{scaling_table(report)}",
    "constants": constants_table,
    "predictions": prediction_table,
}


def filled(text: str, report) -> str:
    """The page with its tables made from a report."""
    return fill_between(text, lambda name: TABLES[name](report))


def fill_between(text: str, body_of) -> str:
    """The page with `body_of` what stands between `<!-- name -->` and its end."""

    def fill(match):
        name = match[1]
        return f"<!-- {name} -->\n{body_of(name).strip()}\n<!-- end of {name} -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->", fill, text, flags=re.DOTALL)
