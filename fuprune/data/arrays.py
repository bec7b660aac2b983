"""Arrays that a program or a file brings, checked and made into a `LabelledSet`.

Everything that could go wrong later is looked at here, before any training: types,
shapes, labels, and whether both splits fit together. An error is one line that names
where the array came from.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fuprune.data.dataset import (
    DamagedDataError,
    Dataset,
    LabelledSet,
    checked,
    choose_test_fifth,
)


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
        there, missing = ("images", "labels")[:: 1 if test_labels is None else -1]
        raise DamagedDataError(
            f"{origin}: has test {there} but no test {missing}; give both or neither."
        )
    train = _with_channels(images, labels, f"{origin} (train)")
    facts = {name: np.asarray(column) for name, column in (columns or {}).items()}
    for name, column in facts.items():
        if column.shape != train.labels.shape:
            raise DamagedDataError(
                f"{origin}: the column {name!r} has shape {column.shape}, but one "
                f"value per training image is needed: [{len(train.labels)}]."
            )
    if test_images is None:
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
        test = _with_channels(test_images, test_labels, f"{origin} (test)")
    if test.images.shape[1:] != train.images.shape[1:]:
        raise DamagedDataError(
            f"{origin}: training images have shape {train.images.shape[1:]} and test "
            f"images {test.images.shape[1:]}, but one shape is needed."
        )
    names = _checked_names(class_names, train.labels, test.labels, origin)
    return LabelledSet(train, test, names, facts)


def _with_channels(images, labels, origin: str) -> Dataset:
    """The arrays as a dataset: images [N, H, W, C] uint8, labels [N] int32."""
    images, labels = np.asanyarray(images), np.asarray(labels)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise DamagedDataError(
            f"{origin}: images have shape {images.shape}, but [N, H, W], [N, H, W, 1] "
            "or [N, H, W, 3] is needed."
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return checked(images, labels, None, origin)


def _checked_names(names, train, test, origin: object) -> tuple[str, ...]:
    """The class names, after comparing them with the labels of both splits."""
    labels = np.union1d(train, test)
    highest = int(labels[-1])
    if names is None:
        # Bounded, because one label of two billion must not make an array as long; the
        # first gap, if there is any, lies below the number of labels.
        missing = np.setdiff1d(np.arange(min(highest, len(labels) + 1)), labels)
        if missing.size:
            raise DamagedDataError(
                f"{origin}: labels go up to {highest}, but class {missing[0]} has no "
                "image; number the classes from 0 without gaps, or give class_names."
            )
        names = map(str, range(highest + 1))
    names = tuple(map(str, names))
    if highest >= len(names):
        raise DamagedDataError(
            f"{origin}: has {len(names)} class names, but labels go up to {highest}."
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DamagedDataError(f"{origin}: two classes have the name {twice!r}.")
    if len(names) < 2:
        raise DamagedDataError(
            f"{origin}: has one class, but 2 or more are needed to tell apart."
        )
    if len(np.unique(train)) < 2:
        raise DamagedDataError(f"{origin}: training images are all of one class.")
    return names
