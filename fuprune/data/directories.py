"""Where data is on disk: the data directory, and the directories of decoded copies."""

import hashlib
import os
import pathlib
import re
from typing import NamedTuple

from fuprune.files import cache_folder


class Directories(NamedTuple):
    """The directories one call of `load` may look in."""

    data_dir: pathlib.Path  # prepared TFDS sets, archives, IDX files
    named: bool  # the user chose it, by argument or by TFDS_DATA_DIR
    given: bool  # the user chose it by argument


def resolve(data_dir: str | os.PathLike | None) -> Directories:
    """The data directory: the argument, else TFDS_DATA_DIR, else TFDS's default."""
    from_environment = os.environ.get("TFDS_DATA_DIR")
    path = data_dir or from_environment or "~/tensorflow_datasets"
    return Directories(
        data_dir=pathlib.Path(os.path.abspath(os.path.expanduser(path))),
        named=bool(data_dir or from_environment),
        given=bool(data_dir),
    )


def decoded_directories(name: str, where: Directories) -> list[pathlib.Path]:
    """Where the decoded copy of a set may lie, the preferred place first.

    In the data directory, so that those who share it share the copy; in the user's
    cache where the data directory cannot be written or there is none. There the
    copies of different data directories are kept apart.
    """
    leaf = re.sub(r"[^A-Za-z0-9_.-]", "-", name)
    directories = []
    if where.named or where.data_dir.is_dir():
        directories.append(where.data_dir / "fuprune_decoded" / leaf)
    if where.named:
        digest = hashlib.sha256(str(where.data_dir).encode()).hexdigest()
        leaf = f"{leaf}-{digest[:12]}"
    directories.append(cache_folder() / leaf)
    return directories
