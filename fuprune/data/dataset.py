"""The two things every source of data agrees on: what a dataset is, and how it fails."""

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """A whole split of a labelled image set, in host memory."""

    images: np.ndarray  # [N, H, W, C] uint8
    labels: np.ndarray  # [N] int32


class DataUnavailableError(Exception):
    """Data cannot be had: says in one message where it was looked for and what helps."""


class DamagedDataError(Exception):
    """A file that was found does not hold what its name says: one line naming it."""


def check(dataset: Dataset, num_classes: int | None, origin: str) -> Dataset:
    """Returns the dataset as it is, or raises DamagedDataError naming its origin.

    Args:
      dataset: What was read.
      num_classes: Labels must lie below it; None when it is not known.
      origin: The file or directory the data came from.
    """
    images, labels = dataset
    if images.dtype != np.uint8 or images.ndim != 4:
        raise DamagedDataError(
            f"{origin}: images are {images.dtype} of shape {images.shape}, but uint8 "
            "of shape [N, H, W, C] is expected."
        )
    if labels.dtype != np.int32 or labels.shape != images.shape[:1]:
        raise DamagedDataError(
            f"{origin}: labels are {labels.dtype} of shape {labels.shape}, but int32 "
            f"of shape [{len(images)}] is expected."
        )
    if len(labels) == 0:
        raise DamagedDataError(f"{origin}: holds no examples.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        limit = "0 or more" if num_classes is None else f"in [0, {num_classes - 1}]"
        raise DamagedDataError(
            f"{origin}: labels run from {low} to {high}, but they must be {limit}."
        )
    return dataset
