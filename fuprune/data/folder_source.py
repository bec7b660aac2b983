"""A set as picture files: one directory per class.

    PATH/CLASS/picture.png                every fifth picture of a class tests
    PATH/train/CLASS/picture.png          with PATH/test/CLASS/picture.png
    PATH/train/CLASS/CLIENT/picture.png   whose picture it is, for natural partitions

Classes are numbered in the order of their directories' names, which become the class
names. `val` or `validation` serves as the test split if there is no `test`. The rule
for pictures of different sizes is in `pictures`.
"""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from fuprune.data.cache import file_fingerprint
from fuprune.data.dataset import DamagedDataError, LabelledSet
from fuprune.data.pictures import Pictures, read_pictures

_SUFFIXES = frozenset(
    ".bmp .gif .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp".split()
)
_DEPTH = 3  # of the directories of pictures: train/CLASS/CLIENT
_TEST_NAMES = ("test", "val", "validation")


def read(path: pathlib.Path, size: int | None = None) -> LabelledSet:
    """Reads and checks a set in a directory; `size` is as for `read_pictures`."""
    train_root, test_root = path, None
    if (path / "train").is_dir():
        train_root = path / "train"
        test_root = next(
            (path / name for name in _TEST_NAMES if (path / name).is_dir()), None
        )
    names = _class_directories(train_root)
    train = _pictures(train_root, names)
    test = None
    if test_root is not None:
        # Labels are numbered by the training classes, in both splits.
        unknown = sorted(set(_class_directories(test_root)) - set(names))
        if unknown:
            raise DamagedDataError(
                f"{test_root / unknown[0]}: is a class that {train_root} does not have."
            )
        test = _pictures(test_root, names)
    return read_pictures(
        train,
        test,
        size=size,
        class_names=names,
        columns=_client_column(train_root, train.sources),
        origin=path,
    )


def fingerprint(path: pathlib.Path) -> tuple:
    """Changes when a picture comes, goes or is rewritten."""
    found = []
    # Directories of classes are often links into a larger set.
    for folder, folders, names in os.walk(path, followlinks=True):
        if len(pathlib.Path(folder).relative_to(path).parts) == _DEPTH:
            folders.clear()  # no picture is below, and a link may lead back
        for name in names:
            file = os.path.join(folder, name)
            # A link may lead nowhere; if it is a picture's, reading it says so.
            content = file_fingerprint(file) if os.path.exists(file) else ()
            found.append((folder, name, *content[1:]))
    # `os.walk` promises no order.
    return tuple(sorted(found))


def _class_directories(root: pathlib.Path) -> list[str]:
    names = sorted(
        child.name
        for child in root.iterdir()
        if child.is_dir() and not child.name.startswith(".")
    )
    if len(names) < 2:
        raise DamagedDataError(
            f"{root}: has {len(names)} directories, but one per class is needed and at "
            "least 2 classes."
        )
    return names


def _pictures(root: pathlib.Path, names: list[str]) -> Pictures:
    """Every picture, class by class, in the order of their paths."""
    found: list[pathlib.Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        files = [
            file
            for pattern in ("*", "*/*")
            for file in (root / name).glob(pattern)
            if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
        ]
        found += sorted(files)
        labels += [label] * len(files)
    if not found:
        raise DamagedDataError(
            f"{root}: has no pictures in its classes' directories; known are files "
            f"that end in {', '.join(sorted(_SUFFIXES))}."
        )
    return Pictures(found, found, np.array(labels, np.int32))


def _client_column(
    root: pathlib.Path, files: Sequence[pathlib.Path]
) -> dict[str, np.ndarray]:
    """Whose each picture is, if every one lies in a client's directory."""
    depths = {len(file.relative_to(root).parts) for file in files}
    if depths == {2}:
        return {}
    if depths != {3}:
        raise DamagedDataError(
            f"{root}: some pictures lie in a class's directory and some one level "
            "below, in a client's; put all at the same level."
        )
    return {"client": np.array([file.parent.name for file in files])}
