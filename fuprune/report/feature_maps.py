"""Reads feature maps of real images, as untrusted as any other file (Figure 2)."""

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

_LARGEST = 64 * 1024 * 1024


class FeatureMaps(NamedTuple):
    """What the most and the least discriminative channel see (Figure 2)."""

    images: np.ndarray  # [n, H, W, C] uint8
    labels: np.ndarray  # [n]
    maps_most: np.ndarray  # [n, h, w]
    maps_least: np.ndarray  # [n, h, w]
    layer: str
    most: str  # channel number, as text
    least: str


def read_feature_maps(path: Path, *, layer: str, most: str, least: str) -> FeatureMaps:
    """Reads `feature_maps.npz`.

    Args:
      path: The archive with `images`, `labels`, `maps_most` and `maps_least`.
      layer: Name of the layer, as results.json has it.
      most: The most discriminative channel.
      least: The least discriminative channel.

    Returns:
      The maps, checked.

    Raises:
      ValueError: If the archive is broken, too large, or holds something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST:
                raise ValueError("it is larger than any run writes")
        with np.load(path, allow_pickle=False) as arrays:
            maps = FeatureMaps(
                images=np.asarray(arrays["images"]),
                labels=np.asarray(arrays["labels"]),
                maps_most=np.asarray(arrays["maps_most"], dtype=np.float64),
                maps_least=np.asarray(arrays["maps_least"], dtype=np.float64),
                layer=layer,
                most=most,
                least=least,
            )
    except Exception as error:  # numpy's reader of headers raises many kinds
        raise ValueError(str(error) or type(error).__name__) from error
    _check(maps)
    return maps


def _check(maps: FeatureMaps) -> None:
    images = maps.images
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or images.dtype != np.uint8:
        raise ValueError(
            f"images are {images.dtype}{list(images.shape)}, not uint8 [n, H, W, 1|3]"
        )
    shapes = maps.maps_most.shape, maps.maps_least.shape
    if any(len(shape) != 3 or shape[0] != len(images) for shape in shapes):
        raise ValueError(f"maps are {list(shapes)}, not [{len(images)}, h, w]")
    if maps.labels.shape != (len(images),) or maps.labels.dtype.kind not in "iu":
        raise ValueError(f"labels are {list(maps.labels.shape)}, not [{len(images)}]")
