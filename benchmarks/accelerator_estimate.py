"""What a TPU's compiler expects a FedAvg step of a cohort to cost, without a TPU.

A whole round is compiled for a TPU topology with each way to iterate over clients, and
the cycles that the compiler wrote beside its instructions are added up, each loop's as
often as it turns. They are ESTIMATES: the compiler writes none beside gathers, nor do
they know of memory stalls between instructions, and no run has confirmed them. The
floor is one step on the same images with one set of weights, which FedAvg cannot use,
for its clients' weights differ after the first step.

Runs in the environment `setup.sh tpu` makes:

    python benchmarks/accelerator_estimate.py
    python benchmarks/accelerator_estimate.py --forms auto --dtype bfloat16
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import accelerator_programs  # noqa: E402

PYTHON = ROOT / ".bench" / "tpu" / "bin" / "python"
RESULTS = HERE / "results" / "accelerator_estimate.json"
FORMS = ("floor", "map", "vmap", "auto")


def main(arguments=None):
    """Compile, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--forms",
        nargs="+",
        default=FORMS,
        help="floor or a backend; auto is the one a run on a TPU takes",
    )
    parser.add_argument("--net", default="resnet20")
    parser.add_argument("--clients", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.set_defaults(platform="tpu")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    # It describes a TPU and opens none; the host's own backend stays the CPU.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "JAX_PLATFORMS": "cpu",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    if not PYTHON.exists():
        raise SystemExit(f"{PYTHON} is not there; run benchmarks/setup.sh tpu")
    if pathlib.Path(sys.prefix).resolve() != PYTHON.parents[1].resolve():
        os.execv(PYTHON, [str(PYTHON), __file__, *(arguments or sys.argv[1:])])
    import jax

    report = {"rows": []}
    if options.output.exists():
        report = json.loads(options.output.read_text())
    for form in options.forms:
        row = estimate(form, options)
        same = ("topology", "form", "net", "dtype", "clients", "batch_size")
        report["rows"] = [
            old for old in report["rows"] if any(old[k] != row[k] for k in same)
        ] + [row]
        print(
            f"{row['net']} {row['dtype']} {form}: {row['cycles'] / 1e6:.1f}M cycles"
            f" estimated, {row['bytes'] / 1e6:.0f} MB,"
            f" compiled in {row['compile_seconds']:.0f} s",
            flush=True,
        )
        report |= {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "versions": {"jax": jax.__version__},
        }
        add_ratios(report["rows"])
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
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
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=options.topology
    )
    sharding = SingleDeviceSharding(topology.devices[0])
    run, inputs, steps = accelerator_programs.make(form, options)
    start = time.perf_counter()
    compiled = (
        jax.jit(run, in_shardings=sharding, out_shardings=sharding)
        .lower(*inputs)
        .compile()
    )
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    return {
        "topology": options.topology,
        "form": form,
        "net": options.net,
        "dtype": options.dtype,
        "clients": options.clients,
        "batch_size": options.batch_size,
        "cycles": count_cycles(compiled.as_text(), steps) / steps,
        "bytes": memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes,
        "compile_seconds": seconds,
    }


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
