"""sweep.py: grids into checked commands, run side by side, skipped when finished."""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sweep():
    spec = importlib.util.spec_from_file_location("sweep", ROOT / "launch/sweep.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sweep"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def instead_of_training(sweep, monkeypatch):
    """Runs become a few lines of Python given the workdir, the rest stays."""

    def use(body):
        program = (
            "import pathlib, signal, sys, time\n"
            "workdir = pathlib.Path(sys.argv[-1].removeprefix('--workdir='))\n"
            f"workdir.mkdir(parents=True, exist_ok=True)\n{body}"
        )
        monkeypatch.setattr(
            sweep,
            "command_of",
            lambda run, processes: [sys.executable, "-c", program, *run.flags],
        )
        joined = []

        def report(runs, folder):
            joined.append([run.name for run in runs])
            return [sys.executable, "-c", ""]

        monkeypatch.setattr(sweep, "report_command", report)
        return joined

    return use


FINISH = """
for name in ("models/raw", "results.json", "audit.json", "report/report.html"):
    path = workdir / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"pictures": {"unit": ""}}')
"""


@pytest.mark.parametrize("table", ["bias", "erasure", "multi", "mia", "dist"])
def test_every_table_of_the_paper_is_a_valid_grid(sweep, table, tmp_path):
    grids = sweep.PAPER[table]
    runs = [run for grid in grids for run in sweep.expand(grid, tmp_path)]
    numbers = {"bias": 6, "erasure": 16, "multi": 3, "mia": 8, "dist": 8}
    assert len(runs) == numbers[table]


def test_dry_run_prints_every_command_and_the_report(sweep, tmp_path, capsys):
    arguments = ["--paper", "multi", "--seeds", "0", "1", "--runs", str(tmp_path)]
    assert sweep.main([*arguments, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "6 runs, 0 finished before"
    commands = [shlex.split(line) for line in lines[1:]]
    assert len(commands) == 7
    for command in commands[:-1]:
        assert command[1:3] == ["-m", "fuprune.main"]
    assert commands[-1][1:3] == ["-m", "fuprune.report"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--set", "seed"], "--set seed has no value"),
        (["--paper", "bias", "--config", "configs/quickstart.py"], "--paper has its"),
        # A bad combination stops the sweep before it starts.
        (["--set", "partition.bais", "0.1"], "did you mean partition.bias"),
        (["--set", "partition.bias", "0.1", "7"], "partition.bias is '7'"),
    ],
)
def test_misuse_is_one_line(sweep, tmp_path, capsys, arguments, message):
    assert sweep.main(["--runs", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_finished_workdirs_are_skipped(sweep, tmp_path, capsys, instead_of_training):
    joined = instead_of_training(FINISH)
    arguments = ["--runs", str(tmp_path), "--set", "seed", "0", "1", "2"]
    assert sweep.main([*arguments, "--jobs", "2"]) == 0
    assert capsys.readouterr().out.count("started") == 3
    assert sweep.main(arguments) == 0
    out = capsys.readouterr().out
    assert "3 runs, 3 finished before" in out and "started" not in out
    assert [len(names) for names in joined] == [3, 3]


def test_a_failed_run_stops_nothing_and_is_left_out_of_the_report(
    sweep, tmp_path, capsys, instead_of_training
):
    body = "if 'seed=1' in sys.argv[-1]: sys.exit('fuprune: error: no luck')\n" + FINISH
    joined = instead_of_training(body)
    arguments = ["--runs", str(tmp_path), "--set", "seed", "0", "1", "2"]
    assert sweep.main(arguments) == 1
    out = capsys.readouterr().out
    assert "failed    quickstart__seed=1: fuprune: error: no luck" in out
    assert joined == [["quickstart__seed=0", "quickstart__seed=2"]]


def test_a_slurm_array_has_a_line_a_run(sweep, tmp_path, capsys):
    folder = tmp_path / "a b"
    arguments = ["--runs", str(folder), "--set", "unlearn.classes", "9", "0,9"]
    assert sweep.main([*arguments, "--slurm", "--jobs", "4"]) == 0
    lines = (folder / "commands.txt").read_text().splitlines()
    assert len(lines) == 2
    assert shlex.split(lines[1])[0] == "--config.unlearn.classes=0,9"
    out = capsys.readouterr().out
    assert "--array=0-1%4" in out and "afterany:$job" in out
    assert "fuprune.report" in out
    done = subprocess.run(
        ["bash", "launch/slurm.sbatch", "--from", str(folder / "commands.txt")],
        env={**os.environ, "DRY_RUN": "1", "SLURM_ARRAY_TASK_ID": "1"},
        capture_output=True,
        text=True,
    )
    assert shlex.split(done.stdout)[-1] == shlex.split(lines[1])[-1]
