"""What every source of data agrees on: what a set is, its checks and its errors.

An error is one line that names where the array came from.
"""

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


def from_arrays(
    images: np.ndarray,
    labels: np.ndarray,
    *,
    test_images: np.ndarray | None = None,
    test_labels: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    columns: Mapping[str, np.ndarray] | None = None,
    origin: object = "from_arrays",
) -> LabelledSet:
    """Checks arrays and makes a set of them.

    Args:
      images: [N, H, W, C] or [N, H, W] uint8; C is 1 for grey or 3 for colour. Not
        copied if they need no split.
      labels: [N] or [N, 1] integers from 0 on.
      test_images: [T, H, W, C] or [T, H, W] uint8; without them every fifth example
        of each class tests and is not trained on.
      test_labels: [T] or [T, 1] integers; given exactly if test_images are.
      class_names: One name per class; "0" to "U-1" if not given, and then every
        class up to the largest label has an image.
      columns: Further facts about the N examples by name, such as whose they are.
      origin: What an error names.

    Returns:
      The set, with uint8 images and int32 labels.

    Raises:
      DamagedDataError: one line with what was seen and what is needed.
    """
    if (test_images is None) != (test_labels is None):
        raise DamagedDataError(
            f"{origin}: has test images or test labels; give both or neither."
        )
    train = checked(images, labels, f"{origin} (train)")
    facts = {name: np.asarray(column) for name, column in (columns or {}).items()}
    for name, column in facts.items():
        if column.shape != train.labels.shape:
            raise DamagedDataError(
                f"{origin}: the column {name!r} has shape {column.shape}, but one "
                f"value per training image is needed: [{len(train.labels)}]."
            )
    if test_images is None or test_labels is None:
        in_test = choose_test_fifth(train.labels)
        if not in_test.any():
            raise DamagedDataError(
                f"{origin}: no class has five examples, so that none can be set aside "
                "for a test; give a test split."
            )
        test = Dataset(train.images[in_test], train.labels[in_test])
        train = Dataset(train.images[~in_test], train.labels[~in_test])
        facts = {name: column[~in_test] for name, column in facts.items()}
    else:
        test = checked(test_images, test_labels, f"{origin} (test)")
    if test.images.shape[1:] != train.images.shape[1:]:
        raise DamagedDataError(
            f"{origin}: training images have shape {train.images.shape[1:]} and test "
            f"images {test.images.shape[1:]}, but one shape is needed."
        )
    names = _checked_names(class_names, train.labels, test.labels, origin)
    return LabelledSet(train, test, names, facts)


def _checked_names(names, train, test, origin: object) -> tuple[str, ...]:
    """The class names, after comparing them with the labels of both splits."""
    labels = np.union1d(train, test)
    highest = int(labels[-1])
    if names is None:
        if highest >= len(labels):
            missing = np.setdiff1d(np.arange(len(labels) + 1), labels)[0]
            raise DamagedDataError(
                f"{origin}: labels go up to {highest}, but class {missing} has no "
                "image; number the classes from 0 without gaps, or give class_names."
            )
        names = range(highest + 1)
    names = tuple(map(str, names))
    if highest >= len(names):
        raise DamagedDataError(
            f"{origin}: has {len(names)} class names, but labels go up to {highest}."
        )
    if len(np.unique(train)) < 2:
        raise DamagedDataError(f"{origin}: training images are all of one class.")
    return names


def checked(images: np.ndarray, labels: np.ndarray, origin: object) -> Dataset:
    """Arrays as a dataset, or DamagedDataError that names their origin.

    Images are uint8 [N, H, W], which get a channel, or [N, H, W, C] with C of 1 or 3.
    """
    images, labels = np.asanyarray(images), np.asarray(labels)
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise DamagedDataError(
            f"{origin}: images are {images.dtype} of shape {images.shape}, but uint8 "
            "from 0 to 255 of shape [N, H, W], [N, H, W, 1] or [N, H, W, 3] is needed; "
            "convert them once, for example with np.rint(255 * x).astype(np.uint8)."
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    labels = checked_labels(labels, len(images), origin)
    if images.size == 0:
        raise DamagedDataError(f"{origin}: images have shape {images.shape}: no pixel.")
    return Dataset(images, labels)


def checked_labels(labels: np.ndarray, number: int, origin: object) -> np.ndarray:
    """The labels of so many images as int32; what is wrong is said as by `checked`."""
    if number == 0:
        raise DamagedDataError(f"{origin}: has no image.")
    if labels.shape != (number,) or labels.dtype.kind not in "iu":
        raise DamagedDataError(
            f"{origin}: labels are {labels.dtype} of shape {labels.shape}, but "
            f"integers of shape [{number}] are needed, one per image."
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= 2**31:
        raise DamagedDataError(
            f"{origin}: labels run from {low} to {high}, but classes count from 0."
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
