"""Decoded copies of sets in the user's cache: .npy files in one folder per set.

Decoding 50,000 PNGs takes seconds, mapping the copy a hundredth of one. A copy lies
under a key that changes with what it was made from, and is used only if all of it is
whole and fits together; otherwise it is made again.
"""

import logging
import os
import pathlib

import numpy as np

from fuprune.data.dataset import LabelledSet, checked
from fuprune.errors import first_line
from fuprune.files import write_whole

_LOGGER = logging.getLogger(__name__)
_FACTS = "facts.npz"  # class names and columns; written last, so that it ends a copy


def read(folder: pathlib.Path) -> LabelledSet | None:
    """The copy in a folder, its images mapped; None if there is none that is good."""
    if not (folder / _FACTS).is_file():
        return None
    try:
        with np.load(folder / _FACTS, allow_pickle=False) as facts:
            columns = {name.removeprefix("column "): facts[name] for name in facts}
        names = tuple(columns.pop("names").tolist())
        splits = []
        for split in ("train", "test"):
            # Mapped, so that a process which needs some images holds only those.
            images, labels = (
                np.load(path, "r", allow_pickle=False) for path in _paths(folder, split)
            )
            splits.append(checked(images, labels, len(names), folder))
        number = len(splits[0].labels)
        if not all(isinstance(name, str) for name in names) or any(
            column.shape != (number,) for column in columns.values()
        ):
            raise ValueError(f"{folder / _FACTS} does not fit the images")
        train, test = splits
        return LabelledSet(train, test, names, columns)
    except Exception as error:  # NumPy's reader of headers raises many kinds
        _LOGGER.warning("%s will be made again: %s", folder, first_line(error))
        return None


def write(folder: pathlib.Path, whole: LabelledSet) -> None:
    """Keeps a copy, if the folder can be written."""
    facts = {f"column {name}": column for name, column in whole.columns.items()}
    facts["names"] = np.array(whole.class_names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _FACTS).unlink(missing_ok=True)
        for split, dataset in (("train", whole.train), ("test", whole.test)):
            for path, array in zip(_paths(folder, split), dataset, strict=True):
                write_whole(path, lambda to, array=array: np.save(to, array))
        write_whole(folder / _FACTS, lambda to: np.savez(to, **facts))  # type: ignore
    except OSError as error:
        _LOGGER.info("No decoded copy was kept in %s: %s", folder, error)


def file_fingerprint(path: str | os.PathLike) -> tuple[str, int, int]:
    """Changes when the file does."""
    status = os.stat(path)
    return str(path), status.st_size, status.st_mtime_ns


def _paths(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
    return [folder / f"{split}_{part}.npy" for part in ("images", "labels")]
