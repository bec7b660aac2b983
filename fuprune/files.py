"""The one way this package replaces a file, whole or not at all; and its cache folder.

Logs, which only grow, are appended to by whoever keeps them.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

# Ends the name of a file that is being written; only a kill leaves one behind.
UNFINISHED = ".unfinished"


def write_whole(
    path: str | os.PathLike, content: str | bytes | Callable[[BinaryIO], Any]
) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part.

    The content goes to a file beside it, reaches the disk, and then takes its name. A
    link that is in the way is replaced and not followed.

    Args:
      path: the file; its folder is made if necessary.
      content: text (written as UTF-8), bytes, or a function that writes to the open
        binary file it is given.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with open(beside, "xb") as file:  # "x" never follows a link
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
