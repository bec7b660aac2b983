"""What every source of data agrees on: what a dataset is and which errors there are."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fuprune.errors import FupruneError


class Dataset(NamedTuple):
    """A whole split of a labelled image set, in host memory."""

    images: np.ndarray  # [N, H, W, C] uint8
    labels: np.ndarray  # [N] int32


class LabelledSet(NamedTuple):
    """A whole set that somebody brought: both splits and what belongs to them."""

    train: Dataset
    test: Dataset
    class_names: tuple[str, ...]
    columns: Mapping[str, np.ndarray]  # name -> [N] of train, such as client ids


class DataUnavailableError(FupruneError):
    """Data is missing or unusable: what was looked for, and the way out."""


class DamagedDataError(DataUnavailableError):
    """A file that was found does not hold what its name says: one line naming it."""


def checked(
    images: np.ndarray, labels: np.ndarray, num_classes: int | None, origin: object
) -> Dataset:
    """Arrays as a dataset, or DamagedDataError that names their origin.

    Images are [N, H, W, C] uint8, labels [N] integers in [0, num_classes); None allows
    any number of classes.
    """
    if images.dtype != np.uint8 or images.ndim != 4:
        raise DamagedDataError(
            f"{origin}: images are {images.dtype} of shape {images.shape}, but uint8 "
            "from 0 to 255 of shape [N, H, W, C] is needed; convert them once, for "
            "example with np.rint(255 * x).astype(np.uint8)."
        )
    if images.size == 0:
        raise DamagedDataError(f"{origin}: images have shape {images.shape}: no pixel.")
    return Dataset(images, checked_labels(labels, len(images), num_classes, origin))


def checked_labels(
    labels: np.ndarray, number: int, num_classes: int | None, origin: object
) -> np.ndarray:
    """The labels of so many images as int32; what is wrong is said as by `checked`."""
    if number == 0:
        raise DamagedDataError(f"{origin}: has no image.")
    if labels.shape != (number,) or labels.dtype.kind not in "iu":
        raise DamagedDataError(
            f"{origin}: labels are {labels.dtype} of shape {labels.shape}, but "
            f"integers of shape [{number}] are needed, one per image."
        )
    low, high = int(labels.min()), int(labels.max())
    highest = (num_classes or 2**31) - 1
    if low < 0 or high > highest:
        raise DamagedDataError(
            f"{origin}: labels run from {low} to {high}, but they must be in "
            f"[0, {highest}]."
        )
    return labels.astype(np.int32, copy=False)


def concatenated(parts: Sequence[Dataset]) -> Dataset:
    """Several datasets as one, in their order."""
    return Dataset(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def choose_test_fifth(labels: np.ndarray) -> np.ndarray:
    """Which examples test when a set has no test split: every fifth of each class.

    Labels [N] -> [N] bool. A class of fewer than five examples has none in the test.
    """
    in_test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        in_test[np.flatnonzero(labels == label)[4::5]] = True
    return in_test


def split_by_class(dataset: Dataset, split: str) -> Dataset:
    """The train or test split of a set that has none, in the original order."""
    in_test = choose_test_fifth(dataset.labels)
    chosen = in_test if split == "test" else ~in_test
    return Dataset(dataset.images[chosen], dataset.labels[chosen])
