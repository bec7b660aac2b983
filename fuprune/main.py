"""The command line: flags in, one experiment run.

Without --config it runs the quickstart: scikit-learn's digits, minutes on a CPU. Any
key can be overridden, as in --config.model.name=resnet56 --config.partition.bias=0.45,
and configs/cifar10_resnet.py:56 hands 56 to the file's get_config. The same command
again continues where the last one stopped. Bad input is one line and exit code 2.
"""

import contextlib
import ctypes
import errno
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import config_dict, config_flags

from fuprune import config as config_lib
from fuprune.config import ConfigError
from fuprune.errors import FupruneError


class UsageError(FupruneError):
    """A command line that cannot be run."""


class Command(NamedTuple):
    """What a command line asks for."""

    config: config_lib.Config
    workdir: Path
    coordinator: str  # host:port of process 0, "" if there is none
    num_processes: int  # 0 leaves it to the cluster, or means one
    process_id: int  # -1 likewise


def run() -> None:
    """Runs the command line of this process, and exits."""
    _one_arena_a_core()
    try:
        code = main(sys.argv)
    except Exception:
        traceback.print_exc()
        code = 1
    processes = sys.modules.get("fuprune.run.processes")
    if processes is not None:
        processes.leave(code)
    sys.exit(code)


def _one_arena_a_core() -> None:
    """Limits the pools in which glibc keeps freed memory.

    Left alone it makes up to eight a core, and each of the threads that compile,
    compute and save fills its own: a fifth more memory, which also grows as they take
    turns (docs/reliability.md).
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    arena_max = -8  # M_ARENA_MAX in malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(arena_max, os.cpu_count() or 1)


def main(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code.

    Args:
      argv: the program's name, then its arguments.
    """
    logging.basicConfig(format="fuprune: %(levelname)s: %(message)s")
    logging.getLogger("fuprune").setLevel(logging.INFO)
    try:
        if {"--help", "-h", "--helpfull"} & set(argv[1:]):
            print(_help())
            return 0
        command = parse(argv)
        _make_workdir(command.workdir)
        # JAX takes seconds to import, and mistakes should not have to wait for it.
        from fuprune.run.experiment import run as run_experiment

        run_experiment(
            command.config,
            command.workdir,
            coordinator=command.coordinator,
            num_processes=command.num_processes,
            process_id=command.process_id,
        )
        return 0
    except KeyboardInterrupt:
        print("fuprune: interrupted; the same command continues.", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("FUPRUNE_TRACEBACK") or not _is_expected(error):
            raise
        text = " ".join(str(error).split())
        print(f"fuprune: error: {text}", file=sys.stderr)
        return 2


def parse(argv: Sequence[str]) -> Command:
    """Reads a command line; the config comes back validated.

    Raises:
      FupruneError: if it cannot be run.
    """
    rest, overrides = _split_overrides(argv[1:])
    values = flags.FlagValues()
    flags.DEFINE_string("config", "", "a config file", flag_values=values)
    flags.DEFINE_string("workdir", "", "where the run writes", flag_values=values)
    flags.DEFINE_string("coordinator", "", "host:port", flag_values=values)
    flags.DEFINE_integer("num_processes", 0, "processes", flag_values=values)
    flags.DEFINE_integer("process_id", -1, "this one's number", flag_values=values)
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
    path, argument = _split_path(values.config)
    config = _load(path, argument) if path else config_lib.quickstart()
    _override(config, overrides)
    config_lib.validate(config)
    name = "_".join([Path(path).stem, *argument]) if path else "quickstart"
    return Command(
        config,
        Path(values.workdir or Path("runs") / name),
        values.coordinator,
        values.num_processes,
        values.process_id,
    )


def _split_overrides(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Parts other flags from overrides, written as --config.key=value for each key."""
    kept = config_lib.flatten(config_lib.default())
    rest: list[str] = []
    overrides: dict[str, str] = {}
    remaining = iter(arguments)
    for argument in remaining:
        match = re.fullmatch(
            r"--?(no)?config\.([^=]*)(=.*)?", argument, flags=re.DOTALL
        )
        if match is None:
            rest.append(argument)
            continue
        negated, key, value = match.groups()
        if key not in kept:
            raise config_lib.unknown_key(key)
        is_switch = isinstance(kept[key], bool)
        if negated and (value is not None or not is_switch):
            raise UsageError(
                f"{argument} makes no sense; write --config.{key}=<value>."
            )
        if value is None and not is_switch:
            value = next(remaining, None)
            if value is None:
                raise UsageError(f"--config.{key} lacks a value.")
            value = f"={value}"
        overrides[key] = f"--{negated or ''}config.{key}{value or ''}"
    return rest, overrides


def _split_path(text: str) -> tuple[str, list[str]]:
    """Parts configs/a.py:56 into the path and what get_config is given."""
    path, colon, argument = text.partition(":")
    return path, [argument] if colon else []


def _load(path: str, argument: list[str]) -> config_lib.Config:
    """Runs the get_config of a config file."""
    if not Path(path).is_file():
        known = sorted(str(file) for file in Path("configs").glob("[a-z]*.py"))
        raise UsageError(
            f"there is no config file {path!r}; allowed: "
            + (", ".join(known) or "the path of a Python file with get_config()")
            + ", or no --config for the quickstart."
        )
    spec = importlib.util.spec_from_file_location("fuprune_run_config", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the config file {path!r} is not a Python file (.py).")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return module.get_config(*argument)
    except FupruneError:
        raise
    except Exception as error:
        raise UsageError(
            f"the config file {path} failed: {type(error).__name__}: {error}"
        ) from error


def _override(config: config_lib.Config, overrides: dict[str, str]) -> None:
    """Applies --config.key=value to the config."""
    if not isinstance(config, config_dict.ConfigDict) or not overrides:
        return
    arguments = ["fuprune", *overrides.values()]
    values = flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict(
            "config", config, flag_values=values, sys_argv=arguments, lock_config=False
        )
        values(arguments)
    except flags.IllegalFlagValueError as error:
        match = re.match(r"flag --config\.([^=]+)=(.*?): ", str(error), re.DOTALL)
        if match is None:
            raise UsageError(str(error)) from error
        raise config_lib.wrong_type(*match.groups()) from error
    except (flags.Error, LookupError, AttributeError, ValueError) as error:
        raise ConfigError(f"{' '.join(overrides.values())}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError("a value of --config is nested too deeply.") from error


def _make_workdir(workdir: Path) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, FileExistsError):
            reason = "it is not a directory"
        raise UsageError(
            f"the workdir {str(workdir)!r} cannot be used: {reason}; allowed: a "
            "directory that can be written."
        ) from error
    if not os.access(workdir, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(
            f"the workdir {str(workdir)!r} cannot be used: it may not be read and "
            "written by this user; choose another --workdir."
        )


def _is_expected(error: Exception) -> bool:
    """Whether one line says it all: the user's or the machine's fault, not a bug."""
    if isinstance(error, FupruneError):
        return True
    if isinstance(error, OSError):
        return error.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
        )
    return False


def _help() -> str:
    keys = config_lib.flatten(config_lib.default())
    return "\n".join(
        [
            "python -m fuprune.main --config configs/cifar10_resnet.py",
            "",
            *(__doc__ or "").strip().splitlines()[2:],
            "",
            "  --config FILE[:ARG]   a config file; none runs the quickstart",
            "  --config.KEY=VALUE    overrides a key",
            "  --workdir DIR         where it writes; runs/<config> if not given",
            "  --coordinator HOST:PORT --num_processes N --process_id I",
            "                        one of N processes of the same run",
            "",
            "Keys and defaults (fuprune/config.py says what each is):",
            *(f"  {key} = {value!r}" for key, value in keys.items()),
        ]
    )


if __name__ == "__main__":
    run()
