"""Pictures of a user's own set, decoded once if they are many.

A set of a few hundred pictures is decoded at every start. From `MANY` on, the decoded
arrays are kept in the user's cache (`cache`), under a name made of the set's
fingerprint and of the rule by which its pictures are fitted: a picture that comes, goes
or changes makes another copy. A copy is mapped, so that the host holds the images it
reads.
"""

import hashlib
import logging
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuprune.data import cache
from fuprune.data.dataset import DamagedDataError, Dataset
from fuprune.data.pictures import Fit, decode_all
from fuprune.files import cache_folder

MANY = 2_000  # pictures of a split
_LOGGER = logging.getLogger(__name__)


def decode_split(
    sources: Sequence[Any],
    labels: np.ndarray,
    fit: Fit,
    origins: Sequence[object],
    *,
    split: str,
    class_names: Sequence[str],
    fingerprint: object,
) -> np.ndarray:
    """All pictures of a split, [N, H, W, C] uint8.

    Args:
      sources: a path or the bytes of each picture.
      labels: [N] of the pictures; a copy with other labels is not used.
      fit: from `choose_fit`.
      origins: what an error names, for each picture.
      split: "train" or "test".
      class_names: kept with the copy.
      fingerprint: changes when the set does; None keeps no copy.

    Raises:
      DamagedDataError: a picture is unreadable, or all of them need more memory than is
        free.
    """
    if len(sources) < MANY or fingerprint is None:
        _check_room(len(sources), fit, origins)
        return decode_all(sources, fit, origins)
    labels = np.asarray(labels, np.int32)
    digest = hashlib.sha256(repr((fingerprint, fit)).encode()).hexdigest()
    directory = cache_folder() / "pictures" / digest[:24]
    found = cache.read([directory], split)
    if found is not None and np.array_equal(found.dataset.labels, labels):
        return found.dataset.images
    _check_room(len(sources), fit, origins)
    _LOGGER.info("%d pictures (%s) are decoded, once.", len(sources), split)
    images = decode_all(sources, fit, origins)
    names = class_names or [str(label) for label in range(int(labels.max()) + 1)]
    dataset = Dataset(images, labels)
    cache.write([directory], split, dataset, class_names=names, origin=[])
    return images


def _check_room(number: int, fit: Fit, origins: Sequence[object]) -> None:
    """Refuses what would not fit in memory, before the first picture is decoded."""
    needed = number * fit.height * fit.width * (3 if fit.mode == "RGB" else 1)
    free = free_memory()
    if free is not None and needed > free:
        raise DamagedDataError(
            f"{origins[0]} and {number - 1} more pictures take {needed / 1e9:.1f} GB as"
            f" {fit.width} x {fit.height} pixels, but {free / 1e9:.1f} GB are free;"
            " choose smaller ones, as in ?size=64."
        )


def free_memory() -> int | None:
    """Bytes of the host that are free, or None where the system does not say."""
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
        (line,) = [x for x in text.splitlines() if x.startswith("MemAvailable:")]
        return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return None
