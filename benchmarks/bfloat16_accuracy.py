"""Does bfloat16 learn as well? CIFAR-10 with both types, three seeds a side.

Runs `fuprune.main` to train ResNet20 once per type and seed, and collects the test
accuracies. Each training has a workdir of its own and is resumed, so the script may be
stopped. Whether the processor multiplies bfloat16 hardly matters here: the kernels
round the same values everywhere and sum products in float32.

    python benchmarks/bfloat16_accuracy.py     # about 80 minutes of one AVX2 core
    python benchmarks/bfloat16_accuracy.py --types bfloat16    # float32 stays
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import report as reports

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = ("float32", "bfloat16")


def main(arguments=None):
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--types", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--rounds", type=int, default=450)
    parser.add_argument("--runs", type=pathlib.Path, default=HERE.parent / "runs")
    options = parser.parse_args(arguments)
    report = reports.read("bfloat16_accuracy")
    if report.get("rounds") != options.rounds:
        report = {"rounds": options.rounds, "rows": []}
    # Seed by seed, so that a run which is stopped has as many of either type.
    for seed in options.seeds:
        for dtype in options.types:
            row = train(dtype, seed, options)
            others = [
                r for r in report["rows"] if (r["dtype"], r["seed"]) != (dtype, seed)
            ]
            report["rows"] = [*others, row]
            reports.write("bfloat16_accuracy", report, table(report))
    print(table(report))
    return report


def table(report) -> str:
    """Test accuracies of either type, seed by seed."""
    seeds = sorted({row["seed"] for row in report["rows"]})
    lines = [
        "| type | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean |",
        "|---|" + "---:|" * (len(seeds) + 1),
    ]
    for dtype in DTYPES:
        found = {
            r["seed"]: r["accuracy"] for r in report["rows"] if r["dtype"] == dtype
        }
        shown = [f"{found[seed]:.2%}" if seed in found else "-" for seed in seeds]
        mean = statistics.mean(found.values())
        lines.append(f"| {dtype} | {' | '.join(shown)} | {mean:.2%} |")
    return "\n".join(lines)


def train(dtype, seed, options) -> dict:
    """One training: its type, seed and accuracies on all test images."""
    workdir = options.runs / f"{dtype}_{options.rounds}_seed{seed}"
    command = [
        "--config=configs/cifar10_resnet_cpu.py",
        "--config.phases=pretrain",
        f"--config.seed={seed}",
        f"--config.runtime.dtype={dtype}",
        f"--config.train.rounds={options.rounds}",
        "--config.train.warmup_rounds=20",
        "--config.runtime.progress=plain",
    ]
    subprocess.run(
        [sys.executable, "-m", "fuprune.main", *command, f"--workdir={workdir}"],
        cwd=HERE.parent,
        check=True,
    )
    raw = json.loads((workdir / "results.json").read_text())["stages"][0]
    return {
        "dtype": dtype,
        "seed": seed,
        "command": "python -m fuprune.main " + " ".join(command),
        **{name: raw[name] for name in ("accuracy", "u_accuracy", "r_accuracy")},
    }


if __name__ == "__main__":
    main()
