"""Federated learning that forgets a class on request: one command, one run.

  fuprune [--config CONFIG[:ARG]] [--config.KEY=VALUE ...] [--workdir DIR]
  fuprune report RUN [RUN ...] [--output DIR]

  --config CONFIG[:ARG]  a shipped config or a file: cifar10_resnet:56, my/config.py
  --config.KEY=VALUE     overrides a key, as in --config.partition.bias=0.45
  --workdir DIR          where the run writes; by default runs/<config>
  --coordinator HOST:PORT --num_processes N --process_id I
                         one of N processes of the same run
  --version, --help      (python -m fuprune.main is the same command)

Without --config it runs the quickstart: a few of scikit-learn's digits, minutes on a
CPU. With --config.data.name it takes all images of another dataset. The same command
again continues where the last one stopped. Bad input ends in one line and exit code 2;
FUPRUNE_TRACEBACK=1 shows where it was refused.
"""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from fuprune import __version__
from fuprune import config as config_lib
from fuprune.errors import FupruneError, UsageError
from fuprune.run import config_loading, startup

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
    try:
        if argv[1:2] == ["report"]:
            from fuprune.report.__main__ import main as report

            return report(argv[2:])
        if {"--help", "-h", "--helpfull"} & set(argv[1:]):
            print(f"{__doc__}\nKeys and defaults\n\n{config_lib.describe_keys()}")
        elif "--version" in argv[1:]:
            print(f"fuprune {__version__}")
        else:
            command = parse(argv)
            startup.make_workdir(command.workdir)
            startup.start_build(command.config)
            from fuprune.run.experiment import run as run_experiment

            run_experiment(**command._asdict())
        return 0
    except KeyboardInterrupt:
        print("fuprune: interrupted; the same command continues.", file=sys.stderr)
        return 130
    except (FupruneError, OSError) as error:
        expected = isinstance(error, FupruneError) or error.errno in _DISK_TROUBLE
        if os.environ.get("FUPRUNE_TRACEBACK") or not expected:
            raise
        print(f"fuprune: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def parse(argv: Sequence[str]) -> Command:
    """Reads a command line; the config comes back validated.

    Raises:
      FupruneError: if it cannot be run.
    """
    rest, overrides = config_loading.split_overrides(argv[1:])
    values = flags.FlagValues()
    for name in ("config", "workdir", "coordinator"):
        flags.DEFINE_string(name, "", "", flag_values=values)
    flags.DEFINE_integer("num_processes", 0, "", flag_values=values)
    flags.DEFINE_integer("process_id", -1, "", flag_values=values)
    values.set_gnu_getopt(True)
    try:
        positional = values([argv[0], *rest])[1:]
    except flags.Error as error:
        raise UsageError(f"{str(error)[:300]}; see --help") from error
    if positional:
        raise UsageError(
            f"unexpected argument {positional[0][:80]!r}; allowed: --config, --workdir "
            "and --config.<key>=<value>; see --help."
        )
    name, config = config_loading.load_config(values.config or "quickstart")
    config_loading.apply_overrides(config, overrides, name)
    config_lib.validate(config)
    place = (values.coordinator, values.num_processes, values.process_id)
    return Command(config, Path(values.workdir or f"runs/{name}"), *place)


if __name__ == "__main__":
    run()
