"""What a TPU's compiler expects a FedAvg step of a cohort to cost, without a TPU.

A whole round is compiled for a TPU topology with each way to iterate over clients, and
the cycles that the compiler wrote beside its instructions are added up, each loop's as
often as it turns. They are ESTIMATES: the compiler writes none beside gathers, nor do
they know of memory stalls between instructions, and no run has confirmed them. The
floor is one step on the same images with one set of weights, which FedAvg cannot use,
for its clients' weights differ after the first step.

Runs in the environment `setup.sh tpu` makes:

    python benchmarks/accelerator_estimate.py
    python benchmarks/accelerator_estimate.py --forms map --dtype bfloat16
    python benchmarks/accelerator_estimate.py --forms convolutions    # seconds
"""

import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import accelerator_programs  # noqa: E402

RESULTS = HERE / "results" / "accelerator_estimate.json"
FORMS = ("floor", "map", "vmap")
# Channels and pixels of a side of single convolutions, 256 images each.
CONVOLUTIONS = ((16, 32), (128, 32), (512, 8))
PRECISIONS = (("float32", "default"), ("float32", "highest"), ("bfloat16", "default"))


def main(arguments=None):
    """Compile, print, write."""
    parser = accelerator_programs.make_parser(__doc__, FORMS, RESULTS)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.set_defaults(platform="tpu")
    options = parser.parse_args(arguments)
    # It describes a TPU and opens none; the host's own backend stays the CPU.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "JAX_PLATFORMS": "cpu",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    accelerator_programs.enter("tpu", __file__, arguments)
    report = accelerator_programs.read_report(options.output)
    for form in options.forms:
        if form == "convolutions":
            report.setdefault("convolutions", {})
            report["convolutions"][options.topology] = convolutions(options.topology)
            accelerator_programs.write_report(report, options.output)
            continue
        row = estimate(form, options)
        print(
            f"{row['net']} {row['dtype']} {form}: {row['cycles'] / 1e6:.1f}M cycles"
            f" estimated, {row['bytes'] / 1e6:.0f} MB,"
            f" compiled in {row['compile_seconds']:.0f} s",
            flush=True,
        )
        accelerator_programs.add_row(report, row)
        add_ratios(report["rows"])
        accelerator_programs.write_report(report, options.output)
    return report


def add_ratios(rows):
    """Each row's cycles against the float32 floor of the same net and cohort."""
    key = ("topology", "net", "clients", "batch_size")
    for row in rows:
        row["ratio"] = next(
            (
                row["cycles"] / floor["cycles"]
                for floor in rows
                if floor["form"] == "floor"
                and floor["dtype"] == "float32"
                and all(floor[k] == row[k] for k in key)
            ),
            None,
        )


def estimate(form, options):
    """One row: a local step of every client of the cohort."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=options.topology
    )
    compiled, steps, row = accelerator_programs.compile_for(topology, form, options)
    return {
        "topology": options.topology,
        **row,
        "cycles": count_cycles(compiled.as_text(), steps) / steps,
        "bytes": accelerator_programs.memory_of(compiled),
    }


def convolutions(topology_name) -> list[dict]:
    """Cycles of single 3x3 convolutions by type and precision of the products."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    topology = topologies.get_topology_desc(platform="tpu", topology_name=topology_name)
    sharding = SingleDeviceSharding(topology.devices[0])

    def convolve(images, kernel):
        return jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    rows = []
    for channels, side in CONVOLUTIONS:
        row = {"channels": channels, "side": side, "cycles": {}}
        for dtype, precision in PRECISIONS:
            shapes = [(256, side, side, channels), (3, 3, channels, channels)]
            with jax.default_matmul_precision(precision):
                compiled = (
                    jax.jit(convolve, in_shardings=sharding, out_shardings=sharding)
                    .lower(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))
                    .compile()
                )
            cycles = count_cycles(compiled.as_text(), 1)
            row["cycles"][f"{dtype} {precision}"] = cycles
        print(topology_name, row, flush=True)
        rows.append(row)
    return rows


def count_cycles(text: str, steps: int) -> int:
    """Estimated cycles of a compiled module; loops turn as often as they say.

    A loop whose condition holds no constant is the one over local steps, whose number
    is a client's own: `steps`.
    """
    bodies = accelerator_programs.computations(text)

    def cycles_of(name):
        total = 0
        for line in bodies[name]:
            if loop := re.search(r" while\(.*condition=%([^,]+), body=%([^,]+)", line):
                bound = re.search(
                    r"s32\[\]\S* constant\((\d+)\)", "".join(bodies[loop[1]])
                )
                total += (int(bound[1]) if bound else steps) * cycles_of(loop[2])
            elif " conditional(" in line or " call(" in line:
                raise ValueError(f"cannot count {line.strip()[:80]}; only loops can be")
            elif found := re.search(r'"estimated_cycles":"(\d+)"', line):
                total += int(found[1])
        return total

    return cycles_of("ENTRY")


if __name__ == "__main__":
    main()
