"""How cost grows with clients, cohort, image side, classes and depth.

Each section lets one number grow and keeps the rest. Its points take turns in every
repetition, so that a busy minute of the machine hits all of them, and medians are
compared. Where a cost should be flat or a straight line, `to the line` is the cost per
unit against the section's median: 1.00 everywhere is a straight line through zero.

    python benchmarks/growth.py                      # about 6 minutes on two cores
    python benchmarks/growth.py --sections clients   # one section; others stay
    python benchmarks/growth.py --smoke              # small, once, nothing written
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import sys
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / "peers")]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import round_throughput  # noqa: E402
import training_step  # noqa: E402

from fuprune.data.dataset import Dataset  # noqa: E402
from fuprune.data.federated import federate, sample_cohort, whole_cohort  # noqa: E402
from fuprune.data.partition import iid_partition  # noqa: E402
from fuprune.federated.server import fed_avg  # noqa: E402
from fuprune.models import zoo  # noqa: E402
from fuprune.run import data as run_data  # noqa: E402
from fuprune.run import machine as runtime_module  # noqa: E402
from fuprune.unlearning.activations import collect, merge_activations  # noqa: E402
from fuprune.unlearning.class_pruning import server_proc  # noqa: E402

RESULTS = HERE / "results" / "growth.json"
POOL = 1_000  # images that all clients of a section share
SMALL = (8, 8, 1)


class Section(NamedTuple):
    """One number that grows."""

    points: tuple[int, ...]
    measure: object  # (points, repeats) -> rows


class Row(NamedTuple):
    """One cost at one point; `units` is what it should be proportional to."""

    point: int
    what: str
    cost: float
    units: float
    unit: str


def main(arguments=None) -> int:
    """Measure, print one table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", nargs="+", default=tuple(SECTIONS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    machine = round_throughput.machine()
    report = {"sections": {}}
    if options.output.exists() and not options.smoke:
        report = json.loads(options.output.read_text())
    for name in options.sections:
        points, measure = SECTIONS[name]
        rows = (
            measure(points[:2], 1)
            if options.smoke
            else measure(points, options.repeats)
        )
        report["sections"][name] = {
            "date": round_throughput.now(),
            "machine": machine | {"load_after": os.getloadavg()[0]},
            "rows": [row._asdict() for row in rows],
        }
    print(table(report))
    if not options.smoke:
        round_throughput.write_report(options.output, report)
    return 0


def table(report) -> str:
    """Each cost with its cost per unit against the median of its kind."""
    lines = [
        "| grows | to | what | cost | per unit, to the line | when, load |",
        "|---|---:|---|---:|---:|---|",
    ]
    for name, section in report["sections"].items():
        rows = [Row(**row) for row in section["rows"]]
        load = section["machine"]["load_after"]
        for row in rows:
            alike = [r.cost / r.units for r in rows if r.what == row.what]
            ratio = row.cost / row.units / statistics.median(alike)
            cost = (
                f"{row.cost:,.0f} B"
                if row.what.startswith("bytes")
                else f"{1e3 * row.cost:.3g} ms"
                if row.cost < 1
                else f"{row.cost:.3g} s"
            )
            lines.append(
                f"| {name} | {row.point:,} | {row.what} | {cost} |"
                f" {ratio:.2f} ({row.unit}) | {section['date']}, {load:.1f} |"
            )
    return "\n".join(lines)


def measure_clients(points, repeats) -> list[Row]:
    """Rounds of ten clients out of ever more; start-up; memory of the indices."""
    model, state, algorithm = _small_federation(10)
    del model
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
        rows += [
            Row(clients, what, seconds, 1, "flat")
            for clients, seconds in zip(points, take_turns(runs, repeats), strict=True)
        ]
    return rows


def measure_cohort(points, repeats) -> list[Row]:
    """Rounds of ever more clients."""
    _, state, algorithm = _small_federation(max(points))
    data = _deal(2 * max(points))

    def one_round(cohort_size, repetition):
        key = jax.random.key(repetition)
        return algorithm.round(state, sample_cohort(key, data, cohort_size), key)[0]

    runs = [functools.partial(one_round, size) for size in points]
    return [
        Row(size, "round", seconds, size, "client")
        for size, seconds in zip(points, take_turns(runs, repeats), strict=True)
    ]


def measure_side(points, repeats) -> list[Row]:
    """A round of four clients with eight images of ever more pixels."""
    runs = [_round_of("resnet20", side)[0] for side in points]
    return [
        Row(side, "round", seconds, side**2, "pixel")
        for side, seconds in zip(points, take_turns(runs, repeats), strict=True)
    ]


def measure_depth(points, repeats) -> list[Row]:
    """The first round, which traces and compiles, and those that follow."""
    rows, runs = [], []
    for depth in points:
        start = time.perf_counter()
        run, _ = _round_of("resnet20", 32, depth=depth)
        jax.block_until_ready(run(0))
        seconds = time.perf_counter() - start
        rows.append(Row(depth, "first round, compiled", seconds, depth, "layer"))
        runs.append(run)
    return rows + [
        Row(depth, "round", seconds, depth, "layer")
        for depth, seconds in zip(points, take_turns(runs, repeats), strict=True)
    ]


def measure_classes(points, repeats) -> list[Row]:
    """Capture on four clients, the scores of what they sent, and its bytes."""
    captures, scores, rows = [], [], []
    for classes in points:
        _, (model, variables, data) = _round_of(
            "resnet20", 32, classes=classes, images=1_000
        )
        cohort = whole_cohort(data)

        def capture(_, model=model, variables=variables, cohort=cohort, n=classes):
            return collect(model, variables, cohort, num_classes=n).uploads

        uploads = jax.device_get(capture(0))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(uploads)) / len(
            cohort.clients
        )
        rows.append(Row(classes, "bytes a client sends", size, classes, "class"))
        merged = merge_activations(uploads)
        captures.append(capture)
        scores.append(lambda _, merged=merged: server_proc(merged, 9, 0.05).scores)
    for what, runs in (
        ("capture of 1,000 images", captures),
        ("TF-IDF and plan", scores),
    ):
        rows += [
            Row(classes, what, seconds, 1, "flat")
            for classes, seconds in zip(points, take_turns(runs, repeats), strict=True)
        ]
    return rows


SECTIONS = {
    "clients": Section((10, 100, 1_000, 10_000, 100_000, 1_000_000), measure_clients),
    "cohort": Section((5, 10, 25, 100, 250, 1_000), measure_cohort),
    "image side": Section((32, 64, 128), measure_side),
    "classes": Section((10, 100, 1_000), measure_classes),
    "depth": Section((20, 32, 56, 110), measure_depth),
}


def take_turns(runs, repeats) -> list[float]:
    """The median seconds of each run; the first repetition compiles and is dropped."""
    seconds = [[] for _ in runs]
    for repetition in range(repeats + 1):
        for run, taken in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run(repetition))
            if repetition:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def _small_federation(cohort: int):
    """A ResNet8 on 8x8 images, where what is not arithmetic shows most."""
    runtime = runtime_module.start(cohort=cohort, compilation_cache="")
    model = zoo.create("resnet8", num_classes=10, input_shape=SMALL)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *SMALL)))
    algorithm = fed_avg(
        model,
        client_optimizer=optax.sgd(0.01),
        batch_size=8,
        backend=runtime.backend,
        mesh=runtime.mesh,
    )
    return model, algorithm.init(variables), algorithm


def _deal(clients: int):
    """Clients of eight examples each, over a pool that is the same for all."""
    rng = np.random.default_rng(0)
    dataset = Dataset(
        rng.integers(256, size=(POOL, *SMALL)).astype(np.uint8),
        rng.integers(10, size=POOL).astype(np.int32),
    )
    dealt = iid_partition(np.zeros(clients * 8, np.int32), num_clients=clients, seed=0)
    return federate(dataset, [part % POOL for part in dealt])


def _round_of(net, side, *, classes=10, depth=None, images=32):
    """`(run, (model, variables, data))`: four clients that share the images."""
    runtime = runtime_module.start(cohort=4, compilation_cache="")
    shape = (side, side, 3)
    model = zoo.create(net, num_classes=classes, input_shape=shape, conv=runtime.conv)
    if depth is not None:
        model = model.clone(depth=depth)
    rng = np.random.default_rng(0)
    labels = (np.arange(images) % classes).astype(np.int32)
    pixels = rng.integers(256, size=(images, *shape)).astype(np.uint8)
    parts = np.array_split(np.arange(images), 4)
    held = federate(Dataset(pixels, labels), parts, place=np.asarray)
    data = run_data.place_federation(held, runtime)
    algorithm, variables = training_step.make_round(model, runtime, batch_size=8)
    state, cohort = algorithm.init(variables), whole_cohort(data)

    def run(repetition):
        return algorithm.round(state, cohort, jax.random.key(repetition))[0]

    return run, (model, variables, data)


if __name__ == "__main__":
    sys.exit(main())
