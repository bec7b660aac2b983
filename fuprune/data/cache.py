"""Where data is on disk, and decoded copies of it: two .npy files and a note per split.

Decoding 50,000 PNGs takes seconds, reading the copy a tenth of one. A copy is
trusted only if its checksums agree with its note and the files it was made from have
not changed since; anything else about it is a reason to make it again, never to fail.
"""

import hashlib
import json
import logging
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fuprune.data.dataset import Dataset, checked
from fuprune.errors import first_line
from fuprune.files import cache_folder, write_whole

_FORMAT = 1
_LOGGER = logging.getLogger(__name__)


class Directories(NamedTuple):
    """The directories one call of `load` may look in."""

    data_dir: pathlib.Path  # prepared TFDS sets, archives, IDX files
    named: bool  # the user chose it, by argument or by TFDS_DATA_DIR
    given: bool  # the user chose it by argument

    @property
    def manual(self) -> pathlib.Path:
        """Where TFDS wants what is fetched by hand."""
        return self.data_dir / "downloads" / "manual"

    def decoded(self, name: str) -> list[pathlib.Path]:
        """Where the decoded copy of a set may lie, the preferred place first.

        In the data directory, so that those who share it share the copy; in the user's
        cache where the data directory cannot be written or there is none. There the
        copies of different data directories are kept apart.
        """
        leaf = re.sub(r"[^A-Za-z0-9_.-]", "-", name)
        directories = []
        if self.named or self.data_dir.is_dir():
            directories.append(self.data_dir / "fuprune_decoded" / leaf)
        if self.named:
            digest = hashlib.sha256(str(self.data_dir).encode()).hexdigest()
            leaf = f"{leaf}-{digest[:12]}"
        directories.append(cache_folder() / leaf)
        return directories


def resolve(data_dir: str | os.PathLike | None) -> Directories:
    """The data directory: the argument, else TFDS_DATA_DIR, else TFDS's default."""
    from_environment = os.environ.get("TFDS_DATA_DIR")
    path = data_dir or from_environment or "~/tensorflow_datasets"
    return Directories(
        data_dir=pathlib.Path(os.path.abspath(os.path.expanduser(path))),
        named=bool(data_dir or from_environment),
        given=bool(data_dir),
    )


class Entry(NamedTuple):
    """A decoded copy that was found good."""

    dataset: Dataset
    directory: pathlib.Path


def read(directories: Iterable[pathlib.Path], split: str) -> Entry | None:
    """The first good decoded copy of a split in the given directories, or None."""
    for directory in directories:
        note = read_note(directory, split)
        if note is None:
            continue
        try:
            return Entry(_read(directory, split, note), directory)
        except Exception as error:  # numpy's reader of headers raises many kinds
            _LOGGER.warning(
                "The decoded copy of %s in %s is not used and will be made again: %s",
                split,
                directory,
                first_line(error),
            )
    return None


def read_note(directory: pathlib.Path, split: str) -> dict[str, Any] | None:
    """What a decoded copy says of itself (class_names, origin, checksums), or None."""
    try:
        note = json.loads((directory / f"{split}.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(note, dict) or note.get("format") != _FORMAT:
        return None
    return note if isinstance(note.get("class_names"), list) else None


def write(
    directories: Iterable[pathlib.Path],
    split: str,
    dataset: Dataset,
    *,
    class_names: Sequence[str],
    origin: Iterable[pathlib.Path],
) -> pathlib.Path | None:
    """Keeps a decoded copy in the first directory that can be written, and returns it.

    None is returned if none could be written. The class names are kept along, for sets
    whose names are not known beforehand. When a file of the origin, those that the set
    was made from, changes, the copy is stale.
    """
    note = {
        "format": _FORMAT,
        "images": _describe(dataset.images),
        "labels": _describe(dataset.labels),
        "class_names": list(class_names),
        "origin": {str(path): file_fingerprint(path) for path in origin},
    }
    text = json.dumps(note, indent=1).encode()
    for directory in directories:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for part, array in zip(("images", "labels"), dataset, strict=True):
                write_whole(
                    directory / f"{split}_{part}.npy",
                    lambda file, array=array: np.save(file, array, allow_pickle=False),
                )
            # The note comes last: without it, or with an older one, the arrays are
            # not believed.
            write_whole(directory / f"{split}.json", text)
        except OSError as error:
            _LOGGER.info("No decoded copy was kept in %s: %s", directory, error)
            continue
        return directory
    return None


def _read(directory: pathlib.Path, split: str, note: dict[str, Any]) -> Dataset:
    for path, fingerprint in note["origin"].items():
        # An origin that is gone does not make the copy wrong.
        if os.path.exists(path) and list(file_fingerprint(path)) != fingerprint:
            raise ValueError(f"{path} has changed since.")

    def load(part):
        path = directory / f"{split}_{part}.npy"
        # Mapped, not read: a process that needs some of the images holds only those.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if _describe(array) != note[part]:
            raise ValueError(f"{path} does not agree with its note.")
        return array

    number = len(note["class_names"]) or None
    return checked(load("images"), load("labels"), number, directory)


def _describe(array: np.ndarray) -> dict[str, Any]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "crc32": zlib.crc32(flat.data),
    }


def file_fingerprint(path: str | os.PathLike) -> tuple[int, int]:
    """Changes when the file does."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
