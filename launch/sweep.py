r"""Many runs from a grid of config overrides, and one report over all of them.

Commands are checked before the first one starts, finished workdirs are skipped, some
runs go side by side on this machine or all of them into a SLURM array, and the joined
report (`python -m fuprune.report`) comes last. Stopped and started again, it continues:

  python launch/sweep.py --paper erasure --runs runs/erasure --jobs 2
  python launch/sweep.py --config configs/cifar10_resnet.py:20 --runs runs/bias \
    --set partition.bias 0.1 0.45 1.0 --set seed 0 1 2 --dry-run
"""

import argparse
import itertools
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fuprune import config as config_lib  # noqa: E402
from fuprune import main as command_line  # noqa: E402
from fuprune.errors import FupruneError  # noqa: E402

RESNETS = tuple(f"configs/cifar10_resnet.py:{depth}" for depth in (20, 32, 44, 56))
VGGS = tuple(f"configs/cifar10_vgg.py:{depth}" for depth in (11, 13, 16, 19))
CIFAR100 = tuple(
    f"configs/cifar100_{kind}.py:{depth}"
    for kind, depths in (("resnet", (20, 32, 44, 56)), ("vgg", (11, 13, 16, 19)))
    for depth in depths
)


class Grid(NamedTuple):
    """Configs crossed with values of keys."""

    configs: tuple[str, ...]  # FILE or FILE:ARGUMENT
    values: Mapping[str, tuple[str, ...]]  # key -> what it is set to


class Run(NamedTuple):
    """One run of a grid."""

    name: str  # of its workdir
    flags: tuple[str, ...]  # for python -m fuprune.main, workdir included
    workdir: Path
    phases: tuple[str, ...]


# Tables of the paper; each is repeated for every --seeds.
PAPER = {
    "bias": (
        Grid(
            ("configs/cifar10_resnet.py:20",),
            {
                "partition.bias": ("0.1", "0.45", "1.0"),
                "train.algorithm": ("fed_avg",),
                "train.local_epochs": ("5",),
                "unlearn.methods": ("class_pruning,fisher,retrain",),
            },
        ),
        Grid(
            ("configs/cifar100_resnet.py:20",),
            {
                "partition.bias": ("0.01", "0.35", "1.0"),
                "train.algorithm": ("fed_avg",),
                "train.local_epochs": ("5",),
                "unlearn.methods": ("class_pruning,fisher,retrain",),
            },
        ),
    ),
    "erasure": (Grid((*RESNETS, *VGGS, *CIFAR100), {}),),
    "multi": (
        Grid(
            ("configs/cifar10_resnet.py:20",),
            {"unlearn.classes": ("0,9", "0,5", "5,9")},
        ),
    ),
    "mia": (Grid((*RESNETS, *VGGS), {"unlearn.retrain_seeds": ("3",)}),),
}
PAPER["dist"] = PAPER["mia"]  # the same runs, another table of the same report


class SweepError(FupruneError):
    """A sweep that cannot be run."""


def expand(grids: Iterable[Grid], folder: Path, extra: Sequence[str] = ()) -> list[Run]:
    """Every run of the grids, its flags checked.

    Args:
      grids: configs and values; a key that has one value everywhere is not in a name.
      folder: where the workdirs go.
      extra: flags that every run gets.

    Raises:
      FupruneError: at the first combination that cannot be run.
    """
    runs: list[Run] = []
    for grid in grids:
        keys = list(grid.values)
        labels = _labels(grid.values)
        for config, *chosen in itertools.product(grid.configs, *grid.values.values()):
            parts = [_label_of_config(config)]
            flags = [] if not config else [f"--config={config}"]
            for key, value in zip(keys, chosen, strict=True):
                flags.append(f"--config.{key}={value}")
                if key in labels:
                    parts.append(f"{labels[key]}={value}")
            name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", "__".join(parts))
            workdir = folder / name
            flags = [*flags, *extra, f"--workdir={workdir}"]
            parsed = command_line.parse(["sweep", *flags])
            phases = config_lib.phases(parsed.config)
            runs.append(Run(name, tuple(flags), workdir, phases))
    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SweepError(
            f"{len(twice)} runs have the name of another, {twice[0]} first; give each "
            "--config and each value of --set once."
        )
    return runs


def _labels(values: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Short names of the keys that vary: the last word, where that is unmistakable."""
    varying = [key for key, options in values.items() if len(options) > 1]
    leaves = [key.rsplit(".", 1)[-1] for key in varying]
    return {
        key: leaf if leaves.count(leaf) == 1 else key
        for key, leaf in zip(varying, leaves, strict=True)
    }


def _label_of_config(config: str) -> str:
    path, _, argument = config.partition(":")
    return "_".join(filter(None, [Path(path).stem or "quickstart", argument]))


def is_finished(run: Run) -> bool:
    """Whether everything the run was to write is there."""
    made = {
        "pretrain": "units/pretrain.json",
        "unlearn": "units/unlearn.json",
        "audit": "units/audit.json",
        "report": "report/report.html",
    }
    return all((run.workdir / made[phase]).exists() for phase in run.phases)


def command_of(run: Run, processes: int) -> list[str]:
    """What starts a run on this machine."""
    if processes > 1:
        return ["bash", str(ROOT / "launch/local.sh"), str(processes), *run.flags]
    return [sys.executable, "-m", "fuprune.main", *run.flags]


def run_locally(runs: Sequence[Run], folder: Path, jobs: int, processes: int) -> int:
    """Run all, `jobs` at a time; returns how many failed.

    A failure does not stop the others. SIGTERM and Ctrl-C are passed on: the runs save
    and stop.
    """
    waiting, active, failed = list(runs), {}, 0
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    stopped = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(True))
    passed_on = False
    while active or (waiting and not stopped):
        while waiting and len(active) < jobs and not stopped:
            run = waiting.pop(0)
            with open(logs / f"{run.name}.log", "ab") as log:
                child = subprocess.Popen(
                    command_of(run, processes),
                    cwd=ROOT,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            active[child] = run
            print(f"started   {run.name}", flush=True)
        if stopped and not passed_on:
            passed_on = True
            for child in active:
                child.terminate()
            print("stopping: the runs save first; the same command continues.")
        for child in [child for child in active if child.poll() is not None]:
            run = active.pop(child)
            good = child.returncode == 0
            if not good:
                failed += 1
                last = _last_line(logs / f"{run.name}.log")
                print(f"failed    {run.name}: {last}", flush=True)
            elif not stopped:
                print(f"finished  {run.name}", flush=True)
        time.sleep(0.2)
    if stopped:
        sys.exit(130)
    return failed


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"


def write_slurm(runs: Sequence[Run], folder: Path, jobs: int) -> list[str]:
    """Write commands.txt for `slurm.sbatch --from`; returns what to submit."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "commands.txt"
    path.write_text("".join(f"{shlex.join(run.flags)}\n" for run in runs))
    sbatch = str(ROOT / "launch/slurm.sbatch")
    array = f"--array=0-{len(runs) - 1}%{jobs}"
    report = shlex.join(report_command(runs, folder))
    return [
        f"job=$(sbatch --parsable {array} {shlex.quote(sbatch)} --from "
        f"{shlex.quote(str(path))})",
        f'sbatch --dependency="afterany:$job" --wrap={shlex.quote(report)}',
    ]


def report_command(runs: Sequence[Run], folder: Path) -> list[str]:
    """What joins the finished runs into one report."""
    workdirs = [str(run.workdir) for run in runs]
    output = ["--output", str(folder / "joined")]
    return [sys.executable, "-m", "fuprune.report", *workdirs, *output]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python launch/sweep.py",
        description=(__doc__ or "").partition("\n")[0],
        epilog="Flags behind -- go to every run: -- --config.train.rounds=600",
    )
    parser.add_argument("--runs", required=True, type=Path, help="folder of workdirs")
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE[:ARG]",
        help="a config file; repeat it for several, leave it out for the quickstart",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        nargs="+",
        metavar=("KEY", "VALUE"),
        help="a config key and its values; repeat it to cross several keys",
    )
    parser.add_argument(
        "--paper", choices=sorted(PAPER), help="a table of the paper, instead"
    )
    parser.add_argument(
        "--seeds", nargs="+", default=[], metavar="SEED", help="the same as --set seed"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument(
        "--processes", type=int, default=1, help="processes of one run (local.sh)"
    )
    parser.add_argument(
        "--slurm", action="store_true", help="write a SLURM array and say how to submit"
    )
    parser.add_argument("--dry-run", action="store_true", help="print, run nothing")
    parser.add_argument("extra", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def grids_of(given: argparse.Namespace) -> list[Grid]:
    """The grids that a command line asks for."""
    values: dict[str, tuple[str, ...]] = {}
    for key, *options in given.set:
        if not options:
            raise SweepError(f"--set {key} has no value; write --set {key} VALUE ...")
        values[key] = tuple(options)
    if given.seeds:
        values["seed"] = tuple(given.seeds)
    if given.paper:
        if given.config:
            raise SweepError(
                "--paper has its own configs; leave --config out, or --paper."
            )
        return [
            grid._replace(values={**grid.values, **values})
            for grid in PAPER[given.paper]
        ]
    return [Grid(tuple(given.config) or ("",), values)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if every run finished, 1 if one failed, 2 if misused."""
    given = parse(arguments)
    try:
        if given.jobs < 1 or given.processes < 1:
            raise SweepError(
                f"--jobs is {given.jobs} and --processes {given.processes}; allowed: "
                "1 or more."
            )
        folder = given.runs.resolve()
        runs = expand(grids_of(given), folder, given.extra)
    except FupruneError as error:
        print(f"sweep: error: {error}", file=sys.stderr)
        return 2
    todo = [run for run in runs if not is_finished(run)]
    print(f"{len(runs)} runs, {len(runs) - len(todo)} finished before", flush=True)
    if given.dry_run:
        for run in todo:
            print(shlex.join(command_of(run, given.processes)))
        print(shlex.join(report_command(runs, folder)))
        return 0
    if given.slurm:
        for line in write_slurm(todo, folder, given.jobs) if todo else []:
            print(line)
        return 0
    failed = run_locally(todo, folder, given.jobs, given.processes)
    good = [run for run in runs if is_finished(run)]
    if good:
        subprocess.run(report_command(good, folder), cwd=ROOT, check=False)
    if failed:
        print(f"{failed} of {len(todo)} runs failed; see {folder / 'logs'}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
