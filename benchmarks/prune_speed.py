"""How much faster a compacted network trains than the same network masked.

    python benchmarks/prune_speed.py

Half the channels of every layer are cut. Both networks compute the same function; only
the compacted one has fewer numbers to compute. Steps of the two take turns, so that
whatever else the machine does falls on both, and medians are compared. Results go to
benchmarks/results/prune_speed.json.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import training_step

from fuprune import surgery
from fuprune.models import zoo
from fuprune.surgery import cutting

RESULTS = pathlib.Path(__file__).parent / "results" / "prune_speed.json"


def main():
    """Measures, prints one line per network, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet56", "vgg16"])
    parser.add_argument("--conv", nargs="+", default=["xla", "onednn"])
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name in options.models:
        for conv in options.conv:
            row = measure(name, conv, options)
            rows.append(row)
            print(
                f"{row['model']:>9} {conv:>6}:"
                f" masked {1e3 * row['masked_seconds']:7.1f} ms,"
                f" compacted {1e3 * row['compacted_seconds']:7.1f} ms a step;"
                f" time ratio {row['time_ratio']:.3f}"
                f" (FLOPs {row['flops_ratio']:.3f},"
                f" parameters {row['parameters_ratio']:.3f})",
                flush=True,
            )
    settings = {
        name: value for name, value in vars(options).items() if name != "output"
    }
    machine = {
        "platform": jax.devices()[0].platform,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "jax": jax.__version__,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"settings": settings, "machine": machine, "rows": rows}
    options.output.write_text(json.dumps(report, indent=2) + "\n")


def measure(name, conv, options):
    """Returns the medians of masked and compacted steps, and their ratio."""
    model = zoo.create(name, num_classes=10, conv=conv)
    images = jnp.zeros((1, *model.input_shape))
    variables = jax.jit(model.init)(jax.random.key(options.seed), images)
    scores = {
        layer: np.zeros(model.wiring()[layer].width) for layer in zoo.layer_names(model)
    }
    plan = surgery.make_plan(
        scores, options.rate, scope="layer", order="random", seed=options.seed
    )
    *_, total = surgery.plan_report(model, plan)
    candidates = {
        "masked": (model, surgery.mask(model, variables, plan)),
        "compacted": surgery.compact(model, variables, plan),
        **traced(model, variables, plan),
    }
    runs = {
        name: make_run(*candidate, options) for name, candidate in candidates.items()
    }
    seconds = {name: [] for name in runs}
    for repeat in range(options.repeats + 2):
        for name_of_run, run in runs.items():
            elapsed = run()
            if repeat >= 2:  # the first ones compile and warm up
                seconds[name_of_run].append(elapsed)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    return {
        "model": name,
        "conv": conv,
        "masked_seconds": medians["masked"],
        "compacted_seconds": medians["compacted"],
        "time_ratio": medians["compacted"] / medians["masked"],
        "traced_seconds": medians.get("traced"),
        "flops_ratio": total.flops_after / total.flops_before,
        "parameters_ratio": total.parameters_after / total.parameters_before,
        "seconds": seconds,
    }


def traced(model, variables, plan):
    """The same cut by tracing, for convolutions that are plain XLA."""
    if model.conv != "xla":
        return {}
    cut = cutting.plan_cuts(model, variables, plan)
    return {"traced": (cut.network, cut.variables(variables))}


def make_run(model, variables, options):
    """Returns a function that makes one training step and says how long it took."""
    optimizer = optax.chain(
        optax.add_decayed_weights(5e-4), optax.sgd(0.1, momentum=0.9, nesterov=True)
    )
    images, labels = training_step.random_batch(model, options)
    step = training_step.make_step(model, optimizer, images, labels)
    step = jax.jit(step, donate_argnums=(0, 1))
    # Copies: donation must not take the arrays the two networks share.
    state = [jax.tree.map(jnp.copy, variables), optimizer.init(variables["params"])]

    def run():
        start = time.perf_counter()
        state[:] = jax.block_until_ready(step(*state))
        return time.perf_counter() - start

    return run


if __name__ == "__main__":
    main()
