"""How far each layer is from what the machine can do at most.

Two ceilings, on one core and on all cores at once: the rate of multiply-adds that stay
in registers (and what the clock says it should be: cycles per second, from a chain of
integer products, times two units times the lanes of a vector), and the best rate that
oneDNN reaches on any convolution measured here. Each convolution of a network, forward
and both gradients, and each BatchNorm is then timed alone on one core and added up as
often as the network holds it; what a whole training step takes beyond that sum is
spent between the kernels. Where the processor multiplies bfloat16, each kernel is timed
with bfloat16 data as well.

    python benchmarks/roofline.py            # about three minutes
    python benchmarks/roofline.py --smoke    # a few shapes, once, nothing written
"""

import argparse
import collections
import concurrent.futures
import ctypes
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / "peers")]

import convolution as convolution_benchmark  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
import round_throughput  # noqa: E402
import training_step  # noqa: E402

from fuprune.kernels import library, normalisation  # noqa: E402
from fuprune.models import zoo  # noqa: E402

RESULTS = HERE / "results" / "roofline.json"


def main(arguments=None):
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=["resnet20", "vgg11"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.smoke:
        options.nets, options.repeats, options.batch_size = ["resnet8"], 1, 2
    if not library.available():
        sys.exit(f"nothing to measure: {library.why_not()}")
    cores = sorted(os.sched_getaffinity(0))
    # Before JAX starts its backend: one core for XLA, too.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    machine = round_throughput.machine()
    peaks = measure_peaks(cores, short=options.smoke)
    library.set_threads(1)
    os.sched_setaffinity(0, cores[:1])
    try:
        nets = {net: measure_net(net, options) for net in options.nets}
    finally:
        os.sched_setaffinity(0, cores)
        library.set_threads(len(cores))
    report = {
        "date": round_throughput.now(),
        "machine": machine | {"load_after": os.getloadavg()[0]},
        "versions": {"jax": jax.__version__},
        "batch_size": options.batch_size,
        "peaks": peaks,
        "nets": nets,
    }
    if not options.smoke:
        round_throughput.write_report(options.output, report)
    print(table(report))
    return report


def measure_peaks(cores, *, short=False) -> dict:
    """Rates of one core alone and of all at once."""
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "peak_rates.so"
        command = ["g++", "-O3", "-march=native", "-ffp-contract=fast", "-shared"]
        command += ["-fPIC", "-o", str(library), str(HERE / "peak_rates.cc")]
        subprocess.run(command, check=True)
        native = ctypes.CDLL(str(library))
    for name in ("MultiplyAdds", "Bfloat16Products", "Cycles", "MemoryTraffic"):
        getattr(native, name).restype = ctypes.c_double
    scale = 100 if short else 1

    def on(core, run, *numbers):
        os.sched_setaffinity(0, [core])  # of this thread
        return run(*(ctypes.c_long(number) for number in numbers))

    def rates(run, *numbers):
        """`(one core, sum over all cores at once)`, the best of three."""
        best = [0.0, 0.0]
        for _ in range(3):
            for i, used in enumerate((cores[:1], cores)):
                with concurrent.futures.ThreadPoolExecutor(len(used)) as threads:
                    waiting = [threads.submit(on, c, run, *numbers) for c in used]
                    best[i] = max(best[i], sum(w.result() for w in waiting))
        return best

    cycles = rates(native.Cycles, 10**8 // scale)
    return {
        "multiply_adds": rates(native.MultiplyAdds, 10**8 // scale),
        "bfloat16_products": rates(native.Bfloat16Products, 10**8 // scale),
        "cycles": cycles,
        # Two units of a vector each, a product and a sum in each lane.
        "multiply_adds_by_clock": [2 * 2 * native.Lanes() * c for c in cycles],
        "bytes": rates(native.MemoryTraffic, 10**7, max(1, 20 // scale)),
    }


def measure_net(net, options) -> dict:
    """Each kind of layer with its times on one core, and the whole step's."""
    model = zoo.create(net, num_classes=10, conv="onednn")
    rows = []
    for shape, number in layer_shapes(model).items():
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


def layer_shapes(model) -> dict:
    """`{(side of the input, inputs, outputs, stride): how many convolutions}`."""
    sizes, wiring = model.output_sizes(), model.wiring()
    strides = getattr(model, "strides", lambda layer: 1)
    return dict(
        collections.Counter(
            (
                side * strides(layer),
                len(wiring[layer].inputs),
                len(wiring[layer].outputs),
                strides(layer),
            )
            for layer, (side, _) in sizes.items()
        )
    )


def convolution_rows(side, inputs, outputs, stride, number, options):
    """One convolution and its two gradients."""
    batch = options.batch_size
    data = jax.random.normal(jax.random.key(0), (batch, side, side, inputs))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, inputs, outputs))
    functions = convolution_benchmark.layer_functions("onednn", stride)
    result = jax.jit(functions["forward"])(data, kernel)
    for what, function in functions.items():
        if what == "gradient of data" and inputs == 3:
            continue  # images have no gradient

        def taken(dtype, function=function, what=what):
            typed = (data.astype(dtype), kernel, result.astype(dtype))
            operands = typed[:2] if what == "forward" else typed
            return median_seconds(jax.jit(function), operands, options.repeats)

        yield {
            "layer": f"{inputs} to {outputs}, {side}x{side}, stride {stride}",
            "what": what,
            "number": number,
            "seconds": {str(dtype): taken(dtype) for dtype in types()},
            "flops": 2 * inputs * outputs * batch * pairs_per_axis(side, stride) ** 2,
            "bytes": 4 * (data.size + kernel.size + result.size),
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
        return median_seconds(jax.jit(both), operands, options.repeats)

    return {
        "layer": f"{channels}, {side}x{side}",
        "what": "norm and ReLU, both ways",
        "number": number,
        "seconds": {str(dtype): taken(dtype) for dtype in types()},
        "flops": 0,
        # Read twice and written forward; three reads and a write on the way back.
        "bytes": 4 * 7 * data.size,
    }


def step_seconds(model, options) -> float:
    """A whole training step on one core."""
    images, labels = training_step.random_batch(model, options)
    optimizer = optax.sgd(0.1, momentum=0.9, nesterov=True)
    step = jax.jit(training_step.make_step(model, optimizer, images, labels))
    variables = jax.jit(model.init)(jax.random.key(0), images[:1])
    state = (variables, optimizer.init(variables["params"]))
    return median_seconds(step, state, options.repeats)


def median_seconds(run, operands, repeats) -> float:
    """Of one call; short calls are repeated inside a measurement."""
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
    return statistics.median(taken)


def table(report) -> str:
    """Ceilings, then the layers of each network."""
    machine, peaks = report["machine"], report["peaks"]
    rates = [
        row["flops"] / row["seconds"]["float32"]
        for net in report["nets"].values()
        for row in net["rows"]
    ]
    peak, bandwidth = peaks["multiply_adds"][0], peaks["bytes"][0]
    images = report["batch_size"]
    lines = [
        f"{report['date']}, {machine['cores']} cores of {machine['cpu']}, load"
        f" {machine['load_before']:.1f} before and {machine['load_after']:.1f} after;"
        f" batch {report['batch_size']}, one core unless said otherwise.",
        "",
        "| ceiling | one core | all cores |",
        "|---|---:|---:|",
        _ceiling("multiply-adds in registers, GFLOP/s", peaks["multiply_adds"]),
        _ceiling("the same by the clock, GFLOP/s", peaks["multiply_adds_by_clock"]),
        f"| best convolution of oneDNN below, GFLOP/s | {max(rates) / 1e9:.0f} | |",
        _ceiling("memory, GB/s", peaks["bytes"]),
    ]
    if peaks["bfloat16_products"][0]:
        title = "products of bfloat16 in registers (avx512_bf16), GFLOP/s"
        lines.append(_ceiling(title, peaks["bfloat16_products"]))
    for name, net in report["nets"].items():
        lines += [
            "",
            f"| {name} | what | in the net | ms | GFLOP/s | of the peak | GB/s |"
            " of the step | ms in bfloat16 |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        step = net["step_seconds"]["float32"]
        for row in net["rows"]:
            seconds = row["seconds"]["float32"]
            rate = row["flops"] / seconds
            half = row["seconds"].get("bfloat16")
            in_half = f"{1e3 * half:.2f}" if half else "-"
            shown = f"{rate / 1e9:.0f} | {rate / peak:.0%}" if rate else "- | -"
            lines.append(
                f"| {row['layer']} | {row['what']} | {row['number']} |"
                f" {1e3 * seconds:.2f} | {shown} | {row['bytes'] / seconds / 1e9:.1f} |"
                f" {row['number'] * seconds / step:.1%} | {in_half} |"
            )
        kernels = _sum_of_kernels(net, "float32")
        flops = sum(row["number"] * row["flops"] for row in net["rows"])
        least = sum(
            row["number"] * max(row["flops"] / peak, row["bytes"] / bandwidth)
            for row in net["rows"]
        )
        lines += [
            "",
            f"{name}: a step takes {1e3 * step:.1f} ms, its kernels alone"
            f" {1e3 * kernels:.1f} ms ({kernels / step:.0%}), the roofline (each kernel"
            f" at the peak of products or of memory) {1e3 * least:.1f} ms"
            f" ({least / step:.0%}); convolutions run at"
            f" {flops / step / peak:.0%} of the peak over the whole step. One core"
            f" trains {images / step:.0f} images/s so; the network's products alone"
            f" would allow {images * peak / flops:.0f} at the peak, and"
            f" {images * max(rates) / flops:.0f} at the rate of oneDNN's best"
            " convolution.",
        ]
        if half_step := net["step_seconds"].get("bfloat16"):
            half_kernels = _sum_of_kernels(net, "bfloat16")
            lines[-1] += (
                f" In bfloat16 a step takes {1e3 * half_step:.1f} ms"
                f" ({step / half_step:.2f}x as fast), its kernels alone"
                f" {1e3 * half_kernels:.1f} ms ({kernels / half_kernels:.2f}x)."
            )
    return "\n".join(lines)


def _sum_of_kernels(net, dtype) -> float:
    return sum(row["number"] * row["seconds"][dtype] for row in net["rows"])


def _ceiling(title, rates) -> str:
    return f"| {title} | {rates[0] / 1e9:.0f} | {rates[1] / 1e9:.0f} |"


if __name__ == "__main__":
    main()
