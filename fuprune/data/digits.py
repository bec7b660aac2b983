"""The embedded data: 1,797 handwritten digits that come with scikit-learn.

8x8 grey images, so that everything can be tried in minutes without a network. The
set has no test split of its own; every fifth image of each class is one here.
"""

import importlib.util
import pathlib

import numpy as np

from fuprune.data.dataset import Dataset, split_by_class


def load_digits(split: str) -> Dataset:
    """The train (1,442) or test (355) split: images [N, 8, 8, 1], labels [N]."""
    flat, labels = _read()
    # Ink runs from 0 to 16 in the original.
    images = np.rint(flat * (255 / 16)).astype(np.uint8)
    dataset = Dataset(images.reshape(-1, 8, 8, 1), labels.astype(np.int32))
    return split_by_class(dataset, split)


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Ink [N, 64] and labels [N] of scikit-learn's copy."""
    # Its file is read in a moment; importing scikit-learn takes seconds, which every
    # process of a federation would pay for every message.
    found = importlib.util.find_spec("sklearn")
    if found is not None and found.origin is not None:
        folder = pathlib.Path(found.origin).parent / "datasets" / "data"
        if (folder / "digits.csv.gz").is_file():
            table = np.loadtxt(folder / "digits.csv.gz", delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn import datasets

    flat, labels = datasets.load_digits(return_X_y=True)
    return np.asarray(flat), np.asarray(labels)
