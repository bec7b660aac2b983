"""Decoded copies of sets in the user's cache, whose images are mapped.

Decoding 50,000 PNGs takes seconds, mapping the copy a hundredth of one. A copy that is
damaged is made again.
"""

import functools
import logging
import os
import pathlib

import numpy as np

from fuprune.data.dataset import LabelledSet, from_arrays
from fuprune.errors import first_line
from fuprune.files import write_whole

_LOGGER = logging.getLogger(__name__)
# Labels, class names and columns; written last, so that it ends a copy.
_FACTS = "facts.npz"


def read(folder: pathlib.Path) -> LabelledSet | None:
    """The copy in a folder, its images mapped; None if there is none that is good."""
    if not (folder / _FACTS).is_file():
        return None
    try:
        # Mapped, so that a process which needs some images holds only those.
        images, test_images = (
            np.load(folder / f"{split}_images.npy", "r", allow_pickle=False)
            for split in ("train", "test")
        )
        with np.load(folder / _FACTS, allow_pickle=False) as archive:
            facts = dict(archive)
        return from_arrays(
            images,
            facts.pop("train labels"),
            test_images=test_images,
            test_labels=facts.pop("test labels"),
            class_names=facts.pop("class names").tolist(),
            columns={name.partition(" ")[2]: facts[name] for name in facts},
            origin=folder,
        )
    except Exception as error:  # NumPy's reader of headers raises many kinds
        _LOGGER.warning("%s will be made again: %s", folder, first_line(error))
        return None


def write(folder: pathlib.Path, whole: LabelledSet) -> None:
    """Keeps a copy, if the folder can be written."""
    facts = {f"column {name}": column for name, column in whole.columns.items()}
    facts["class names"] = np.array(whole.class_names)
    try:
        (folder / _FACTS).unlink(missing_ok=True)
        for split, (images, labels) in (("train", whole.train), ("test", whole.test)):
            facts[f"{split} labels"] = labels
            save = functools.partial(np.save, arr=images)
            write_whole(folder / f"{split}_images.npy", save)
        write_whole(folder / _FACTS, lambda to: np.savez(to, **facts))  # type: ignore
    except OSError as error:
        _LOGGER.info("No decoded copy was kept in %s: %s", folder, error)


def file_fingerprint(path: str | os.PathLike) -> tuple[str, int, int]:
    """Changes when the file does."""
    status = os.stat(path)
    return str(path), status.st_size, status.st_mtime_ns
