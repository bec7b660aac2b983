"""What a cohort's step should cost on an A100 or H100, compiled without either.

XLA compiles for a GPU from a description of it. The program that comes back is read
kernel by kernel: calls of cuDNN and cuBLAS, fusions, copies, each as often as its loop
turns. A kernel takes the longest of three times: its products at the tensor cores'
peak, its operands and results at the memory's peak, and a launch. That is a ROOFLINE,
a time that no run can beat; what cuDNN makes of a grouped convolution of sixteen
channels is not in it. No run has confirmed it.

Runs in the environment `setup.sh cuda` makes (3 GB):

    python benchmarks/gpu_estimate.py
    python benchmarks/gpu_estimate.py --devices h100 --forms vmap --dtypes bfloat16
"""

import collections
import itertools
import math
import os
import pathlib
import re
import sys
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import accelerator_programs  # noqa: E402

RESULTS = HERE / "results" / "gpu_estimate.json"
FORMS = ("floor", "map", "vmap")
# Between two kernels of one stream, launched from the host.
LAUNCH_SECONDS = 3e-6


class Device(NamedTuple):
    """A GPU by its data sheet; rates are dense, without sparsity."""

    title: str
    capability: int
    cores: int
    shared_bytes: int
    clock_ghz: float
    cache_bytes: int
    memory_bytes: int
    bandwidth: float  # bytes a second
    products: dict[str, float]  # FLOP/s by the type of the operands


DEVICES = {
    "a100": Device(
        "NVIDIA A100-SXM4-80GB",
        *(8, 108, 167_936, 1.41, 41_943_040, 85 * 10**9, 2.039e12),
        # JAX multiplies float32 in TF32 there unless told otherwise.
        {"float32": 156e12, "bfloat16": 312e12},
    ),
    "h100": Device(
        "NVIDIA H100 80GB HBM3",
        *(9, 132, 233_472, 1.98, 52_428_800, 85 * 10**9, 3.352e12),
        {"float32": 494e12, "bfloat16": 989e12},
    ),
}


class Kernel(NamedTuple):
    """One instruction that a GPU runs, and how often."""

    kind: str
    flops: float  # of products; the rest of a fusion is bound by memory
    bytes: int
    times: int


def main(arguments=None):
    """Compile, print, write."""
    parser = accelerator_programs.make_parser(__doc__, FORMS, RESULTS)
    parser.add_argument("--devices", nargs="+", default=tuple(DEVICES))
    parser.add_argument("--dtypes", nargs="+", default=("float32", "bfloat16"))
    parser.set_defaults(platform="gpu")
    options = parser.parse_args(arguments)
    # It describes a GPU and opens none; the host's own backend stays the CPU.
    os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    accelerator_programs.enter("cuda", __file__, arguments)
    report = accelerator_programs.read_report(options.output)
    report["launch_seconds"] = LAUNCH_SECONDS
    for device, dtype, form in itertools.product(
        options.devices, options.dtypes, options.forms
    ):
        options.dtype = dtype
        row = estimate(device, form, options)
        print(
            f"{device} {form} {row['dtype']}: {1e3 * row['seconds']:.2f} ms at best,"
            f" {row['kernels']:.0f} kernels, {row['gflop']:.0f} GFLOP,"
            f" {row['gigabytes']:.1f} GB, compiled in {row['compile_seconds']:.0f} s",
            flush=True,
        )
        accelerator_programs.add_row(report, row)
        accelerator_programs.write_report(report, options.output)
    return report


def estimate(device, form, options):
    """One row: a local step of every client of the cohort."""
    from jax.experimental import topologies

    about = DEVICES[device]
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=description(about), topology="1x1x1"
    )
    compiled, steps, row = accelerator_programs.compile_for(topology, form, options)
    kernels = read_kernels(compiled.as_text(), steps)
    peak = about.products[options.dtype]
    kinds = collections.Counter()
    for kernel in kernels:
        kinds[kernel.kind] += kernel.times / steps
    return {
        "device": device,
        **row,
        "seconds": sum(k.times * least_seconds(k, about, peak) for k in kernels)
        / steps,
        "launch_seconds": LAUNCH_SECONDS * sum(kinds.values()),
        "kernels": sum(kinds.values()),
        "kinds": dict(kinds.most_common()),
        "gflop": sum(k.times * k.flops for k in kernels) / steps / 1e9,
        "gigabytes": sum(k.times * k.bytes for k in kernels) / steps / 1e9,
        "memory_bytes": accelerator_programs.memory_of(compiled),
    }


def least_seconds(kernel: Kernel, device: Device, peak: float) -> float:
    """The longest of a kernel's products, its memory traffic and its launch."""
    return max(kernel.flops / peak, kernel.bytes / device.bandwidth, LAUNCH_SECONDS)


def description(device: Device) -> str:
    """The device as XLA's `GpuTargetConfigProto` in text."""
    return f"""
    gpu_device_info {{
      threads_per_block_limit: 1024 threads_per_warp: 32
      shared_memory_per_block: 49152 shared_memory_per_core: {device.shared_bytes}
      shared_memory_per_block_optin: {device.shared_bytes - 1024}
      threads_per_core_limit: 2048 core_count: {device.cores}
      fpus_per_core: {64 if device.capability == 8 else 128}
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      memory_bandwidth: {device.bandwidth:.0f} l2_cache_size: {device.cache_bytes}
      clock_rate_ghz: {device.clock_ghz} device_memory_size: {device.memory_bytes}
      cuda_compute_capability {{ major: {device.capability} }}
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
    }}
    platform_name: "CUDA"
    dnn_version_info {{ major: 9 minor: 10 }}
    runtime_version {{ major: 12 minor: 9 }}
    device_description_str: "{device.title}"
    """


# What costs nothing on a GPU: names for parts of memory, and control.
FREE = {
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"),
    *("while", "call", "conditional", "async-start", "async-done", "partition-id"),
}
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
WIDTHS |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(.*)")


class Instruction(NamedTuple):
    """One line of a compiled module."""

    shape: str
    operation: str
    operands: list[str]
    rest: str


def read_kernels(text: str, steps: int) -> list[Kernel]:
    """The kernels of a compiled module; a loop without a known count turns `steps`
    times: it is the one over a client's local steps."""
    bodies = {
        name: dict(filter(None, map(_instruction, lines)))
        for name, lines in accelerator_programs.computations(text).items()
    }
    found = []

    def visit(name, times):
        instructions = bodies[name]
        for each in instructions.values():
            if each.operation == "while":
                known = re.search(r'known_trip_count":\{"n":"(\d+)"', each.rest)
                turns = int(known[1]) if known else steps
                body = re.search(r"body=%([^,\s]+)", each.rest)[1]
                visit(body, times * turns)
            elif each.operation in ("call", "async-start"):
                visit(re.search(r"(?:to_apply|calls)=%([^,\s]+)", each.rest)[1], times)
            elif each.operation == "conditional":
                raise ValueError("a branch has no one cost; only loops can be counted")
            elif each.operation not in FREE:
                operands = [instructions[o].shape for o in each.operands]
                size = sum(map(_bytes, [each.shape, *operands]))
                flops = _flops(each, operands, bodies)
                found.append(Kernel(_kind(each, bodies), flops, size, times))

    visit("ENTRY", 1)
    return found


def _instruction(line: str) -> tuple[str, Instruction] | None:
    if not (match := INSTRUCTION.match(line)):
        return None
    name, shape, operation, operands, rest = match.groups()
    return name, Instruction(
        shape, operation, re.findall(r"%([^\s,)]+)", operands), rest
    )


def _kind(each: Instruction, bodies) -> str:
    """What a reader calls the kernel: the library's call, or what the fusion is for."""
    if each.operation == "custom-call":
        target = re.search(r'custom_call_target="([^"]+)"', each.rest)[1].strip("_")
        grouped = re.search(r"feature_group_count=(\d+)", each.rest)
        return target + (" grouped" if grouped and int(grouped[1]) > 1 else "")
    if each.operation != "fusion":
        return each.operation
    inside = {i.operation for i in _called(each, bodies).values()}
    for operation in ("dot", "convolution", "scatter", "gather", "reduce", "transpose"):
        if operation in inside:
            return f"fusion with {operation}"
    return "fusion"


def _called(each: Instruction, bodies) -> dict[str, Instruction]:
    return bodies[re.search(r"calls=%([^,\s]+)", each.rest)[1]]


def _flops(each: Instruction, operands: list[str], bodies) -> float:
    """Products and sums of convolutions and matrix products."""
    if each.operation == "fusion":
        inside = _called(each, bodies)
        return sum(
            _flops(i, [inside[o].shape for o in i.operands], bodies)
            for i in inside.values()
            if i.operation in ("dot", "convolution")
        )
    if each.operation == "dot" or "__cublas" in each.rest:
        contracted = re.search(r'lhs_contracting_dim\w*"?[=:][\[{]([^\]}]*)', each.rest)
        axes = [int(axis) for axis in re.findall(r"\d+", contracted[1])]
        return (
            2 * _elements(each.shape) * math.prod(_dims(operands[0])[a] for a in axes)
        )
    if each.operation == "convolution" or "__cudnn$conv" in each.rest:
        return _convolution_flops(each, operands)
    return 0


def _convolution_flops(each: Instruction, operands: list[str]) -> float:
    """Two for each output, kernel position and input channel of its group.

    A gradient has as many as its convolution; cuDNN's calls for gradients carry that
    convolution's labels. Positions that dilation fills with zeros are not counted.
    """
    kernel_labels = re.search(r"dim_labels=\w+_(\w+)->", each.rest)[1]
    kernel, output = operands[1], each.shape
    if "convBackwardInput" in each.rest:
        output = operands[0]
    elif "convBackwardFilter" in each.rest:
        kernel, output = each.shape, operands[1]
    sizes = [
        size
        for label, size in zip(kernel_labels, _dims(kernel), strict=True)
        if label != "o"
    ]
    dilation = re.search(r"lhs_dilate=([\dx]+)", each.rest)
    zeros = math.prod(map(int, dilation[1].split("x"))) if dilation else 1
    return 2 * _elements(output) * math.prod(sizes) / zeros


def _dims(shape: str) -> list[int]:
    """The sizes of an array's axes; of a tuple's first array."""
    return [
        int(size) for size in re.findall(r"\d+", re.search(r"\[([\d,]*)\]", shape)[1])
    ]


def _elements(shape: str) -> int:
    return math.prod(_dims(shape))


def _bytes(shape: str) -> int:
    arrays = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape)
    return sum(
        WIDTHS[kind] * math.prod(int(size) for size in dims.split(",") if size)
        for kind, dims in arrays
        if kind in WIDTHS
    )


if __name__ == "__main__":
    main()
