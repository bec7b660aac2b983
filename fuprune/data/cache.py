"""Where data is on disk, and decoded copies of it: two .npy files per split.

Decoding 50,000 PNGs takes seconds, mapping the copy a hundredth of one. A copy lies
under a key that changes with what it was made from, and is used only if both arrays are
whole and of the right types and lengths; otherwise it is made again.
"""

import hashlib
import logging
import os
import pathlib
from typing import NamedTuple

import numpy as np

from fuprune.data.dataset import Dataset, checked
from fuprune.errors import first_line
from fuprune.files import cache_folder, write_whole

_LOGGER = logging.getLogger(__name__)


class Directories(NamedTuple):
    """The directories that one call of `load` may look in."""

    data_dir: pathlib.Path  # prepared TFDS sets, archives, IDX files
    named: bool  # the user chose it, by argument or by TFDS_DATA_DIR
    given: bool  # the user chose it by argument

    @property
    def manual(self) -> pathlib.Path:
        """Where TFDS wants what is fetched by hand."""
        return self.data_dir / "downloads" / "manual"

    def decoded(self, key: str) -> list[pathlib.Path]:
        """Where a decoded copy may lie, the preferred place first.

        In the data directory, so that those who share it share the copy; in the user's
        cache where the data directory cannot be written or does not exist.
        """
        shared = [self.data_dir / "fuprune_decoded" / key]
        exists = self.named or self.data_dir.is_dir()
        return [*(shared if exists else []), cache_folder() / key]


def resolve(data_dir: str | os.PathLike | None) -> Directories:
    """The data directory: the argument, else TFDS_DATA_DIR, else TFDS's default."""
    from_environment = os.environ.get("TFDS_DATA_DIR")
    path = data_dir or from_environment or "~/tensorflow_datasets"
    return Directories(
        data_dir=pathlib.Path(os.path.abspath(os.path.expanduser(path))),
        named=bool(data_dir or from_environment),
        given=bool(data_dir),
    )


def read(
    folder: pathlib.Path, split: str, num_classes: int | None = None
) -> Dataset | None:
    """The copy of a split in a folder, mapped; None if there is none that is good.

    Labels must be below `num_classes`, if that is known.
    """
    images, labels = _paths(folder, split)
    try:
        return checked(
            # Mapped, so that a process which needs some images holds only those.
            np.load(images, "r", allow_pickle=False),
            np.load(labels, "r", allow_pickle=False),
            num_classes,
            folder,
        )
    except FileNotFoundError:
        return None
    except Exception as error:  # NumPy's reader of headers raises many kinds
        _LOGGER.warning("%s will be made again: %s", images, first_line(error))
        return None


def write(folder: pathlib.Path, split: str, dataset: Dataset) -> bool:
    """Keeps a copy of a split; says whether the folder could be written."""
    images, labels = _paths(folder, split)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Without labels there is no copy: an interrupted write leaves none.
        labels.unlink(missing_ok=True)
        for path, array in zip((images, labels), dataset, strict=True):
            write_whole(path, lambda to, array=array: np.save(to, array))
    except OSError as error:
        _LOGGER.info("No decoded copy was kept in %s: %s", folder, error)
        return False
    return True


def digest(content: object) -> str:
    """A short name for what a copy is made from, by its representation as text."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:24]


def file_fingerprint(path: str | os.PathLike) -> tuple[int, int]:
    """Changes when the file does."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _paths(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
    return [folder / f"{split}_{part}.npy" for part in ("images", "labels")]
