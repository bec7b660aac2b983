"""MNIST's own file format (IDX), plain or gzipped, where others keep such files."""

import gzip
import math
import pathlib
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fuprune.data.cache import Directories
from fuprune.data.dataset import DamagedDataError, Dataset, checked

_DEBIAN = pathlib.Path("/usr/share/datasets")
PREFIXES = {"train": "train", "test": "t10k"}  # of the official files
_UNSIGNED_BYTE = 0x08
_GZIP = b"\x1f\x8b"


class Pair(NamedTuple):
    """The two files of a split."""

    images: pathlib.Path
    labels: pathlib.Path


def directories(
    name: str, folders: Sequence[str], where: Directories
) -> list[pathlib.Path]:
    """Where the IDX files of a set may lie, the preferred place first."""
    roots = (where.data_dir, where.manual)
    found = [base / folder for base in roots for folder in folders]
    # The files of MNIST and Fashion-MNIST have the same names: without a folder that
    # tells them apart they are taken only from a directory given for this very set.
    if where.given:
        found.append(where.data_dir)
    return [*found, _DEBIAN / name.replace("_", "-")]


def find(split: str, places: Sequence[pathlib.Path]) -> Pair | None:
    """The pair of files of a split, or None; half a pair is an error."""
    prefix = PREFIXES[split]
    for directory in places:
        images = _first(directory, f"{prefix}-images", "idx3-ubyte")
        labels = _first(directory, f"{prefix}-labels", "idx1-ubyte")
        if images and labels:
            return Pair(images, labels)
        if images or labels:
            raise DamagedDataError(
                f"{images or labels}: its {'labels' if images else 'images'} file is "
                "missing beside it."
            )
    return None


def _first(directory: pathlib.Path, stem: str, kind: str) -> pathlib.Path | None:
    for separator in "-.":
        for suffix in ("", ".gz"):
            path = directory / f"{stem}{separator}{kind}{suffix}"
            if path.is_file():
                return path
    return None


def read(pair: Pair, num_classes: int) -> Dataset:
    """The dataset of a pair of files: images [N, H, W, 1], labels [N]."""
    images = _read(pair.images, dimensions=3)
    labels = _read(pair.labels, dimensions=1)
    if len(images) != len(labels):
        raise DamagedDataError(
            f"{pair.labels}: holds {len(labels)} labels, but {pair.images} holds "
            f"{len(images)} images."
        )
    return checked(images[..., None], labels, num_classes, pair.labels)


def _read(path: pathlib.Path, dimensions: int) -> np.ndarray:
    try:
        blob = path.read_bytes()
        # By content and not by name: files are often unpacked under their old name.
        if blob[:2] == _GZIP:
            blob = gzip.decompress(blob)
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedDataError(f"{path}: cannot be read ({error}).") from error
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if blob[:4] != magic or len(blob) < header:
        raise DamagedDataError(
            f"{path}: begins with {blob[:4].hex() or 'nothing'}, but an IDX file of "
            f"{dimensions}-dimensional bytes begins with {magic.hex()}."
        )
    shape = struct.unpack(f">{dimensions}I", blob[4:header])
    if len(blob) - header != math.prod(shape):
        raise DamagedDataError(
            f"{path}: holds {len(blob) - header} bytes of data, but its header says "
            f"{' x '.join(map(str, shape))}."
        )
    # A copy, because what views bytes cannot be written to.
    return np.frombuffer(blob, np.uint8, offset=header).reshape(shape).copy()
