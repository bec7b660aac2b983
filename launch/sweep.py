r"""Many runs from a grid of config overrides, and one report over all of them.

Every command is checked before the first one starts, finished workdirs are skipped,
some runs go side by side on this machine or all of them into a SLURM array, and the
joined report comes last. Stopped and started again, a sweep continues:

  python launch/sweep.py --paper erasure --runs runs/erasure --jobs 2
  python launch/sweep.py --config cifar10_resnet:20 --runs runs/bias \
    --set partition.bias 0.1 0.45 1.0 --set seed 0 1 2 --dry-run
"""

import argparse
import itertools
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fuprune import config as config_lib  # noqa: E402
from fuprune import main as command_line  # noqa: E402
from fuprune import results  # noqa: E402
from fuprune.errors import FupruneError, UsageError  # noqa: E402

RESNETS = [f"cifar10_resnet:{depth}" for depth in (20, 32, 44, 56)]
VGGS = [f"cifar10_vgg:{depth}" for depth in (11, 13, 16, 19)]
CIFAR100 = [name.replace("cifar10_", "cifar100_") for name in RESNETS + VGGS]
AGAINST_FISHER = {
    "train.algorithm": ["fed_avg"],
    "train.local_epochs": ["5"],
    "unlearn.methods": ["class_pruning,fisher,retrain"],
}
RETRAINED = (RESNETS + VGGS, {"unlearn.retrain_seeds": ["3"]})
# Tables of the paper, as grids: configs crossed with the values of keys.
PAPER = {
    "bias": [
        (RESNETS[:1], {"partition.bias": ["0.1", "0.45", "1.0"], **AGAINST_FISHER}),
        (CIFAR100[:1], {"partition.bias": ["0.01", "0.35", "1.0"], **AGAINST_FISHER}),
    ],
    "erasure": [(RESNETS + VGGS + CIFAR100, {})],
    "multi": [(RESNETS[:1], {"unlearn.classes": ["0,9", "0,5", "5,9"]})],
    "mia": [RETRAINED],
    "dist": [RETRAINED],  # the same runs, another table of the same report
}
# Files that the phases write.
WRITTEN = {"pretrain": "models/raw", "unlearn": "results.json", "audit": "audit.json"}
WRITTEN["report"] = "report/report.html"


class Run(NamedTuple):
    """One run of a grid."""

    name: str  # of its workdir
    flags: list[str]  # for python -m fuprune.main, workdir included
    workdir: Path
    phases: tuple[str, ...]

    @property
    def is_finished(self) -> bool:
        """Whether everything the run was to write is there."""
        if not all((self.workdir / WRITTEN[phase]).exists() for phase in self.phases):
            return False
        # Pictures come after the last method.
        record = "unlearn" in self.phases and results.read_record(self.workdir)
        return not record or record.pictures is not None


def expand(grid: tuple, folder: Path, extra: Sequence[str] = ()) -> list[Run]:
    """Every run of a grid, its flags checked.

    Args:
      grid: configs, and values by key; a key with a single value is not in a name.
      folder: where the workdirs go.
      extra: flags that every run gets.
    """
    configs, values = grid
    leaves = [key.rpartition(".")[2] for key in values if len(values[key]) > 1]
    runs = []
    for config, *chosen in itertools.product(configs, *values.values()):
        parts = [Path(config.partition(":")[0]).stem, config.partition(":")[2]]
        parts = ["_".join(filter(None, parts)) or "quickstart"]
        for key, value in zip(values, chosen, strict=True):
            leaf = key.rpartition(".")[2]
            if len(values[key]) > 1:
                parts.append(f"{leaf if leaves.count(leaf) == 1 else key}={value}")
        name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", "__".join(parts))
        flags = [f"--config={config}"] if config else []
        pairs = zip(values, chosen, strict=True)
        flags += [f"--config.{key}={value}" for key, value in pairs]
        flags += [*extra, f"--workdir={folder / name}"]
        parsed = command_line.parse(["sweep", *flags])
        phases = config_lib.phases(parsed.config)
        runs.append(Run(name, flags, folder / name, phases))
    return runs


def command_of(run: Run, processes: int) -> list[str]:
    """What starts a run on this machine."""
    if processes > 1:
        return ["bash", str(ROOT / "launch/local.sh"), str(processes), *run.flags]
    return [sys.executable, "-m", "fuprune.main", *run.flags]


def report_command(runs: Sequence[Run], folder: Path) -> list[str]:
    """What joins the finished runs into one report."""
    workdirs = [str(run.workdir) for run in runs]
    output = ["--output", str(folder / "joined")]
    return [sys.executable, "-m", "fuprune.report", *workdirs, *output]


def run_locally(runs: Sequence[Run], folder: Path, jobs: int, processes: int) -> int:
    """Run all, `jobs` at a time; returns how many failed.

    A failure does not stop the others. SIGTERM and Ctrl-C are passed on: the runs save
    and stop, and so does the sweep.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    active: list[subprocess.Popen] = []
    stopped: list[int] = []

    def stop(number, frame):
        stopped.append(number)
        for child in active:
            child.terminate()

    def perform(run: Run) -> bool:
        if stopped:
            return True
        path = folder / "logs" / f"{run.name}.log"
        print(f"started   {run.name}", flush=True)
        with open(path, "ab") as log:
            child = subprocess.Popen(
                command_of(run, processes),
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        active.append(child)
        if stopped:  # before it was known
            child.terminate()
        good = child.wait() == 0
        last = (path.read_text(errors="replace").strip() or "no output").splitlines()
        word = "finished " if good else "failed   "
        print(
            f"{word} {run.name}" + ("" if good else f": {last[-1][:300]}"), flush=True
        )
        return good

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with ThreadPoolExecutor(jobs) as pool:
        good = list(pool.map(perform, runs))
    if stopped:
        print("stopped; the same command continues.")
        sys.exit(130)
    return good.count(False)


def write_slurm(runs: Sequence[Run], folder: Path, jobs: int) -> None:
    """Write commands.txt for `slurm.sbatch --from`, and print what to submit."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "commands.txt"
    path.write_text("".join(f"{shlex.join(run.flags)}\n" for run in runs))
    script = shlex.join([str(ROOT / "launch/slurm.sbatch"), "--from", str(path)])
    report = shlex.quote(shlex.join(report_command(runs, folder)))
    print(f"job=$(sbatch --parsable --array=0-{len(runs) - 1}%{jobs} {script})")
    print(f'sbatch --dependency="afterany:$job" --wrap={report}')


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python launch/sweep.py",
        description=(__doc__ or "").partition("\n")[0],
        epilog="Flags behind -- go to every run: -- --config.train.rounds=600",
    )
    add = parser.add_argument
    add("--runs", required=True, type=Path, help="folder of workdirs")
    add(
        "--config",
        action="append",
        default=[],
        metavar="CONFIG[:ARG]",
        help="a config; repeat it for several, leave it out for the quickstart",
    )
    add(
        "--set",
        action="append",
        default=[],
        nargs="+",
        metavar=("KEY", "VALUE"),
        help="a config key and its values; repeat it to cross several keys",
    )
    add("--paper", choices=sorted(PAPER), help="a table of the paper, instead")
    add("--seeds", nargs="+", default=[], metavar="SEED", help="same as --set seed")
    add("--jobs", type=int, default=1, help="runs side by side")
    add("--processes", type=int, default=1, help="processes of one run (local.sh)")
    add("--slurm", action="store_true", help="write a SLURM array; say how to submit")
    add("--dry-run", action="store_true", help="print, run nothing")
    add("extra", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def runs_of(given: argparse.Namespace, folder: Path) -> list[Run]:
    """The runs that a command line asks for, each checked."""
    asked = [*given.set, *([["seed", *given.seeds]] if given.seeds else [])]
    values = {key: options for key, *options in asked}
    empty = [key for key, options in values.items() if not options]
    if empty:
        raise UsageError(f"--set {empty[0]} has no value; write it behind the key.")
    if given.paper and given.config:
        raise UsageError("--paper has its own configs; leave out --config, or --paper.")
    grids = PAPER[given.paper] if given.paper else [(given.config or [""], {})]
    runs = [
        run
        for configs, own in grids
        for run in expand((configs, {**own, **values}), folder, given.extra)
    ]
    return list({run.name: run for run in runs}.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if every run finished, 1 if one failed, 2 if misused."""
    given = parse(arguments)
    folder = given.runs.resolve()
    try:
        runs = runs_of(given, folder)
    except FupruneError as error:
        print(f"sweep: error: {error}", file=sys.stderr)
        return 2
    todo = [run for run in runs if not run.is_finished]
    print(f"{len(runs)} runs, {len(runs) - len(todo)} finished before", flush=True)
    if given.dry_run:
        for run in todo:
            print(shlex.join(command_of(run, given.processes)))
        print(shlex.join(report_command(runs, folder)))
        return 0
    if given.slurm:
        if todo:
            write_slurm(todo, folder, given.jobs)
        return 0
    failed = run_locally(todo, folder, given.jobs, given.processes)
    good = [run for run in runs if run.is_finished]
    if good:
        subprocess.run(report_command(good, folder), cwd=ROOT, check=False)
    if failed:
        print(f"{failed} of {len(todo)} runs failed; see {folder / 'logs'}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
