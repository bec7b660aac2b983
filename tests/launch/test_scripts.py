"""The scripts of launch/: what they would run, and how they end."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

SCRIPTS = ("local.sh", "slurm.sbatch", "tpu.sh")


def run(repository, *arguments, **environment):
    return subprocess.run(
        ["bash", *map(str, arguments)],
        cwd=repository,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def fake(tmp_path):
    """Puts programs of the given names and bodies first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(**bodies):
        for name, body in bodies.items():
            path = folder / name
            path.write_text(f"#!/usr/bin/env bash\n{body}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return f"{folder}:{os.environ['PATH']}"

    return make


def test_shellcheck_finds_nothing(repository):
    shellcheck = shutil.which("shellcheck") or os.path.join(
        os.path.dirname(sys.executable), "shellcheck"
    )
    if not os.path.exists(shellcheck):
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        [shellcheck, *(str(repository / "launch" / name) for name in SCRIPTS)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_local_prints_one_command_a_process(repository):
    done = run(repository, "launch/local.sh", "3", "--workdir", "runs/a b", DRY_RUN="1")
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for i, line in enumerate(lines):
        assert "-m fuprune.main --workdir runs/a\\ b " in line
        assert f"--num_processes=3 --process_id={i}" in line
        assert "--coordinator=127.0.0.1:" in line
    flag = run(repository, "launch/local.sh", "--dry-run", "1")
    assert len(flag.stdout.splitlines()) == 1


def test_local_passes_on_sigterm(repository, fake):
    """Every process gets it, and the launcher waits for them to save."""
    body = "trap 'echo saved; exit 0' TERM; while true; do sleep 0.1; done"
    launcher = subprocess.Popen(
        ["bash", "launch/local.sh", "2"],
        cwd=repository,
        env={
            **os.environ,
            "PATH": fake(interpreter=body),
            "PYTHON": "interpreter",
            "PORT": "12345",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in launcher.stderr:
        if "process 1 has pid" in line:
            break
    time.sleep(0.5)
    launcher.send_signal(signal.SIGTERM)
    output, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 0
    assert sorted(output.splitlines()) == ["[1] saved", "saved"]


def start_job(repository, tmp_path, fake, srun, **environment):
    """The batch script with SLURM's programs replaced by notes of their calls."""
    calls = tmp_path / "calls"
    calls.touch()
    path = fake(
        srun=srun,
        scancel=f'echo "scancel $*" >> {calls}; kill -TERM $(cat {tmp_path}/task)',
        scontrol=f'echo "scontrol $*" >> {calls}',
    )
    return calls, subprocess.Popen(
        ["bash", "launch/slurm.sbatch", "--workdir", "w"],
        cwd=repository,
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": "5", **environment},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


WORKING = "echo $$ > {folder}/task; trap 'exit 0' TERM; while true; do sleep 0.1; done"


@pytest.mark.parametrize("number, requeued", [("USR1", True), ("TERM", False)])
def test_slurm_saves_stops_and_queues_again(
    repository, tmp_path, fake, number, requeued
):
    """At the end of its time by itself; when preempted, SLURM queues it again."""
    calls, job = start_job(repository, tmp_path, fake, WORKING.format(folder=tmp_path))
    while not (tmp_path / "task").exists():
        time.sleep(0.05)
    time.sleep(0.2)
    job.send_signal(getattr(signal, f"SIG{number}"))
    assert job.wait(timeout=30) == 0
    expected = ["scancel --signal=TERM 5"] + ["scontrol requeue 5"] * requeued
    assert calls.read_text().splitlines() == expected


@pytest.mark.parametrize(
    "code, restarts, requeued",
    [(137, "0", True), (134, "2", True), (137, "3", False), (2, "0", False)],
)
def test_slurm_starts_again_after_a_death_but_not_after_an_error(
    repository, tmp_path, fake, code, restarts, requeued
):
    calls, job = start_job(
        repository, tmp_path, fake, f"exit {code}", SLURM_RESTART_COUNT=restarts
    )
    assert job.wait(timeout=30) == (0 if requeued else code)
    assert calls.read_text().splitlines() == ["scontrol requeue 5"] * requeued


def test_tpu_prints_its_commands(repository):
    here = ("launch/tpu.sh", "slice", "zone")
    setup = run(repository, *here, "setup", DRY_RUN="1").stdout.splitlines()
    assert len(setup) == 4 and setup[0].startswith("git -C ")
    assert "scp" in setup[1] and "--worker=all" in setup[1]
    done = run(repository, *here, "run", "--workdir", "/mnt/a b", DRY_RUN="1")
    (line,) = done.stdout.splitlines()
    assert line.startswith("gcloud compute tpus tpu-vm ssh slice --zone=zone")
    assert "fuprune.main" in line and "--worker=all" in line
    assert "kill" in run(repository, *here, "stop", DRY_RUN="1").stdout
    assert "--worker=0" in run(repository, *here, "follow", DRY_RUN="1").stdout
