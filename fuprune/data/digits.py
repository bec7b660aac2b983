"""The embedded data: 1,797 handwritten digits that come with scikit-learn.

8x8 grey images, so that everything can be tried in minutes without a network. The
set has no test split of its own; every fifth image of each class is one here.
"""

import numpy as np

from fuprune.data.dataset import Dataset

NAMES = tuple(str(digit) for digit in range(10))


def load_digits(split: str) -> Dataset:
    """The train (1,442) or test (355) split: images [N, 8, 8, 1], labels [N]."""
    from sklearn import datasets  # A second of import time that others need not pay.

    bunch = datasets.load_digits()
    labels = bunch.target.astype(np.int32)
    # Ink runs from 0 to 16 in the original.
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    in_test = np.zeros(len(labels), bool)
    for digit in range(10):
        in_test[np.flatnonzero(labels == digit)[4::5]] = True
    chosen = in_test if split == "test" else ~in_test
    return Dataset(images[chosen], labels[chosen])
