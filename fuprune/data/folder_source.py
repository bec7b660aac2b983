"""A set as picture files: one directory per class.

    PATH/CLASS/picture.png                every fifth picture of a class tests
    PATH/train/CLASS/picture.png          with PATH/test/CLASS/picture.png
    PATH/train/CLASS/CLIENT/picture.png   whose picture it is, for natural partitions

Classes are numbered in the order of their directories' names, which become the class
names. `val` or `validation` serves as the test split if there is no `test`. The rule
for pictures of different sizes is in `pictures`.
"""

import pathlib

import numpy as np

from fuprune.data.cache import file_fingerprint
from fuprune.data.dataset import DamagedDataError, LabelledSet
from fuprune.data.pictures import Pictures, read_pictures

_SUFFIXES = frozenset(
    ".bmp .gif .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp".split()
)
_TEST_NAMES = ("test", "val", "validation")


def read(path: pathlib.Path, size: int | None = None) -> LabelledSet:
    """Reads and checks a set in a directory; `size` is as for `read_pictures`."""
    root, test_root = path, None
    if (path / "train").is_dir():
        root, tests = path / "train", (path / name for name in _TEST_NAMES)
        test_root = next((folder for folder in tests if folder.is_dir()), None)
    names = _class_names(root)
    train, test = _pictures(root, names), None
    if test_root is not None:
        # Labels are numbered by the training classes, in both splits.
        unknown = sorted(set(_class_names(test_root)) - set(names))
        if unknown:
            raise DamagedDataError(
                f"{test_root / unknown[0]}: is a class that {root} does not have."
            )
        test = _pictures(test_root, names)
    depths = {len(file.relative_to(root).parts) for file in train.sources}
    if len(depths) > 1:
        raise DamagedDataError(
            f"{root}: some pictures lie in a class's directory and some one level "
            "below, in a client's; put all at the same level."
        )
    clients = np.array([file.parent.name for file in train.sources])
    columns = {"client": clients} if depths == {3} else {}
    return read_pictures(
        train, test, size=size, class_names=names, columns=columns, origin=path
    )


def fingerprint(path: pathlib.Path) -> list:
    """Changes when a directory or a picture comes, goes or is rewritten."""
    found = [file for depth in range(1, 5) for file in path.glob("/".join("*" * depth))]
    # A link may lead nowhere; if it is a picture's, reading it says so.
    return sorted(
        file_fingerprint(file) if file.is_file() else (str(file),) for file in found
    )


def _class_names(root: pathlib.Path) -> list[str]:
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
        files = [*(root / name).glob("*"), *(root / name).glob("*/*")]
        found += sorted(
            file
            for file in files
            if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
        )
        labels += [label] * (len(found) - len(labels))
    if not found:
        raise DamagedDataError(
            f"{root}: has no pictures in its classes' directories; known are files "
            f"that end in {', '.join(sorted(_SUFFIXES))}."
        )
    return Pictures(found, found, np.array(labels, np.int32))
