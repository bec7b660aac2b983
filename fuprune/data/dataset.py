"""What every source of data agrees on: what a dataset is and how one fails to come."""

from typing import NamedTuple

import numpy as np

from fuprune.errors import FupruneError


class Dataset(NamedTuple):
    """A whole split of a labelled image set, in host memory."""

    images: np.ndarray  # [N, H, W, C] uint8
    labels: np.ndarray  # [N] int32


class DataUnavailableError(FupruneError):
    """Data cannot be had: one message with the places looked in and the ways out."""


class DamagedDataError(DataUnavailableError):
    """A file that was found does not hold what its name says: one line naming it."""


def check(dataset: Dataset, num_classes: int | None, origin: object) -> Dataset:
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
    if images.size == 0:
        raise DamagedDataError(f"{origin}: holds no examples.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        limit = "0 or more" if num_classes is None else f"in [0, {num_classes - 1}]"
        raise DamagedDataError(
            f"{origin}: labels run from {low} to {high}, but they must be {limit}."
        )
    return dataset


def hold_out(dataset: Dataset, split: str) -> Dataset:
    """The train or test split of a set that has none: every fifth of each class tests.

    Args:
      dataset: N examples.
      split: "train" (four fifths) or "test" (one fifth), in the original order.
    """
    in_test = np.zeros(len(dataset.labels), bool)
    for label in np.unique(dataset.labels):
        in_test[np.flatnonzero(dataset.labels == label)[4::5]] = True
    chosen = in_test if split == "test" else ~in_test
    return Dataset(dataset.images[chosen], dataset.labels[chosen])
