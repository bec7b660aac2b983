"""The one way this package replaces a file, whole or not at all; and its cache folder.

Logs, which only grow, are appended to by whoever keeps them.
"""

import functools
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

# Ends the name of a file that is being written; only a kill leaves one behind.
UNFINISHED = ".unfinished"


def write_whole(
    path: str | os.PathLike,
    content: str | bytes | Callable[[BinaryIO], Any],
    *,
    mode: int = 0o666,
) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part.

    The content goes to a file beside it, reaches the disk, and then takes its name. A
    link that is in the way is replaced and not followed.

    Args:
      path: the file; its folder is made if necessary.
      content: text (written as UTF-8), bytes, or a function that writes to the open
        binary file it is given.
      mode: who may read and write it, less what the user's umask takes away; it holds
        from the first byte on, so that a secret is never readable by others.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        opener = functools.partial(os.open, mode=mode)
        with open(beside, "xb", opener=opener) as file:  # "x" never follows a link
            if isinstance(content, str):
                file.write(content.encode())
            elif isinstance(content, bytes | bytearray):
                file.write(content)
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def cache_folder() -> Path:
    """This package's folder in the user's cache, `$XDG_CACHE_HOME` or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fuprune"
