"""What a network that was cut by tracing costs, against one written with those widths.

    python benchmarks/traced_speed.py

Half the channels of every layer are cut, at random. Three comparisons:

- every network of the zoo cut by tracing, against the same cut by its wiring, which is
  the zoo's code with shorter wires: FLOPs of the compiled evaluation and training step,
  and the time of both for the networks of `--timed` (all, if not given);
- two networks in plain Flax, cut by tracing, against the same class written with the
  smaller widths: FLOPs and time;
- the seconds of processor time in which Flax's ResNet50 is traced and cut.

FLOPs are XLA's count of the compiled program. Times are seconds of processor time of
all threads, which other programs on the machine lengthen little. Steps of two networks
take turns, and the shortest of each is compared.
Results go to benchmarks/results/traced_speed.json.
"""

import argparse
import json
import os
import pathlib
import platform
import sys
import time
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import training_step

from fuprune import surgery
from fuprune.models import zoo
from fuprune.models.adapt import adapt
from fuprune.surgery import cutting

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results" / "traced_speed.json"
TARGETS = {"flops": 1.05, "time": 1.1, "resnet50_seconds": 10.0}


class PlainVGG(nn.Module):
    """A chain of convolutions with norms, pools between them, and a dense layer."""

    widths: tuple[int, ...]
    pools: tuple[int, ...] = (1, 3, 5)  # layers after which a 2x2 pool comes

    @nn.compact
    def __call__(self, x, train: bool = False):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        for i, width in enumerate(self.widths):
            x = nn.relu(norm()(nn.Conv(width, (3, 3), use_bias=False)(x)))
            x = nn.max_pool(x, (2, 2), (2, 2)) if i in self.pools else x
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class PlainResNet(nn.Module):
    """A stem and pairs of convolutions around which the stream goes; projections."""

    widths: tuple[int, ...]
    blocks: int = 3  # per width

    @nn.compact
    def __call__(self, x, train: bool = False):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        conv = partial(nn.Conv, use_bias=False)
        x = nn.relu(norm()(conv(self.widths[0], (3, 3))(x)))
        for i, width in enumerate(self.widths):
            for j in range(self.blocks):
                strides = (2, 2) if i and not j else (1, 1)
                y = nn.relu(norm()(conv(width, (3, 3), strides)(x)))
                y = norm()(conv(width, (3, 3))(y))
                if i and not j:
                    x = norm()(conv(width, (1, 1), strides)(x))
                x = nn.relu(x + y)
        return nn.Dense(10)(jnp.mean(x, axis=(1, 2)))


def main():
    """Measures, prints a line per comparison, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(zoo.MODELS))
    parser.add_argument("--timed", nargs="*", default=list(zoo.MODELS))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for name in options.models:
        repeats = options.repeats if name in options.timed else 0
        rows += compare(name, "its wiring", *by_wiring(name, options), options, repeats)
    for name, pair in by_hand(options).items():
        rows += compare(name, "by hand", *pair, options, options.repeats)
    seconds = resnet50_seconds()
    print(f"resnet50 traced and cut in {seconds:.1f} s of processor time")
    report = {
        "settings": {k: v for k, v in vars(options).items() if k != "output"},
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            "platform": jax.devices()[0].platform,
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load": load,
            "jax": jax.__version__,
        },
        "targets": TARGETS,
        "rows": rows,
        "resnet50_seconds": seconds,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2) + "\n")


def by_wiring(name, options):
    """A network of the zoo cut by tracing, and by its wiring."""
    model = zoo.create(name, num_classes=10, conv="xla")
    images = jnp.zeros((1, *model.input_shape))
    variables = jax.jit(model.init)(jax.random.key(options.seed), images)
    widths = {layer: model.wiring()[layer].width for layer in zoo.layer_names(model)}
    plan = random_plan(widths, options.seed)
    traced = cutting.plan_cuts(model, variables, plan)
    return (
        (traced.network, traced.variables(variables)),
        surgery.compact(model, variables, plan),
    )


def by_hand(options):
    """Plain networks cut by tracing, and the same class with the smaller widths.

    The residual network loses the same channels wherever two layers write to one
    stream: only then is there a plain network of those widths.
    """
    images = jnp.zeros((1, 32, 32, 3))
    pairs = {}
    for kind, widths in (
        (PlainVGG, (64, 128, 256, 256, 512, 512)),
        (PlainResNet, (16, 32, 64)),
    ):
        network, small = adapt(kind(widths)), adapt(kind(tuple(w // 2 for w in widths)))
        variables, own = (
            jax.jit(net.init)(jax.random.key(options.seed), images)
            for net in (network, small)
        )
        layers = surgery.trace_layers(network, variables, images)
        counts = {name: layer.channels for name, layer in layers.items()}
        if kind is PlainVGG:
            plan = random_plan(counts, options.seed)
        else:
            plan = surgery.PrunePlan(
                {name: np.arange(count // 2) for name, count in counts.items()}
            )
        slim = surgery.compact(network, variables, plan, example=images)
        shapes = [jax.tree.map(lambda x: x.shape, tree) for tree in (slim[1], own)]
        assert shapes[0] == shapes[1], "the two networks differ in their widths"
        pairs[kind.__name__] = (slim, (small, own))
    return pairs


def random_plan(widths, seed):
    """Half the channels of every layer."""
    scores = {layer: np.zeros(width) for layer, width in widths.items()}
    return surgery.make_plan(scores, 0.5, scope="layer", order="random", seed=seed)


def compare(name, against, traced, other, options, repeats):
    """Returns a row for evaluation and one for training."""
    rows = []
    for what, make in (("evaluation", make_evaluation), ("training", make_training)):
        programs = [make(*network, options) for network in (traced, other)]
        flops = [compiled.cost_analysis()["flops"] for compiled, _ in programs]
        row = {
            "model": name,
            "against": against,
            "what": what,
            "flops": flops[0],
            "flops_ratio": flops[0] / flops[1],
        }
        if repeats:
            seconds = take_turns([run for _, run in programs], repeats)
            shortest = [min(values) for values in seconds]
            row |= {
                "traced_seconds": shortest[0],
                "other_seconds": shortest[1],
                "time_ratio": shortest[0] / shortest[1],
                "seconds": seconds,
            }
        rows.append(row)
        time_ratio = f", time {row['time_ratio']:.3f}x" if repeats else ""
        print(
            f"{name:>11} against {against}, {what}: FLOPs"
            f" {row['flops_ratio']:.4f}x{time_ratio}",
            flush=True,
        )
    return rows


def take_turns(runs, repeats):
    """Processor seconds of each run, the order reversed every other time."""
    seconds = [[] for _ in runs]
    for repeat in range(repeats + 2):
        order = list(enumerate(runs))
        for number, run in order if repeat % 2 else reversed(order):
            start = time.process_time()
            run()
            if repeat >= 2:  # the first ones warm up
                seconds[number].append(time.process_time() - start)
    return seconds


def make_evaluation(model, variables, options):
    """A compiled evaluation, and a function that runs it."""
    images, _ = training_step.random_batch(model, options)
    step = jax.jit(lambda v, x: model.apply(v, x, train=False))
    compiled = step.lower(variables, images).compile()
    return compiled, lambda: jax.block_until_ready(compiled(variables, images))


def make_training(model, variables, options):
    """A compiled step of SGD with momentum, and a function that runs it."""
    images, labels = training_step.random_batch(model, options)
    optimizer = optax.sgd(0.1, momentum=0.9, nesterov=True)

    step = training_step.make_step(model, optimizer, images, labels)
    state = [dict(variables), optimizer.init(variables["params"])]
    compiled = jax.jit(step).lower(*state).compile()

    def run():
        state[:] = jax.block_until_ready(compiled(*state))

    return compiled, run


def resnet50_seconds():
    """Processor time to find the layers of a ResNet50 and cut it to half."""
    sys.path.insert(0, str(HERE.parent))
    from tests.surgery import networks

    network, shape = adapt(networks.resnet50()), (224, 224, 3)
    variables = networks.variables_of(network, shape)
    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    start = time.process_time()
    layers = surgery.trace_layers(network, variables, images)
    plan = random_plan({name: x.channels for name, x in layers.items()}, 0)
    surgery.compact(network, variables, plan, example=images)
    return time.process_time() - start


if __name__ == "__main__":
    main()
