"""Federated learning that forgets a class on request: one command, one run.

  fuprune [run] [--config CONFIG[:ARG]] [--config.KEY=VALUE ...] [--workdir DIR]
  fuprune audit RUN [--config.audit.KEY=VALUE ...]   audits a finished run
  fuprune report RUN [RUN ...] [--output DIR]        joins runs in one report
  fuprune forget MODEL --classes 9 --data cifar10    forgets in a model of yours

  --config CONFIG[:ARG]  a shipped config or a file: cifar10_resnet:56, my/config.py
  --config.KEY=VALUE     overrides a key, as in --config.partition.bias=0.45
  --workdir DIR          where the run writes; by default runs/<config>
  --coordinator HOST:PORT --num_processes N --process_id I
                         one of N processes of the same run
  --version, --help      (python -m fuprune.main is the same command)

Without --config it runs the quickstart on a few of scikit-learn's digits, and with
--config.data.name on all images of another dataset. The same command again continues
where the last one stopped. FUPRUNE_TRACEBACK=1 shows where bad input was refused.
"""

import argparse
import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fuprune import __version__, options
from fuprune import config as config_lib
from fuprune.errors import FupruneError, UsageError

# The machine's fault; any other OSError is a bug.
_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


class Command(NamedTuple):
    """What a command line asks for: the arguments of `fuprune.run.experiment.run`."""

    config: config_lib.Config
    workdir: Path
    coordinator: str  # host:port of process 0, "" if there is none
    num_processes: int  # 0 leaves it to the cluster, or means one
    process_id: int  # -1 leaves it to the cluster


def run() -> None:
    """Runs the command line of this process, and exits."""
    try:
        code = main(sys.argv)
        sys.stdout.flush()
    except BrokenPipeError:  # as in fuprune --help | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception:
        traceback.print_exc()
        code = 1
    if "fuprune.run.processes" in sys.modules:
        sys.modules["fuprune.run.processes"].leave(code)
    sys.exit(code)


def main(argv: Sequence[str]) -> int:
    """Runs a command line, the program's name first, and returns its exit code."""
    logging.basicConfig(format="fuprune: %(levelname)s: %(message)s")
    logging.getLogger("fuprune").setLevel(logging.INFO)
    command, *arguments = argv[1:] or ["run"]
    try:
        if command == "report":
            from fuprune.report.__main__ import main as report

            return report(arguments)
        if command == "forget":
            from fuprune.run.forget import main as forget

            return forget(arguments)
        if command == "audit":
            return run_command(audit_flags(arguments))
        return run_command(arguments if command == "run" else argv[1:])
    except KeyboardInterrupt:
        print("fuprune: interrupted; the same command continues.", file=sys.stderr)
        return 130
    except (FupruneError, OSError) as error:
        expected = isinstance(error, FupruneError) or error.errno in _DISK_TROUBLE
        if os.environ.get("FUPRUNE_TRACEBACK") or not expected:
            raise
        print(f"fuprune: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def run_command(arguments: Sequence[str]) -> int:
    """`fuprune run`, which is also what happens without the name of a command."""
    if "--version" in arguments:
        print(f"fuprune {__version__}")
        return 0
    asked = {"--help", "-h"} & set(arguments)
    command = parse(["fuprune", *(part for part in arguments if part not in asked)])
    if asked:
        print(f"{__doc__}\n{config_lib.describe_keys(command.config)}")
        return 0
    try:
        command.workdir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the workdir cannot be used: {error}; choose another --workdir."
        ) from error
    from fuprune.run.experiment import run as run_experiment

    words = ["python", "-m", "fuprune.main", *arguments]
    run_experiment(**command._asdict(), command=words)
    return 0


def audit_flags(arguments: Sequence[str]) -> list[str]:
    """The flags of a run that `fuprune audit RUN` goes on with."""
    if not arguments or arguments[0].startswith("-"):
        raise UsageError("fuprune audit needs the workdir of a run, in first place.")
    workdir, *more = arguments
    own = [f"--config={workdir}/config.json", f"--workdir={workdir}"]
    return [*own, "--config.phases=audit,report", *more]


def parse(argv: Sequence[str]) -> Command:
    """Reads the command line of a run; the config comes back validated."""
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False
    )
    for name in ("config", "workdir", "coordinator"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--num_processes", type=int, default=0)
    parser.add_argument("--process_id", type=int, default=-1)
    for key, field in config_lib.KEYS.items():
        more: dict[str, Any] = dict(dest=key, default=None)
        if field.annotation is bool:
            parser.add_argument(
                f"--noconfig.{key}", action="store_const", const="False", **more
            )
            more |= dict(nargs="?", const="True")
        parser.add_argument(f"--config.{key}", **more)
    try:
        given, others = parser.parse_known_args(argv[1:])
    except argparse.ArgumentError as error:
        raise UsageError(f"{str(error)[:300]}; see --help.") from error
    if others:
        flag = others[0].partition("=")[0]
        if flag.startswith("--config."):
            raise config_lib.unknown_key(flag.removeprefix("--config."))
        hint = options.closest(flag, ("--workdir", "--config", "--coordinator"))
        hint = hint or "allowed: --config, --workdir and --config.<key>=<value>."
        raise UsageError(f"unexpected argument {options.quoted(others[0])}; {hint}")
    overrides = {k: x for k in config_lib.KEYS if (x := getattr(given, k)) is not None}
    name, config = config_lib.load_config(given.config or "quickstart", overrides)
    config_lib.validate(config)
    place = (given.coordinator, given.num_processes, given.process_id)
    return Command(config, Path(given.workdir or f"runs/{name}"), *place)


if __name__ == "__main__":
    run()
