"""A set in one .npz file: arrays by the names that NumPy, Keras or MedMNIST users give.

Nothing in the file is executed: pickled arrays are refused.
"""

import pathlib
from typing import Any

import numpy as np

from fuprune.data.dataset import DamagedDataError, LabelledSet, from_arrays
from fuprune.errors import first_line

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
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is one array, as np.save writes it")
            arrays = dict(archive)
    # Whatever zipfile and NumPy raise, the file is what is wrong.
    except Exception as error:
        text = first_line(error)
        if "allow_pickle" in text:  # advice that nobody should follow
            text = "it holds Python objects or something else, and those are not read"
        raise DamagedDataError(
            f"{path}: is not an .npz file of plain arrays ({text})."
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
    number = len(known["labels"]) if known["labels"].ndim else 0
    names = known.pop("class_names")
    if names is not None:
        names = [
            name.decode(errors="replace") if isinstance(name, bytes) else str(name)
            for name in names.ravel().tolist()
        ]
    return from_arrays(
        **known,
        class_names=names,
        columns={k: v for k, v in arrays.items() if v.shape == (number,)},
        origin=path,
    )
