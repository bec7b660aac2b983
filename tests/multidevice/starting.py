"""Processes of one run on this machine."""

import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
# Small enough for a test, and still the real network, data and command.
SMALL = (
    "--config.model.name=resnet8",
    "--config.data.limit=6",
    "--config.data.test_limit=4",
    "--config.partition.kind=iid",
    "--config.partition.clients=6",
    "--config.train.rounds=3",
    "--config.train.cohort=5",
    "--config.train.local_epochs=1",
    "--config.train.learning_rate=0.002",
    "--config.train.checkpoint_every=1",
    "--config.train.evaluate_every=1",
    "--config.unlearn.methods=class_pruning",
    "--config.fine_tune.rounds=1",
    "--config.runtime.heartbeat_seconds=20",
    "--config.runtime.join_seconds=240",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**extra) -> dict[str, str]:
    """That of a user: nothing of this test run's own devices."""
    kept = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **extra}


def start(arguments, **extra) -> subprocess.Popen:
    """A Python process, its output kept."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_main(workdir, *flags, **extra) -> subprocess.Popen:
    """`python -m fuprune.main` on the embedded digits."""
    return start(["-m", "fuprune.main", "--workdir", workdir, *flags], **extra)


def ends(processes, timeout=600) -> list[tuple[int, str]]:
    """Exit code and output of each; none is left behind, whatever happens."""
    try:
        return [
            (p.communicate(timeout=timeout)[0], p.returncode)[::-1] for p in processes
        ]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def errors(output: str) -> list[str]:
    """The lines meant for the user."""
    return [line for line in output.splitlines() if line.startswith("fuprune: error:")]
