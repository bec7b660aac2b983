"""What the command does before it imports JAX: memory, the workdir, kernels' build."""

import contextlib
import ctypes
import os
from pathlib import Path

from fuprune.config import Config
from fuprune.errors import UsageError

_ARENA_MAX = -8  # M_ARENA_MAX in malloc.h


def limit_arenas() -> None:
    """Lets glibc keep freed memory in one pool per core; before any thread starts.

    By default it makes up to eight per core, and each of the threads that compile,
    compute and save fills its own: a fifth more memory, which also grows as they take
    turns (docs/reliability.md). $MALLOC_ARENA_MAX goes first.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, os.cpu_count() or 1)


def make_workdir(workdir: Path) -> None:
    """Makes the directory of a run and its parents.

    Raises:
      UsageError: if it cannot be made, read and written.
    """
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
            f"the workdir {str(workdir)!r} cannot be used: this user may not read and "
            "write it; choose another --workdir."
        )


def start_build(config: Config) -> None:
    """Begins to build the kernels in the background, if a run of `config` needs them.

    A network of the user's own, named as module:factory, has its own convolutions.
    """
    if config.runtime.conv != "xla" and ":" not in config.model.name:
        # JAX takes most of a second to import, and the command line's checks, which
        # import this module, do not wait for it.
        from fuprune.kernels import library

        library.start_build()
