"""The exact diagonal Fisher information against an epoch of training.

Both go over the same images on the same clients: one FedAvg round of one local epoch,
and the Fisher sums of every image for every class. With ten classes a backward pass is
due for each, so that ten times the work is no waste; the target is 12 epochs. The two
take turns, and the ratio is the median of the ratios of neighbours.

    python benchmarks/fisher.py
    python benchmarks/fisher.py --conv xla
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / "peers")]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import round_throughput  # noqa: E402

from fuprune.data.dataset import Dataset  # noqa: E402
from fuprune.data.federated import federate, whole_cohort  # noqa: E402
from fuprune.federated.server import fed_avg  # noqa: E402
from fuprune.models import zoo  # noqa: E402
from fuprune.run import data as run_data  # noqa: E402
from fuprune.run import machine as runtime_module  # noqa: E402
from fuprune.unlearning.fisher import diagonal_fisher, fisher_sum  # noqa: E402
from fuprune.unlearning.job import Job  # noqa: E402
from fuprune.unlearning.request import ForgetRequest  # noqa: E402

RESULTS = HERE / "results" / "fisher.json"
TARGET = 12.0


def main(arguments=None):
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", default="resnet20")
    parser.add_argument("--conv", default=None, help="by default, xla and onednn")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--images", type=int, default=1000, help="over all clients")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    machine = round_throughput.machine()
    runtime = runtime_module.start(
        cohort=options.clients, conv=options.conv or "auto", compilation_cache=""
    )
    names = (runtime.conv,) if options.conv else tuple({"xla": 0, runtime.conv: 0})
    rows = [row for conv in names for row in measure(conv, runtime, options)]
    report = {
        "date": round_throughput.now(),
        "command": "python benchmarks/fisher.py",
        "machine": machine | {"load_after": os.getloadavg()[0]},
        "versions": {"jax": jax.__version__},
        "workload": {
            name: getattr(options, name)
            for name in ("net", "clients", "images", "size", "classes")
        },
        "rows": rows,
    }
    round_throughput.write_report(options.output, report)
    return report


def measure(conv, runtime, options):
    """A row for each chunk size."""
    generator = np.random.default_rng(0)
    shape, number = (options.size, options.size, 3), options.images
    dataset = Dataset(
        generator.integers(0, 256, (number, *shape), np.uint8),
        (np.arange(number) % options.classes).astype(np.int32),
    )
    parts = np.array_split(np.arange(number), options.clients)
    data = run_data.place_federation(
        federate(dataset, parts, place=np.asarray), runtime
    )
    model = zoo.create(
        options.net, num_classes=options.classes, input_shape=shape, conv=conv
    )
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *shape)))
    where = dict(backend=runtime.backend, mesh=runtime.mesh)
    algorithm = fed_avg(
        model, client_optimizer=optax.sgd(0.01, momentum=0.9), batch_size=32, **where
    )
    state, cohort = algorithm.init(variables), whole_cohort(data)

    def epoch():
        jax.block_until_ready(algorithm.round(state, cohort, jax.random.key(0)))

    rows = []
    for chunk in options.chunks:
        request, key = ForgetRequest(classes=(0,)), jax.random.key(0)
        job = Job(model, variables, data, request, key, None, **where)
        run = job.sum(fisher_sum, chunk=chunk)
        row = compare(epoch, lambda run=run: run(variables, data), options.repeats)
        row = {"conv": conv, "chunk": chunk} | row
        row["temporary_megabytes"] = temporary_megabytes(model, variables, chunk, shape)
        rows.append(row)
        print(
            f"{options.net}, {conv}, {chunk} images at a time: epoch"
            f" {row['epoch_seconds']:.2f} s, Fisher {row['fisher_seconds']:.2f} s,"
            f" ratio {row['ratio']:.2f} (of processor time"
            f" {row['processor_ratio']:.2f}), {row['temporary_megabytes']:.0f} MB",
            flush=True,
        )
    return rows


def compare(epoch, fisher, repeats):
    """Turn by turn, after a first call of each that compiles.

    Processor time is reported beside the clock's: other work on the machine prolongs
    the one much less than the other.
    """
    seconds = {"epoch": [], "fisher": [], "epoch_processor": [], "fisher_processor": []}
    for repeat in range(repeats + 1):
        for name, run in (("epoch", epoch), ("fisher", fisher)):
            start, processor = time.perf_counter(), time.process_time()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
                seconds[f"{name}_processor"].append(time.process_time() - processor)

    def median_ratio(suffix):
        pairs = zip(seconds[f"fisher{suffix}"], seconds[f"epoch{suffix}"], strict=True)
        return statistics.median(f / e for f, e in pairs)

    ratio = median_ratio("")
    return {
        "epoch_seconds": statistics.median(seconds["epoch"]),
        "fisher_seconds": statistics.median(seconds["fisher"]),
        "ratio": ratio,
        "processor_ratio": median_ratio("_processor"),
        "target": f"<= {TARGET:g}",
        "met": ratio <= TARGET,
        "seconds": seconds,
    }


def temporary_megabytes(model, variables, chunk, shape):
    """What one chunk needs besides the parameters, by the compiler's account."""
    images = jax.ShapeDtypeStruct((chunk, *shape), jnp.float32)
    run = jax.jit(lambda w, x: diagonal_fisher(model, w, x))
    compiled = run.lower(variables, images).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 1e6


if __name__ == "__main__":
    main()
