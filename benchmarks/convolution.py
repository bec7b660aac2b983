"""The kernels against XLA's own operations: layers alone, and a training step.

Every pair is timed in turn, several times over, in one process with as many CPU devices
as cores, and medians are compared: only the ratios mean anything on a busy machine. A
step is one of ResNet20 on a batch of 32, as a plain jit on all cores, inside `lax.map`,
and on all devices at once with the steps in a loop inside jit, one thread a device.

    python benchmarks/convolution.py           # about ten minutes
    python benchmarks/convolution.py --smoke   # tiny, half a minute
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

from fuprune.kernels import convolution, library, normalisation  # noqa: E402
from fuprune.models import zoo  # noqa: E402

RESULTS = HERE / "results" / "convolution.json"
NAMES = ("xla", "onednn")
# (size, channels in, channels out, stride): the layers of ResNet20 and two of VGG.
LAYERS = (
    (32, 3, 16, 1),
    (32, 16, 16, 1),
    (32, 16, 32, 2),
    (16, 32, 32, 1),
    (16, 32, 64, 2),
    (8, 64, 64, 1),
    (16, 128, 128, 1),
    (4, 512, 512, 1),
)
NORMS = ((32, 16), (16, 32), (8, 64))  # (size, channels)


def main(arguments=None):
    """Measure, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8, help="local steps in a loop")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    layers, norms, net = LAYERS, NORMS, "resnet20"
    if options.smoke:
        options.repeats, options.batch_size, options.steps = 1, 2, 1
        layers, norms = LAYERS[:1], NORMS[:1]
    cores = len(os.sched_getaffinity(0))
    jax.config.update("jax_num_cpu_devices", cores)
    if not library.available():
        sys.exit(f"nothing to compare: {library.why_not()}")
    report = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": cores,
            "load_before": os.getloadavg()[0],
        },
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("jax", "onednn-cpu-gomp")
        },
        "repeats": options.repeats,
        "rows": [],
    }
    rows = report["rows"]
    library.set_threads(cores)
    for layer in layers:
        rows += layer_rows(*layer, options.batch_size, options.repeats)
    for norm in norms:
        rows += norm_rows(*norm, options.batch_size, options.repeats)
    rows += step_rows(net, cores, options)
    report["machine"]["load_after"] = os.getloadavg()[0]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    return report


def layer_functions(name, stride):
    """`{what: function}`: a 3x3 convolution and its two gradients."""

    def forward(data, kernel):
        return convolution.implementation(name)(
            data,
            kernel,
            (stride, stride),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def pullback(data, kernel, output):
        return jax.vjp(forward, data, kernel)[1](output)

    return {
        "forward": forward,
        "gradient of data": lambda d, k, y: pullback(d, k, y)[0],
        "gradient of kernel": lambda d, k, y: pullback(d, k, y)[1],
    }


def layer_rows(size, inputs, outputs, stride, batch_size, repeats):
    """One convolution and its two gradients, in GFLOP/s."""
    data = jax.random.normal(jax.random.key(0), (batch_size, size, size, inputs))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, inputs, outputs))
    flops = 2 * 9 * inputs * outputs * batch_size * (size // stride) ** 2

    output = jax.jit(layer_functions("xla", stride)["forward"])(data, kernel)
    for what in layer_functions("xla", stride):
        if what == "gradient of data" and inputs == 3:
            continue  # images have no gradient
        arguments = (data, kernel) if what == "forward" else (data, kernel, output)
        yield compared(
            f"{what}, 3x3, {inputs} to {outputs}, {size}x{size}, stride {stride}",
            "jit",
            {
                name: (jax.jit(layer_functions(name, stride)[what]), arguments)
                for name in NAMES
            },
            "GFLOP/s",
            flops / 1e9,
            repeats,
        )


def norm_rows(size, channels, batch_size, repeats):
    """Batch norm, residual and ReLU, in millions of elements a second."""
    shape = (batch_size, size, size, channels)
    data, residual = jax.random.normal(jax.random.key(0), (2, *shape))
    scale, bias = jnp.ones(channels), jnp.zeros(channels)
    arguments = (data, scale, bias, None, residual)

    def forward(name):
        function = normalisation.implementation(name)
        return jax.jit(lambda *operands: function(*operands, relu=True))

    def both(name):
        def run(data, scale, bias, mask, residual):
            outputs, pullback = jax.vjp(
                lambda *operands: forward(name)(*operands[:3], mask, operands[3]),
                data,
                scale,
                bias,
                residual,
            )
            return pullback(outputs)

        return jax.jit(run)

    for what, make in (("forward", forward), ("forward and gradient", both)):
        yield compared(
            f"{what}, batch norm, residual, ReLU, {channels} of {size}x{size}",
            "jit",
            {name: (make(name), arguments) for name in NAMES},
            "million elements/s",
            data.size / 1e6,
            repeats,
        )


def step_rows(net, cores, options):
    """Training steps, in images per second."""
    programs = {name: make_programs(net, name, options) for name in NAMES}
    images = options.batch_size

    def on_all_devices(name):
        run, carry = programs[name]["loop"]
        carries = [jax.device_put(carry, device) for device in jax.devices()]
        return (lambda *each: [run(carry) for carry in each]), carries

    for where, threads, factor, pairs in (
        ("jit", cores, 1, {n: programs[n]["step"] for n in NAMES}),
        ("lax.map over 2 clients", cores, 2, {n: programs[n]["map"] for n in NAMES}),
        (
            f"{cores} devices, {options.steps} steps in a loop",
            1,
            cores * options.steps,
            {name: on_all_devices(name) for name in NAMES},
        ),
    ):
        library.set_threads(threads)
        calls = {
            name: (run, arguments if isinstance(arguments, list) else (arguments,))
            for name, (run, arguments) in pairs.items()
        }
        # XLA's convolution inside a loop takes seconds a step.
        repeats = options.repeats if where == "jit" else min(options.repeats, 3)
        what = f"{net} training step, batch {images}"
        yield compared(what, where, calls, "images/s", images * factor, repeats)


def make_programs(net, name, options):
    """`{"step" | "map" | "loop": (function, its argument)}` for one convolution."""
    model = zoo.create(net, num_classes=10, conv=name)
    images = jax.random.normal(jax.random.key(0), (options.batch_size, 32, 32, 3))
    labels = jnp.arange(options.batch_size) % 10
    variables = jax.jit(model.init)(jax.random.key(1), images)
    optimizer = optax.sgd(0.1, momentum=0.9)

    def loss(params, stats):
        logits, updated = model.apply(
            {"params": params, "batch_stats": stats},
            images,
            train=True,
            mask=jnp.ones(options.batch_size),
            mutable=["batch_stats"],
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses), updated["batch_stats"]

    def step(carry):
        params, stats, state = carry
        gradients, stats = jax.grad(loss, has_aux=True)(params, stats)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), stats, state

    def loop(carry):
        return jax.lax.fori_loop(0, options.steps, lambda _, carry: step(carry), carry)

    params = variables["params"]
    carry = (params, variables["batch_stats"], optimizer.init(params))
    two = jax.tree.map(lambda x: jnp.stack([x, x]), carry)
    return {
        "step": (jax.jit(step), carry),
        "map": (jax.jit(lambda carries: jax.lax.map(step, carries)), two),
        "loop": (jax.jit(loop), carry),
    }


def compared(what, where, calls, unit, work, repeats):
    """One row: both contenders timed in turn, medians of `work` a second."""
    rates = {name: [] for name in calls}
    for run, arguments in calls.values():
        jax.block_until_ready(run(*arguments))
    for _ in range(repeats):
        for name, (run, arguments) in calls.items():
            rates[name].append(work / seconds_per_call(run, arguments))
    row = {"what": what, "where": where, "unit": unit}
    row |= {name: statistics.median(values) for name, values in rates.items()}
    row["ratio"] = statistics.median(
        a / b for a, b in zip(rates["onednn"], rates["xla"], strict=True)
    )
    print(
        f"{what}; {where}: XLA {row['xla']:.1f}, oneDNN {row['onednn']:.1f} {unit},"
        f" {row['ratio']:.2f}x",
        flush=True,
    )
    return row


def seconds_per_call(run, arguments, at_least=0.05):
    """Mean over as many calls as fill `at_least` seconds."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < at_least or not calls:
        jax.block_until_ready(run(*arguments))
        calls += 1
    return elapsed / calls


if __name__ == "__main__":
    main()
