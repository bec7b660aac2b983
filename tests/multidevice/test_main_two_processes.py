"""The real command on two processes of two devices: same results, death, resumption.

`launch/local.sh` starts the processes, as a user would.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.multidevice.starting import ROOT, SMALL, environment

PAIR = ("--config.runtime.devices=2",)


def start_pair(workdir, *flags):
    """Two processes of one run, in a session of their own."""
    return subprocess.Popen(
        ["bash", "launch/local.sh", "2", "--workdir", str(workdir), *flags],
        cwd=ROOT,
        env=environment(PYTHON=sys.executable, GRACE="120"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end_of(launcher, timeout=900):
    """Exit code and output; whatever is left of the session is ended."""
    try:
        output, _ = launcher.communicate(timeout=timeout)
        return launcher.returncode, output
    finally:
        try:
            os.killpg(launcher.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def run_alone(workdir, *flags):
    done = subprocess.run(
        [sys.executable, "-m", "fuprune.main", "--workdir", str(workdir), *flags],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def rows_of(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_until(condition, launcher, seconds=600):
    until = time.monotonic() + seconds
    while not condition():
        assert launcher.poll() is None, launcher.communicate()[0][-3000:]
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.02)


def killed_and_resumed(pair, *flags):
    """A pair of which one is killed after the first checkpoint, and started again."""
    launcher = start_pair(pair, *flags, *PAIR)
    saved = pair / "checkpoints" / "pretrain" / "1" / "state"
    victim = pid_of(launcher, 1)
    wait_until(saved.exists, launcher)
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    code, output = end_of(launcher)
    took = time.monotonic() - begin
    assert code != 0
    assert took < 60, f"{took} s with a heartbeat of 20 s"
    assert "launch/local.sh: process" in output
    # JAX's own words, if it notices before a sum over devices fails.
    said = "another task died" in output or "if another one died" in output
    assert said, output[-3000:]
    assert "the same command continues the run" in output
    assert not (pair / "results.json").exists()
    code, output = end_of(start_pair(pair, *flags, *PAIR))
    assert code == 0, output[-3000:]
    assert "pretrain: continues after round" in output


def pid_of(launcher, number):
    """What `launch/local.sh` says."""
    for line in launcher.stdout:
        if found := re.search(rf"process {number} has pid (\d+)", line):
            return int(found.group(1))
    raise AssertionError("no process was started")


def test_a_killed_process_stops_the_other_and_the_next_start_resumes(tmp_path):
    """In the end all is, to the bit, as if nobody had been killed."""
    flags = (*SMALL, "--config.phases=pretrain,unlearn", "--config.train.rounds=4")
    killed_and_resumed(tmp_path / "killed", *flags)
    code, output = end_of(start_pair(tmp_path / "whole", *flags, *PAIR))
    assert code == 0, output[-3000:]
    assert "[1] digits" not in output  # process 1 shows no progress
    models = [f"models/{name}/model.safetensors" for name in ("raw", "class_pruning")]
    for name in ("metrics.jsonl", *models):
        one, other = (tmp_path / folder / name for folder in ("killed", "whole"))
        assert one.read_bytes() == other.read_bytes(), name


@pytest.mark.slow
def test_sigterm_to_one_process_saves_and_stops_both(tmp_path):
    """A scheduler that warns only one process stops the run, not half of it.

    What they saved, one process alone can continue.
    """
    flags = (*SMALL, "--config.phases=pretrain", "--config.train.rounds=40")
    flags += ("--config.train.checkpoint_every=100",)
    pair = tmp_path / "pair"
    launcher = start_pair(pair, *flags, *PAIR)
    warned = pid_of(launcher, 1)
    metrics = pair / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, launcher)
    os.kill(warned, signal.SIGTERM)
    code, output = end_of(launcher)
    assert code == 0, output[-3000:]
    assert "Stopped by SIGTERM" in output
    last = rows_of(pair)[-1]["round"]
    assert (pair / "checkpoints" / "pretrain" / str(last)).is_dir()
    assert last < 40
    run_alone(pair, *flags, "--config.runtime.devices=1")
    assert [row["round"] for row in rows_of(pair)] == list(range(41))
