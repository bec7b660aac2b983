"""The file feature_maps.npz of a run: what two channels see in real images.

It is written beside results.json, whose row says which channels they are.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fuprune.files import write_whole
from fuprune.typed_json import FormatError

FILE = "feature_maps.npz"
_LARGEST_ARCHIVE = 64 * 1024 * 1024


class PictureArrays(NamedTuple):
    """The arrays of feature_maps.npz: what two channels see in real images."""

    images: np.ndarray  # [n, H, W, 1 or 3] uint8
    labels: np.ndarray  # [n] integers
    maps_most: np.ndarray  # [n, h, w] of the most discriminative channel
    maps_least: np.ndarray  # [n, h, w] of the least discriminative one


def write_feature_maps(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the fields of `PictureArrays`, whole or not at all."""
    write_whole(
        directory / FILE, lambda file: np.savez(file, allow_pickle=False, **arrays)
    )


def read_feature_maps(directory: Path) -> PictureArrays:
    """Reads `feature_maps.npz`.

    Raises:
      FormatError: the archive is broken, too large, or holds something else.
    """
    path = directory / FILE
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_ARCHIVE:
                raise ValueError("it is larger than any run writes")
        with np.load(path, allow_pickle=False) as arrays:
            maps = PictureArrays(
                *(np.asarray(arrays[key]) for key in PictureArrays._fields)
            )
        _check_shapes(maps)
    except Exception as error:  # NumPy's reader of headers raises many kinds
        raise FormatError(str(error) or type(error).__name__) from error
    return maps


def _check_shapes(maps: PictureArrays) -> None:
    images, labels = maps.images, maps.labels
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or images.dtype != np.uint8:
        raise ValueError(
            f"images are {images.dtype}{list(images.shape)}, not uint8 [n, H, W, 1|3]"
        )
    for seen in (maps.maps_most, maps.maps_least):
        if seen.ndim != 3 or len(seen) != len(images) or seen.dtype.kind != "f":
            raise ValueError(
                f"maps are {seen.dtype}{list(seen.shape)}, not float [n, h, w]"
            )
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels are {labels.dtype}{list(labels.shape)}, not int [n]")
