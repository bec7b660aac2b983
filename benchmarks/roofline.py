"""How far training is from what the machine can do at most.

The limit is the rate of multiply-adds that stay in registers. Each convolution of a
network (forward and both gradients) and each BatchNorm is timed alone on one core, and
so are training steps inside one program, as a round runs them. What a step takes beyond
the sum of its kernels is spent between them. The shortest of several times counts,
because other work on the machine only adds to it. Where the processor multiplies
bfloat16, everything is timed in bfloat16 as well.

    python benchmarks/roofline.py            # about three minutes
"""

import argparse
import collections
import concurrent.futures
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
import report as reports  # noqa: E402

from fuprune.kernels import convolution, library, normalisation  # noqa: E402
from fuprune.models import zoo  # noqa: E402

STEPS = 8  # in one program


def main(arguments=None):
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=["resnet20", "vgg11"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args(arguments)
    if not library.available():
        sys.exit(f"nothing to measure: {library.why_not()}")
    cores = sorted(os.sched_getaffinity(0))
    # Before JAX starts its backend: one core for XLA, too.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    found = {"date": reports.now(), "machine": reports.machine()}
    found["batch_size"] = options.batch_size
    found["peaks"] = measure_peaks(cores)
    library.set_threads(1)
    os.sched_setaffinity(0, cores[:1])
    try:
        found["nets"] = {net: measure_net(net, options) for net in options.nets}
    finally:
        os.sched_setaffinity(0, cores)
        library.set_threads(len(cores))
    print(layer_table(found), table(found), sep="\n\n")
    reports.write("roofline", found, table(found))
    return found


def measure_peaks(cores) -> dict:
    """Rates in registers, on one core alone and summed over all at once."""
    with tempfile.TemporaryDirectory() as folder:
        built = pathlib.Path(folder) / "peak_rates.so"
        command = ["g++", "-O3", "-march=native", "-ffp-contract=fast", "-shared"]
        command += ["-fPIC", "-o", str(built), str(HERE / "peak_rates.cc")]
        subprocess.run(command, check=True)
        native = ctypes.CDLL(str(built))
    count = ctypes.c_long(10**7)

    def on(core, run):
        os.sched_setaffinity(0, [core])  # of this thread
        return run(count)

    def rates(run):
        run.restype = ctypes.c_double
        best = [0.0, 0.0]
        for _ in range(60):
            for i, used in enumerate((cores[:1], cores)):
                with concurrent.futures.ThreadPoolExecutor(len(used)) as threads:
                    waiting = [threads.submit(on, core, run) for core in used]
                    best[i] = max(best[i], sum(w.result() for w in waiting))
        return best

    return {
        "float32": rates(native.MultiplyAdds),
        "bfloat16": rates(native.Bfloat16Products),
    }


def measure_net(net, options) -> dict:
    """Each kind of layer with its times on one core, and a training step's."""
    model = zoo.create(net, num_classes=10, conv="onednn")
    rows = []
    for shape, number in layer_shapes(net, options.batch_size).items():
        rows += convolution_rows(*shape, number, options)
        rows.append(norm_row(shape[0] // shape[3], shape[2], number, options))
    steps = {
        str(dtype): step_seconds(model.clone(dtype=dtype), options) for dtype in types()
    }
    return {"rows": rows, "step_seconds": steps}


def types() -> list:
    """The types of activations worth timing on this processor."""
    fast = library.multiplies_bfloat16()
    return [jnp.dtype(name) for name in library.DTYPES if fast or name == "float32"]


def layer_shapes(net: str, batch_size: int = 1) -> dict:
    """`{(side of the input, inputs, outputs, stride): how many convolutions}`."""
    model = zoo.create(net, num_classes=10, conv="xla")
    images = jax.ShapeDtypeStruct((batch_size, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), images)
    closed = jax.make_jaxpr(lambda v, x: model.apply(v, x))(variables, images)
    found = collections.Counter()
    waiting = [closed.jaxpr]
    while waiting:
        for equation in waiting.pop().eqns:
            waiting += [
                getattr(inner, "jaxpr", inner)
                for inner in jax.tree.leaves(
                    list(equation.params.values()), is_leaf=_is_jaxpr
                )
                if _is_jaxpr(inner)
            ]
            if equation.primitive.name == "conv_general_dilated":
                data, kernel = (v.aval.shape for v in equation.invars)
                stride = equation.params["window_strides"][0]
                found[data[1], kernel[2], kernel[3], stride] += 1
    return dict(found)


def _is_jaxpr(value) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def convolution_rows(side, inputs, outputs, stride, number, options):
    """One convolution and its two gradients."""
    batch = options.batch_size
    data = jax.random.normal(jax.random.key(0), (batch, side, side, inputs))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, inputs, outputs))

    def forward(data, kernel):
        return convolution.implementation("onednn")(
            data,
            kernel,
            (stride, stride),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def gradient(which):
        return lambda d, k, y: jax.vjp(forward, d, k)[1](y)[which]

    functions = {"forward": forward, "gradient of kernel": gradient(1)}
    if inputs != 3:  # images have no gradient
        functions["gradient of data"] = gradient(0)
    result = jax.jit(forward)(data, kernel)
    for what, function in functions.items():

        def taken(dtype, function=function, what=what):
            typed = (data.astype(dtype), kernel, result.astype(dtype))
            operands = typed[:2] if what == "forward" else typed
            return least_seconds(jax.jit(function), operands, options.repeats)

        yield {
            "layer": f"{inputs} to {outputs}, {side}x{side}, stride {stride}",
            "what": what,
            "number": number,
            "seconds": {str(dtype): taken(dtype) for dtype in types()},
            "flops": 2 * inputs * outputs * batch * pairs_per_axis(side, stride) ** 2,
        }


def pairs_per_axis(side, stride) -> int:
    """How often a 3-wide kernel meets a pixel; padding needs no product."""
    outputs = side // stride
    before = max((outputs - 1) * stride + 3 - side, 0) // 2
    places = (o * stride + tap - before for o in range(outputs) for tap in range(3))
    return sum(0 <= place < side for place in places)


def norm_row(side, channels, number, options) -> dict:
    """BatchNorm with ReLU, forward and gradient."""
    shape = (options.batch_size, side, side, channels)
    data = jax.random.normal(jax.random.key(0), shape)
    scale, bias = jnp.ones(channels), jnp.zeros(channels)
    norm = normalisation.implementation("onednn")

    def both(data, scale, bias):
        def forward(*operands):
            return norm(*operands, None, None, relu=True)

        outputs, pullback = jax.vjp(forward, data, scale, bias)
        return outputs, pullback(outputs)

    def taken(dtype):
        operands = (data.astype(dtype), scale, bias)
        return least_seconds(jax.jit(both), operands, options.repeats)

    return {
        "layer": f"{channels}, {side}x{side}",
        "what": "norm and ReLU, both ways",
        "number": number,
        "seconds": {str(dtype): taken(dtype) for dtype in types()},
        "flops": 0,
    }


def step_seconds(model, options) -> float:
    """A training step on one core, among several in one program."""
    shape = (options.batch_size, 32, 32, 3)
    images = jax.random.normal(jax.random.key(0), shape)
    labels = jnp.arange(options.batch_size) % 10
    optimizer = optax.sgd(0.01, momentum=0.9)

    def step(_, state):
        (params, statistics), momentum = state

        def loss_of(params):
            variables = {"params": params, "batch_stats": statistics}
            logits, update = model.apply(
                variables, images, train=True, mutable=["batch_stats"]
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.mean(losses), update["batch_stats"]

        gradient, statistics = jax.grad(loss_of, has_aux=True)(params)
        change, momentum = optimizer.update(gradient, momentum, params)
        return (optax.apply_updates(params, change), statistics), momentum

    variables = jax.jit(model.init)(jax.random.key(0), images[:1])
    state = (variables["params"], variables["batch_stats"])
    steps = jax.jit(lambda state: jax.lax.fori_loop(0, STEPS, step, state))
    operands = ((state, optimizer.init(state[0])),)
    return least_seconds(steps, operands, options.repeats) / STEPS


def least_seconds(run, operands, repeats) -> float:
    """The shortest time of a call; short calls are repeated in a measurement."""
    jax.block_until_ready(run(*operands))
    start = time.perf_counter()
    jax.block_until_ready(run(*operands))
    calls = max(1, round(0.02 / max(time.perf_counter() - start, 1e-6)))
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            result = run(*operands)
        jax.block_until_ready(result)
        taken.append((time.perf_counter() - start) / calls)
    return min(taken)


def table(found) -> str:
    """Images per second on one core, against the limit of the products."""
    peaks = found["peaks"]
    lines = [
        f"{reports.described(found)}; one core, batches of {found['batch_size']};"
        " in registers, one core multiplies and adds at"
        + " and".join(
            f" {peaks[dtype][0] / 1e9:.0f} GFLOP/s in {dtype}"
            f" (all cores: {peaks[dtype][1] / 1e9:.0f})"
            for dtype in peaks
            if peaks[dtype][0]
        )
        + ".",
        "",
        "| images/s | measured | limit of its products | share | of the step in kernels"
        " | kernel that loses most time, its share of the peak |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, net in found["nets"].items():
        flops = sum(row["number"] * row["flops"] for row in net["rows"])
        for dtype, step in net["step_seconds"].items():
            peak = peaks[dtype][0]
            kernels = sum(row["number"] * row["seconds"][dtype] for row in net["rows"])
            products = [row for row in net["rows"] if row["flops"]]
            worst = max(products, key=lambda row: lost_seconds(row, dtype, peak))
            reached = worst["flops"] / worst["seconds"][dtype] / peak
            images = found["batch_size"]
            lines.append(
                f"| {name} {dtype} | {images / step:,.0f} |"
                f" {images * peak / flops:,.0f} | {flops / step / peak:.0%} |"
                f" {kernels / step:.0%} | {worst['layer']}, {worst['what']}:"
                f" {reached:.0%} |"
            )
    return "\n".join(lines)


def lost_seconds(row, dtype, peak) -> float:
    """The time of a network's kernels of one kind beyond the peak's."""
    return row["number"] * (row["seconds"][dtype] - row["flops"] / peak)


def layer_table(found) -> str:
    """Every kernel with its time and its share of the peak."""
    lines = []
    for name, net in found["nets"].items():
        for row in net["rows"]:
            shown = [
                f"{dtype} {1e3 * seconds:.2f} ms,"
                f" {row['flops'] / seconds / found['peaks'][dtype][0]:.0%}"
                for dtype, seconds in row["seconds"].items()
            ]
            lines.append(
                f"{name} {row['number']} x {row['layer']}, {row['what']}:"
                f" {'; '.join(shown)}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
