"""The scoring phase of the paper's method against two rounds of FedAvg.

Scoring is all that unlearning does before it fine-tunes: capture on the clients,
check and merge what they send, TF-IDF, the plan, the surgery. It should cost no more
than two FedAvg rounds (E=1) on the same clients. The first call of each compiles; both
the first and the later calls are reported, interleaved in one process.

    python benchmarks/capture.py
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
import numpy as np  # noqa: E402
import round_throughput  # noqa: E402
import training_step  # noqa: E402

from fuprune.data.dataset import Dataset  # noqa: E402
from fuprune.data.federated import federate, whole_cohort  # noqa: E402
from fuprune.models import zoo  # noqa: E402
from fuprune.run import data as run_data  # noqa: E402
from fuprune.run import machine as runtime_module  # noqa: E402
from fuprune.surgery import compact  # noqa: E402
from fuprune.unlearning.activations import collect, merge_activations  # noqa: E402
from fuprune.unlearning.class_pruning import server_proc  # noqa: E402

RESULTS = HERE / "results" / "capture.json"


def main(arguments=None):
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=["resnet20", "vgg11"])
    parser.add_argument("--clients", type=int, default=25)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    machine = round_throughput.machine()
    # Without a cache on disk: the first call's compilation is part of what is asked.
    runtime = runtime_module.start(cohort=options.clients, compilation_cache="")
    rows = [measure(net, runtime, options) for net in options.nets]
    report = {
        "date": round_throughput.now(),
        "machine": machine | {"load_after": os.getloadavg()[0]},
        "versions": {"jax": jax.__version__},
        "workload": {"clients": options.clients, "images": options.images},
        "rows": rows,
    }
    round_throughput.write_report(options.output, report)
    for row in rows:
        print(
            f"{row['net']}: scoring {row['scoring_seconds']:.2f} s,"
            f" two rounds {row['two_rounds_seconds']:.2f} s, ratio {row['ratio']:.2f}"
            f" (first call, compiling: {row['first_ratio']:.2f})"
        )
    return report


def measure(net, runtime, options):
    """One network's row."""
    generator = np.random.default_rng(0)
    shape, number = (options.size, options.size, 3), options.clients * options.images
    dataset = Dataset(
        generator.integers(0, 256, (number, *shape), np.uint8),
        (np.arange(number) % 10).astype(np.int32),
    )
    parts = list(np.arange(number).reshape(options.clients, options.images))
    data = run_data.place_federation(
        federate(dataset, parts, place=np.asarray), runtime
    )
    cohort = whole_cohort(data)
    model = zoo.create(net, num_classes=10, input_shape=shape, conv=runtime.conv)
    algorithm, variables = training_step.make_round(model, runtime, batch_size=32)
    state = algorithm.init(variables)

    def two_rounds():
        now = state
        for i in range(2):
            now, _ = algorithm.round(now, cohort, jax.random.key(i))
        jax.block_until_ready(now)

    def scoring():
        collected = collect(
            model,
            variables,
            cohort,
            num_classes=10,
            backend=runtime.backend,
            mesh=runtime.mesh,
        )
        merged = merge_activations(collected.uploads)
        decision = server_proc(merged, 9, options.rate)
        _, smaller = compact(model, variables, decision.plan)
        jax.block_until_ready(smaller)

    seconds = {"scoring": [], "two_rounds": []}
    for _ in range(options.repeats + 1):
        for name, run in (("scoring", scoring), ("two_rounds", two_rounds)):
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    scored, rounds = (
        statistics.median(seconds[name][1:]) for name in ("scoring", "two_rounds")
    )
    return {
        "net": net,
        "scoring_seconds": scored,
        "two_rounds_seconds": rounds,
        "ratio": scored / rounds,
        "first_ratio": seconds["scoring"][0] / seconds["two_rounds"][0],
        "target": "<= 1",
        "met": scored <= rounds,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
