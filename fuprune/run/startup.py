"""What the command does before it imports JAX: the workdir, kernels' build."""

import os
from pathlib import Path

from fuprune.config import Config
from fuprune.errors import UsageError


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
