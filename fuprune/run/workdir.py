"""The directory of a run: made, or refused, before anything expensive starts."""

import os
from pathlib import Path

from fuprune.errors import UsageError


def make_workdir(workdir: Path) -> None:
    """Makes the directory and its parents.

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
