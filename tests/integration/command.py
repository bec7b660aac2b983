"""Runs of the real command line in their own processes, small enough to repeat."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SMALL = (
    "--config.model.name=tests.tiny:make_tiny",
    "--config.data.limit=10",
    "--config.data.test_limit=8",
    "--config.partition.clients=4",
    "--config.train.cohort=2",
    "--config.train.rounds=6",
    "--config.train.local_epochs=1",
    "--config.train.batch_size=8",
    "--config.train.evaluate_every=2",
    "--config.train.checkpoint_every=2",
    "--config.unlearn.methods=class_pruning,mask_logit",
    "--config.unlearn.retrain_seeds=1",
    "--config.fine_tune.rounds=4",
    "--config.phases=pretrain,unlearn,report",
    "--config.runtime.conv=xla",
    # Every device compiles every program for itself.
    "--config.runtime.devices=1",
)


def start(
    workdir: Path, *flags: str, small=SMALL, module=("fuprune.main",)
) -> subprocess.Popen:
    """Start a run in the background; its output goes to workdir.log."""
    command = [sys.executable, "-m", *module, "--workdir", str(workdir)]
    with open(f"{workdir}.log", "a") as log:
        return subprocess.Popen(
            [*command, *small, *flags],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )


def finish(workdir: Path, *flags: str, small=SMALL, timeout=900) -> str:
    """Run to the end; returns what was printed and fails if the run did."""
    code = start(workdir, *flags, small=small).wait(timeout)
    text = Path(f"{workdir}.log").read_text()
    assert code == 0, text[-3000:]
    return text


def rows(workdir: Path) -> int:
    """Whole lines in metrics.jsonl so far."""
    path = workdir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def interrupt(workdir: Path, when, how=signal.SIGKILL, *flags, small=SMALL) -> int:
    """Start a run, wait until `when()`, send it a signal, return its exit code."""
    process = start(workdir, *flags, small=small)
    limit = time.monotonic() + 600
    while not when() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    assert process.poll() is None, Path(f"{workdir}.log").read_text()[-3000:]
    process.send_signal(how)
    return process.wait(120)


def remains(workdir: Path) -> dict[str, bytes]:
    """What a run leaves behind, clocks aside, by relative path."""
    kept = {"metrics.jsonl": (workdir / "metrics.jsonl").read_bytes()}
    for path in sorted((workdir / "models").rglob("*.safetensors")):
        kept[str(path.relative_to(workdir))] = path.read_bytes()
    results = json.loads((workdir / "results.json").read_text())
    results.pop("provenance")  # names the workdir
    for row in results["methods"]:
        row.pop("times")
        for crossing in row["crossings"]:
            crossing.pop("seconds")
    kept["results"] = json.dumps(results, sort_keys=True).encode()
    return kept
