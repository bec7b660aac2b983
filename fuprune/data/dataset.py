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


def check(dataset: Dataset, num_classes: int, origin: object) -> Dataset:
    """Returns the dataset as it is, or raises DamagedDataError naming its origin."""
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
    if low < 0 or high >= num_classes:
        raise DamagedDataError(
            f"{origin}: labels run from {low} to {high}, but they must be in "
            f"[0, {num_classes - 1}]."
        )
    return dataset


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
