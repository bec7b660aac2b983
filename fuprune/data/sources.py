"""Where images come from: one `load` for every kind of source.

A name without a scheme is a set known by name: the embedded digits, a row of
`known_sets`, or any image-classification set of TensorFlow Datasets. The disk is looked
at first and the network is asked last. `npz:PATH`, `folder:PATH` and `hf:NAME` are what
people bring. Whatever the source, a set is read and checked as a whole, once, and sets
of many images leave a decoded copy in the user's cache.
"""

import difflib
import hashlib
import logging
import os
import pathlib
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import numpy as np

from fuprune.data import cache, folder_source, hf_source, npz_source, tfds_source
from fuprune.data import digits as digits_source
from fuprune.data.dataset import (
    Dataset,
    DataUnavailableError,
    LabelledSet,
    from_arrays,
)
from fuprune.data.known_sets import KNOWN_SETS, KnownSet, find_known
from fuprune.data.originals import FetchError, Route, fetch, find
from fuprune.errors import InputError, MissingPackageError
from fuprune.files import cache_folder

MANY = 2_000  # training images of a set whose decoded copy is kept
_LOGGER = logging.getLogger(__name__)
Folder = str | os.PathLike | None
_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_.+-]+)?(:\d+\.\d+\.\d+)?")


class Source(NamedTuple):
    """A set that was found and can be read."""

    read: Callable[[], LabelledSet]
    fingerprint: Any  # changes when the set does
    origin: object
    decodes: bool = True  # whether a copy is faster to read than the set


def load(name: str, *, split: str, data_dir: Folder = None) -> Dataset:
    """Loads one split of a dataset into host memory.

    Args:
      name: "digits"; a TFDS name such as "cifar10", "eurosat/rgb", "mnist:3.0.1";
        "npz:PATH", "folder:PATH" or "hf:NAME" (see `npz_source`, `folder_source` and
        `hf_source`), the last two with "?size=64" behind to set the images' side.
      split: "train" or "test".
      data_dir: Where sets lie and are fetched to; TFDS_DATA_DIR or
        ~/tensorflow_datasets if not given. A relative PATH is looked up there, too.

    Raises:
      DamagedDataError: What was found is damaged; the line names it.
      DataUnavailableError: The set is not there; the message names the places looked
        in and the ways out.
    """
    if split not in ("train", "test"):
        raise InputError(f"split is {split!r}, but it must be 'train' or 'test'.")
    whole = read(name, data_dir)
    return whole.train if split == "train" else whole.test


load_dataset = load  # its name at the top level


def class_names(name: str, data_dir: Folder = None) -> tuple[str, ...]:
    """The names of the classes in label order; "0" to "U-1" where they have none."""
    known = find_known(name)
    return read(name, data_dir).class_names if known is None else known.class_names


def num_classes(name: str, data_dir: Folder = None) -> int:
    """How many classes a set has."""
    return len(class_names(name, data_dir))


def column(name: str, key: str, data_dir: Folder = None) -> np.ndarray:
    """A further fact about each training image, such as whose it is; [N].

    `key` is an array of an .npz file, a column of a Hugging Face set, or "client" for
    the directories below the classes' of a folder.
    """
    columns = read(name, data_dir).columns
    if key not in columns:
        raise DataUnavailableError(
            f"{name} has no column {key!r} that says whose an image is; its columns "
            f"are: {', '.join(sorted(columns)) or '(none)'}."
        )
    return columns[key]


# The last two: a run reads one set, and a program may compare it with another.
_REMEMBERED: dict[str, LabelledSet] = {}


def read(name: str, data_dir: Folder = None) -> LabelledSet:
    """The whole set: remembered, or its decoded copy, or read where it was found."""
    source = _find(name, data_dir)
    key = hashlib.sha256(repr(source.fingerprint).encode()).hexdigest()[:32]
    if key not in _REMEMBERED:
        folder = cache_folder() / "decoded" / key
        found = cache.read(folder) if source.decodes else None
        if found is None:
            _LOGGER.info("%s: read from %s.", name, source.origin)
            found = source.read()
            if source.decodes and len(found.train.labels) >= MANY:
                cache.write(folder, found)
        while len(_REMEMBERED) > 1:
            _REMEMBERED.pop(next(iter(_REMEMBERED)))
        _REMEMBERED[key] = found
    return _REMEMBERED[key]


def _find(name: str, data_dir: Folder) -> Source:
    scheme, _, place = name.partition(":")
    if scheme not in ("npz", "folder", "hf"):
        return _find_named(name, data_dir)
    size = None
    if scheme != "npz" and "?size=" in place:  # images in an array have a side already
        place, _, side = place.partition("?size=")
        if not side.isdecimal() or not 1 <= int(side[:5]) <= 4096:
            raise InputError(
                f"The size of images is {side!r}, but ?size= takes a whole number of "
                "pixels from 1 to 4096."
            )
        size = int(side)
    if not place:
        raise InputError(f"The dataset is {name!r}, but nothing follows the colon.")
    if scheme == "hf":
        splits = hf_source.open_splits(place)
        fingerprint = (scheme, place, size, hf_source.fingerprint(splits))
        return Source(lambda: hf_source.read(place, splits, size), fingerprint, name)
    path = _find_path(scheme, place, data_dir)
    if scheme == "npz":
        fingerprint = cache.file_fingerprint(path)
        return Source(lambda: npz_source.read(path), fingerprint, path, decodes=False)
    fingerprint = (size, folder_source.fingerprint(path))
    return Source(lambda: folder_source.read(path, size), fingerprint, path)


def _find_path(scheme: str, place: str, data_dir: Folder) -> pathlib.Path:
    """The file or directory that is meant, or an error that says where it is not."""
    wanted = pathlib.Path(place).expanduser()
    # An absolute path stays what it is behind another.
    places = [wanted, pathlib.Path(data_dir or "").expanduser() / wanted]
    for path in places:
        if path.is_dir() if scheme == "folder" else path.is_file():
            # One spelling per file, so that two ways to write a path share a reading.
            return path.resolve()
    kind = "directory" if scheme == "folder" else "file"
    looked = " or ".join(str(path.absolute()) for path in dict.fromkeys(places))
    raise DataUnavailableError(
        f"{scheme}:{place} is unavailable: there is no {kind} {looked}."
    )


def _find_named(name: str, data_dir: Folder) -> Source:
    """A set known by name, by the first way that leads to it.

    The ways in their order: its own files on disk; a directory prepared by TFDS; its
    files fetched from their addresses; TFDS's own download and preparation.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"The dataset is {name!r}, but a name as TFDS writes it is needed, such as "
            "'cifar10', or 'digits', or npz:PATH, folder:PATH or hf:NAME."
        )
    if name == "digits":
        return Source(digits_source.read, name, name, decodes=False)
    # Of a named version only TFDS can say what it is.
    known = KNOWN_SETS.get(name, KnownSet(()))
    # To look for those of other packages takes a tenth of a second.
    points = () if known.routes else entry_points(group="fuprune.datasets", name=name)
    for point in points:  # a function without arguments that gives a `LabelledSet`
        return Source(point.load(), (name, point.value), point.value, decodes=False)
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    root = pathlib.Path(os.path.abspath(os.path.expanduser(root)))
    looked = []
    bases = (root, root / "downloads" / "manual", root / "downloads")
    for route in known.routes:
        folders = [base / folder for base in bases for folder in (name, *route.folders)]
        # Files of several sets have the same names: they are taken from the directory
        # itself only if it was given for this very set.
        files = find(route, [*folders, *([root] if data_dir else [])])
        if files is not None:
            return _originals(known, route, files)
        looked.append(f"{root}, for {', '.join(route.files)}")
    looked.append(f"{root / name.partition(':')[0]} (prepared by TFDS)")
    if (source := _prepared(name, root)) is not None:
        return source
    for route in known.routes:
        if not route.address:
            continue
        _LOGGER.info("%s: fetched from %s.", name, route.address)
        try:
            files = fetch(route, root / "downloads" / name)
            return _originals(known, route, files)
        except FetchError as error:
            looked.append(f"{route.address}: {error}")
    if not known.routes:
        try:
            tfds_source.prepare(name, root)
        except (DataUnavailableError, MissingPackageError) as error:
            looked.append(str(error))
        # Another process may have prepared it, which made this one fail.
        if (source := _prepared(name, root)) is not None:
            return source
    raise DataUnavailableError(_unavailable(name, known, root, looked))


def _originals(known: KnownSet, route: Route, files: list[pathlib.Path]) -> Source:
    def read():
        arrays: dict[str, Any] = route.read(files)
        return from_arrays(**arrays, class_names=known.class_names, origin=files[0])

    return Source(read, [cache.file_fingerprint(file) for file in files], files[0])


def _prepared(name: str, root: pathlib.Path) -> Source | None:
    directory = tfds_source.find_prepared(name, root)
    if directory is None:
        return None
    files = sorted(path for path in directory.iterdir() if path.is_file())
    return Source(
        lambda: tfds_source.read_prepared(directory),
        [cache.file_fingerprint(file) for file in files],
        directory,
    )


def _unavailable(name: str, known: KnownSet, root: pathlib.Path, looked) -> str:
    ways = []
    close = difflib.get_close_matches(name, KNOWN_SETS)
    if close and not known.class_names:
        ways.append(f"did you mean {' or '.join(close)}?")
    if pathlib.Path(name).is_dir():
        ways.append(f"did you mean folder:{name}, which is a directory here?")
    ways.append(
        "where there is a network, load it once with data_dir=DIR (--config.data.dir), "
        "and copy DIR here"
    )
    if known.routes:
        files = " or ".join(", ".join(route.files) for route in known.routes)
        ways.append(f"put {files} into {root / name}")
    ways.append("give a directory with the set prepared by TFDS as data_dir")
    ways.append("try with the embedded set 'digits', which needs nothing")
    lines = [f"{name} is unavailable here. Looked in:"]
    lines += [f"  - {place}" for place in looked]
    lines += ["Ways out:"] + [f"  - {way}" for way in ways]
    return "\n".join(lines)
