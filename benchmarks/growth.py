"""How cost grows with clients, cohort, image side, classes, depth and devices.

Each section lets one number grow and keeps the rest. Its points take turns in every
repetition, so that a busy minute of the machine hits all of them, and medians are
compared. Cost per unit is given relative to the section's median: 1.00 everywhere is a
straight line through zero, or a flat one.

    python benchmarks/growth.py                      # about 10 minutes on two cores
    python benchmarks/growth.py --sections clients   # one section; others stay
"""

import argparse
import contextlib
import functools
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import protocol  # noqa: E402
import report as reports  # noqa: E402

from fuprune.data.dataset import Dataset  # noqa: E402
from fuprune.data.federated import federate, sample_cohort, whole_cohort  # noqa: E402
from fuprune.data.partition import iid_partition  # noqa: E402
from fuprune.federated.server import fed_avg  # noqa: E402
from fuprune.models import zoo  # noqa: E402
from fuprune.run import data as run_data  # noqa: E402
from fuprune.run import machine as runtime_module  # noqa: E402
from fuprune.run import processes  # noqa: E402
from fuprune.unlearning.activations import collect, merge_activations  # noqa: E402
from fuprune.unlearning.class_pruning import server_proc  # noqa: E402

POOL = 1_000  # images that all clients of a section share
SMALL = (8, 8, 1)


class Section(NamedTuple):
    """One number that grows."""

    points: tuple
    measure: object  # (points, repeats) -> rows


class Row(NamedTuple):
    """One cost at one point; `units` is what it should be proportional to."""

    point: object
    what: str
    cost: float
    units: float
    unit: str


def main(arguments=None) -> int:
    """Measure, print one table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", nargs="+", default=tuple(SECTIONS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--serve", nargs=3, metavar=("DEVICES", "PROCESSES", "ADDRESS"))
    options = parser.parse_args(arguments)
    if options.serve:
        devices, count, address = options.serve
        serve_rounds(int(devices), int(count), address)
        return 0
    found = reports.read("growth")
    for name in options.sections:
        points, measure = SECTIONS[name]
        found[name] = {"date": reports.now(), "machine": reports.machine()}
        rows = measure(points, options.repeats)
        found[name]["rows"] = [row._asdict() for row in rows]
    print(table(found))
    reports.write("growth", found, table(found))
    return 0


def table(found) -> str:
    """Each cost from the first point to the last, and its distance from a line."""
    lines = [
        "| grows | what | cost | per unit, relative to the median | measured |",
        "|---|---|---|---:|---|",
    ]
    for name, section in found.items():
        rows = [Row(**row) for row in section["rows"]]
        for what in dict.fromkeys(row.what for row in rows):
            mine = [row for row in rows if row.what == what]
            per_unit = [row.cost / row.units for row in mine]
            middle = statistics.median(per_unit)
            least, most = min(per_unit) / middle, max(per_unit) / middle
            shown = mine if len(mine) < 4 else (mine[0], mine[-1])
            costs = ", ".join(f"{_point(row)}: {_cost(row)}" for row in shown)
            lines.append(
                f"| {name} | {what} | {costs} | {least:.2f} to {most:.2f}"
                f" (per {mine[0].unit}) | {section['date'][:10]}, load"
                f" {section['machine']['load']:.1f} |"
            )
    return "\n".join(lines)


def _point(row: Row) -> str:
    return f"{row.point:,}" if isinstance(row.point, int) else str(row.point)


def _cost(row: Row) -> str:
    if row.what.startswith("bytes"):
        return f"{row.cost:,.0f} B"
    return f"{1e3 * row.cost:.3g} ms" if row.cost < 1 else f"{row.cost:.3g} s"


def measure_clients(points, repeats) -> list[Row]:
    """Rounds of ten clients out of ever more; start-up; memory of the indices."""
    state, algorithm = _small_federation(10)
    federations, rows = [], []
    for clients in points:
        start = time.perf_counter()
        data = jax.block_until_ready(_deal(clients))
        size = data.rows.nbytes + data.lengths.nbytes
        rows += [
            Row(clients, "start-up", time.perf_counter() - start, clients, "client"),
            Row(clients, "bytes of indices", size, clients, "client"),
        ]
        federations.append(data)

    def draw(data, repetition):
        return sample_cohort(jax.random.key(repetition), data, 10)

    def one_round(data, repetition):
        key = jax.random.key(repetition)
        return algorithm.round(state, draw(data, repetition), key)[0]

    for what, run in (("drawing a cohort", draw), ("round of 10 clients", one_round)):
        runs = [functools.partial(run, data) for data in federations]
        rows += timed(points, what, runs, repeats, [1] * len(points), "round")
    return rows


def measure_cohort(points, repeats) -> list[Row]:
    """Rounds of ever more clients."""
    state, algorithm = _small_federation(max(points))
    data = _deal(2 * max(points))

    def one_round(cohort_size, repetition):
        key = jax.random.key(repetition)
        return algorithm.round(state, sample_cohort(key, data, cohort_size), key)[0]

    runs = [functools.partial(one_round, size) for size in points]
    return timed(points, "round", runs, repeats, points, "client")


def measure_side(points, repeats) -> list[Row]:
    """A round of four clients with eight images of ever more pixels."""
    runs = [_round_of(side=side)[0] for side in points]
    return timed(points, "round", runs, repeats, [p**2 for p in points], "pixel")


def measure_depth(points, repeats) -> list[Row]:
    """The first round, which traces and compiles, and those that follow."""
    rows, runs = [], []
    for depth in points:
        start = time.perf_counter()
        run, _ = _round_of(depth=depth)
        jax.block_until_ready(run(0))
        seconds = time.perf_counter() - start
        rows.append(Row(depth, "first round, compiled", seconds, depth, "layer"))
        runs.append(run)
    return rows + timed(points, "round", runs, repeats, points, "layer")


def measure_classes(points, repeats) -> list[Row]:
    """Capture on four clients, the scores of what they sent, and its bytes."""
    captures, scores, rows = [], [], []
    for classes in points:
        _, (model, variables, data) = _round_of(classes=classes, images=1_000)
        cohort = whole_cohort(data)

        def capture(_, model=model, variables=variables, cohort=cohort, n=classes):
            return collect(model, variables, cohort, num_classes=n).uploads

        uploads = jax.device_get(capture(0))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(uploads)) / 4
        rows.append(Row(classes, "bytes a client sends", size, classes, "class"))
        merged = merge_activations(uploads)
        captures.append(capture)
        scores.append(lambda _, merged=merged: server_proc(merged, 9, 0.05).scores)
    flat = [1] * len(points)
    rows += timed(points, "capture of 1,000 images", captures, repeats, flat, "image")
    return rows + timed(points, "TF-IDF and plan", scores, repeats, flat, "plan")


def measure_devices(points, repeats) -> list[Row]:
    """A round of eight clients with 64 images on (devices, processes)."""
    with contextlib.ExitStack() as stack:
        runs = []
        for devices, count in points:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{probe.getsockname()[1]}"
            log = pathlib.Path(tempfile.mkdtemp()) / "log"
            command = [sys.executable, str(HERE / "growth.py"), "--serve"]
            command += [str(devices), str(count), address]
            contender = protocol.Contender(f"{devices} devices", command, log)
            stack.callback(contender.close)
            contender.answer()
            runs.append(contender)
        seconds = [[] for _ in runs]
        for _ in range(repeats):
            for contender, taken in zip(runs, seconds, strict=True):
                taken.append(contender.round()["seconds"])
    return [
        Row(
            f"{devices} in {count} process{'es' * (count > 1)}",
            "round of 8 clients",
            statistics.median(taken),
            1 / devices,
            "device",
        )
        for (devices, count), taken in zip(points, seconds, strict=True)
    ]


def serve_rounds(devices: int, count: int, address: str) -> None:
    """Answer requests for rounds; the first of several processes starts the second."""
    follows = "GROWTH_FOLLOWS" in os.environ
    if count > 1 and not follows:
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "GROWTH_FOLLOWS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
    channel = protocol.claim_output()
    cores = sorted(os.sched_getaffinity(0))
    here = devices // count
    os.sched_setaffinity(0, cores[here * follows :][:here] or cores)
    joining = {}
    if count > 1:
        joining = dict(coordinator=address, num_processes=2, process_id=int(follows))
    machine = runtime_module.start(devices=here, join_seconds=300, **joining)
    run, _ = _round_of(images=512, clients=8, batch_size=32, runtime=machine)

    def one_round():
        if processes.any_process(False):
            return False
        jax.block_until_ready(run(0))
        return True

    if follows:
        while one_round():
            pass
    else:
        protocol.serve(channel, one_round, warm_up=2)
        processes.any_process(True)
    processes.leave(0)


SECTIONS = {
    "clients": Section((10, 100, 1_000, 10_000, 100_000, 1_000_000), measure_clients),
    "cohort": Section((5, 10, 25, 100, 250, 1_000), measure_cohort),
    "image side": Section((32, 64, 128), measure_side),
    "classes": Section((10, 100, 1_000), measure_classes),
    "depth": Section((20, 32, 56, 110), measure_depth),
    "devices": Section(((1, 1), (2, 1), (2, 2)), measure_devices),
}


def timed(points, what, runs, repeats, units, unit) -> list[Row]:
    """A row per run, with the median of its seconds; the first repetition compiles."""
    seconds = [[] for _ in runs]
    for repetition in range(repeats + 1):
        for run, taken in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run(repetition))
            if repetition:
                taken.append(time.perf_counter() - start)
    return [
        Row(point, what, statistics.median(taken), number, unit)
        for point, taken, number in zip(points, seconds, units, strict=True)
    ]


def _small_federation(cohort: int):
    """A ResNet8 on 8x8 images, where what is not arithmetic shows most."""
    runtime = runtime_module.start(cohort=cohort, compilation_cache="")
    model = zoo.create("resnet8", num_classes=10, input_shape=SMALL)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *SMALL)))
    algorithm = _fed_avg(model, runtime, 8)
    return algorithm.init(variables), algorithm


def _fed_avg(model, runtime, batch_size):
    return fed_avg(
        model,
        client_optimizer=optax.sgd(0.01, momentum=0.9),
        batch_size=batch_size,
        backend=runtime.backend,
        mesh=runtime.mesh,
    )


def _deal(clients: int):
    """Clients of eight examples each, over a pool that is the same for all."""
    dataset = _noise(POOL, SMALL, 10)
    dealt = iid_partition(np.zeros(clients * 8, np.int32), num_clients=clients, seed=0)
    return federate(dataset, [part % POOL for part in dealt])


def _noise(images: int, shape, classes: int) -> Dataset:
    pixels = np.random.default_rng(0).integers(256, size=(images, *shape))
    labels = (np.arange(images) % classes).astype(np.int32)
    return Dataset(pixels.astype(np.uint8), labels)


def _round_of(
    *,
    side=32,
    classes=10,
    depth=20,
    images=32,
    clients=4,
    batch_size=8,
    runtime=None,
):
    """A round of a ResNet, and its model, variables and data."""
    runtime = runtime or runtime_module.start(cohort=clients, compilation_cache="")
    shape = (side, side, 3)
    model = zoo.create(
        "resnet20", num_classes=classes, input_shape=shape, conv=runtime.conv
    ).clone(depth=depth)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *shape)))
    parts = np.array_split(np.arange(images), clients)
    data = federate(_noise(images, shape, classes), parts, place=np.asarray)
    split = runtime.process_count > 1
    if split:
        data, _ = run_data.split_over_hosts(data, runtime)
    data = run_data.place_federation(data, runtime, split=split)
    algorithm = _fed_avg(model, runtime, batch_size)
    variables = run_data.replicate(jax.device_get(variables), runtime.mesh)
    state, cohort = algorithm.init(variables), whole_cohort(data)

    def run(repetition):
        return algorithm.round(state, cohort, jax.random.key(repetition))[0]

    return run, (model, variables, data)


if __name__ == "__main__":
    sys.exit(main())
