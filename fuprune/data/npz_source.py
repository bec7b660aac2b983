"""A set in one .npz file: arrays by the names that NumPy, Keras or MedMNIST users give.

Nothing in the file is executed: pickled arrays are refused.
"""

import pathlib
from typing import Any

import numpy as np

from fuprune.data.dataset import DamagedDataError, LabelledSet, from_arrays

# What each array may be called; the first name is the documented one.
_NAMES = {
    "images": ("train_images", "images", "x_train"),
    "labels": ("train_labels", "labels", "y_train"),
    "test_images": ("test_images", "x_test"),
    "test_labels": ("test_labels", "y_test"),
    "class_names": ("class_names",),
}


def read(path: pathlib.Path) -> LabelledSet:
    """Reads and checks a set.

    The .npz file has `train_images` [N, H, W(, C)] uint8 and `train_labels` [N]; it may
    have `test_images`, `test_labels`, `class_names` [U]; every other array of shape [N]
    is a column, such as `client`.
    """
    try:
        # Opened here, because NumPy leaves a damaged file open.
        with open(path, "rb") as file:
            arrays = dict(np.load(file, allow_pickle=False))
    # Whatever zipfile and NumPy raise, the file is what is wrong.
    except Exception as error:
        raise DamagedDataError(
            f"{path}: is not a whole .npz file of plain arrays; other objects are not "
            "read."
        ) from error
    known: dict[str, Any] = {
        meaning: next((arrays.pop(name) for name in names if name in arrays), None)
        for meaning, names in _NAMES.items()
    }
    for meaning in ("images", "labels"):
        if known[meaning] is None:
            raise DamagedDataError(
                f"{path}: has the arrays {', '.join(sorted(arrays)) or '(none)'}, but "
                f"{_NAMES[meaning][0]} is needed."
            )
    if known["class_names"] is not None:
        known["class_names"] = [
            name.decode(errors="replace") if isinstance(name, bytes) else str(name)
            for name in known["class_names"].ravel().tolist()
        ]
    number = known["labels"].shape[:1]
    columns = {name: array for name, array in arrays.items() if array.shape == number}
    return from_arrays(**known, columns=columns, origin=path)
