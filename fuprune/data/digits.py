"""The embedded data: 1,797 handwritten digits that come with scikit-learn.

8x8 grey images, so that everything can be tried in minutes without a network. The
set has no test split of its own; every fifth image of each class is one here.
"""

import importlib.util
import pathlib

import numpy as np

from fuprune.data.dataset import LabelledSet, from_arrays


def read() -> LabelledSet:
    """1,442 images for training and 355 for the test, [N, 8, 8, 1]."""
    # The file is read in a moment; importing scikit-learn takes seconds, which every
    # process of a federation would pay for every message.
    found = importlib.util.find_spec("sklearn")
    assert found is not None and found.origin is not None
    folder = pathlib.Path(found.origin).parent / "datasets" / "data"
    table = np.loadtxt(folder / "digits.csv.gz", delimiter=",")
    # Ink runs from 0 to 16 in the original.
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8)
    return from_arrays(images.reshape(-1, 8, 8), table[:, -1].astype(np.int32))
