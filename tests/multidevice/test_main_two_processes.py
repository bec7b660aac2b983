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

import numpy as np
import pytest

import fuprune
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


def assert_same_run(one, other, *, models):
    """Rows and weights agree to float tolerance; a prediction or two may tip over.

    Sums over devices are taken in another order, and rounds on ten images a client
    under BatchNorm amplify the last bit: hence a small learning rate, and 2e-3.
    """
    first, second = rows_of(one), rows_of(other)
    assert [(r["phase"], r["round"]) for r in first] == [
        (r["phase"], r["round"]) for r in second
    ]
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in ("participants", "examples"):
            assert a.get(name) == b.get(name)  # round 0 has neither
        for name in a:
            if name.endswith("loss"):
                assert a[name] == pytest.approx(b[name], rel=2e-3), (a, b)
            elif name in ("accuracy", "validation_accuracy", "train_accuracy"):
                assert a[name] == pytest.approx(b[name], abs=0.051), (a, b)
    for name in models:
        model, variables = fuprune.load(one / "models" / name)
        twin, others = fuprune.load(other / "models" / name)
        assert model == twin
        flat = zip(_leaves(variables), _leaves(others), strict=True)
        for x, y in flat:
            np.testing.assert_allclose(x, y, rtol=2e-2, atol=2e-3)


def _leaves(tree):
    if hasattr(tree, "items"):
        for key in sorted(tree):
            yield from _leaves(tree[key])
    else:
        yield np.asarray(tree)


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
    """In the end all is as one process alone would have it."""
    flags = (*SMALL, "--config.phases=pretrain", "--config.train.rounds=4")
    run_alone(tmp_path / "alone", *flags, "--config.runtime.devices=1")
    killed_and_resumed(tmp_path / "pair", *flags)
    assert_same_run(tmp_path / "alone", tmp_path / "pair", models=["raw"])


@pytest.mark.slow
def test_killed_and_resumed_is_uninterrupted_to_the_bit(tmp_path):
    """The same two processes with and without a death in between."""
    flags = (*SMALL, "--config.phases=pretrain", "--config.train.rounds=6")
    killed_and_resumed(tmp_path / "killed", *flags)
    code, output = end_of(start_pair(tmp_path / "whole", *flags, *PAIR))
    assert code == 0, output[-3000:]
    for name in ("metrics.jsonl", "models/raw/model.safetensors"):
        one, other = (tmp_path / folder / name for folder in ("killed", "whole"))
        assert one.read_bytes() == other.read_bytes(), name


@pytest.mark.slow
def test_the_whole_method_is_the_same_on_two_processes(tmp_path):
    """Pre-training, capture, pruning, Fisher noise, fine-tuning, results, report."""
    flags = (
        *SMALL,
        "--config.phases=pretrain,unlearn,report",
        "--config.unlearn.methods=class_pruning,fisher,mask_logit",
        "--config.fisher.alpha=1e-9",
    )
    run_alone(tmp_path / "alone", *flags, "--config.runtime.devices=1")
    code, output = end_of(start_pair(tmp_path / "pair", *flags, *PAIR), timeout=3000)
    assert code == 0, output[-3000:]
    assert_same_run(
        tmp_path / "alone",
        tmp_path / "pair",
        models=["raw", "class_pruning_pruned_9", "class_pruning", "mask_logit"],
    )
    results = [
        json.loads((tmp_path / name / "results.json").read_text())
        for name in ("alone", "pair")
    ]
    removed = [r["cuts"]["class_pruning"][0]["removed"] for r in results]
    assert removed[0] == removed[1]
    assert (tmp_path / "pair" / "report" / "report.html").exists()
    assert "[1] digits" not in output  # process 1 shows no progress


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
    assert [row["round"] for row in rows_of(pair)] == list(range(1, 41))
