"""Where images come from: one `load` for every kind of source.

A name without a scheme is one of the sets known by name (`named_sets`); `npz:PATH`,
`folder:PATH` and `hf:NAME` are what people bring. What they bring is read and checked
once; both splits, the class names and the columns come from that one reading.
"""

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fuprune.data import folder_source, hf_source, named_sets, npz_source
from fuprune.data.cache import file_fingerprint
from fuprune.data.dataset import Dataset, DataUnavailableError, LabelledSet
from fuprune.errors import InputError


class Scheme(NamedTuple):
    """How a set behind `scheme:` is read."""

    read: Callable[[Any, int | None], LabelledSet]  # (path or name, side or None)
    fingerprint: Callable[[Any], Any]  # changes when the set does
    is_path: bool  # what follows the colon must exist on disk


SCHEMES = {
    "npz": Scheme(npz_source.read, file_fingerprint, True),
    "folder": Scheme(folder_source.read, folder_source.fingerprint, True),
    # A name has no file whose date could tell: one reading serves the process.
    "hf": Scheme(hf_source.read, lambda name: None, False),
}


def load(
    name: str, *, split: str, data_dir: str | os.PathLike | None = None
) -> Dataset:
    """Loads one split of a dataset into host memory.

    Args:
      name: "digits"; a TFDS name such as "cifar10", "eurosat/rgb", "mnist:3.0.1";
        "npz:PATH", "folder:PATH" or "hf:NAME" (see `npz_source`, `folder_source` and
        `hf_source`), the last two with "?size=64" behind to set the images' side.
      split: "train" or "test".
      data_dir: Where prepared sets lie; TFDS_DATA_DIR or ~/tensorflow_datasets if
        not given. A relative PATH is looked up there, too.

    Returns:
      images [N, H, W, C] uint8 and labels [N] int32.

    Raises:
      DamagedDataError: What was found is damaged; the line names it.
      DataUnavailableError: The set is not there; the message names the places looked
        in and the ways out. It comes within 30 seconds.
    """
    if split not in ("train", "test"):
        raise InputError(f"split is {split!r}, but it must be 'train' or 'test'.")
    own = _brought(name, data_dir)
    if own is None:
        return named_sets.load(name, split, data_dir)
    return own.train if split == "train" else own.test


load_dataset = load  # its name at the top level


def class_names(
    name: str, data_dir: str | os.PathLike | None = None
) -> tuple[str, ...]:
    """The names of the classes in label order; "0" to "U-1" where they have none."""
    own = _brought(name, data_dir)
    return named_sets.class_names(name, data_dir) if own is None else own.class_names


def num_classes(name: str, data_dir: str | os.PathLike | None = None) -> int:
    """How many classes a set has."""
    return len(class_names(name, data_dir))


def column(
    name: str, key: str, data_dir: str | os.PathLike | None = None
) -> np.ndarray:
    """A further fact about each training image, such as whose it is.

    Args:
      name: As for `load`; sets known by name have no columns.
      key: The column: an array of an .npz file, a column of a Hugging Face set, or
        "client" for the directories below the classes' of a folder.
      data_dir: As for `load`.

    Returns:
      [N] strings or integers.
    """
    own = _brought(name, data_dir)
    columns = {} if own is None else own.columns
    if key not in columns:
        raise DataUnavailableError(
            f"{name} has no column {key!r} that says whose an image is; its columns "
            f"are: {', '.join(sorted(columns)) or '(none)'}."
        )
    return columns[key]


def _brought(name: str, data_dir: str | os.PathLike | None) -> LabelledSet | None:
    """The set behind a scheme, or None if the name has no scheme."""
    if not isinstance(name, str) or name.partition(":")[0] not in SCHEMES:
        return None
    key, _, rest = name.partition(":")
    scheme = SCHEMES[key]
    # Images in an array have a side already.
    rest, size = _split_size(rest) if key != "npz" else (rest, None)
    if not rest:
        raise InputError(f"The dataset is {name!r}, but nothing follows the colon.")
    if scheme.is_path:
        rest = _find(key, rest, data_dir)
    return _read_once(key, rest, size, scheme.fingerprint(rest))


# Two: a run reads one set, and a program may compare it with another.
@functools.lru_cache(maxsize=2)
def _read_once(key: str, place: Any, size: int | None, fingerprint: Any) -> LabelledSet:
    del fingerprint  # a part of the cache's key
    return SCHEMES[key].read(place, size)


def _split_size(rest: str) -> tuple[str, int | None]:
    """`PATH?size=64` -> PATH, 64."""
    place, question, size = rest.partition("?size=")
    if not question:
        return rest, None
    if not size.isdecimal() or not 1 <= int(size) <= 4096:
        raise InputError(
            f"The size of images is {size!r}, but ?size= takes a whole number of "
            "pixels from 1 to 4096."
        )
    return place, int(size)


def _find(key: str, rest: str, data_dir: str | os.PathLike | None) -> pathlib.Path:
    """The file or directory that is meant, or an error that says where it is not."""
    wanted = pathlib.Path(rest).expanduser()
    places = [wanted]
    if data_dir and not wanted.is_absolute():
        places.append(pathlib.Path(data_dir).expanduser() / wanted)
    for place in places:
        if place.is_dir() if key == "folder" else place.is_file():
            # One spelling per file, so that two ways to write a path share a reading.
            return place.resolve()
    kind = "directory" if key == "folder" else "file"
    looked = " or ".join(str(place.absolute()) for place in places)
    raise DataUnavailableError(
        f"{key}:{rest} is unavailable: there is no {kind} {looked}."
    )
