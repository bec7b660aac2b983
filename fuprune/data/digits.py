"""The embedded data: 1,797 handwritten digits that come with scikit-learn.

8x8 grey images, so that everything can be tried in minutes without a network. The
set has no test split of its own; every fifth image of each class is one here.
"""

import numpy as np

from fuprune.data.dataset import Dataset, split_by_class


def load_digits(split: str) -> Dataset:
    """The train (1,442) or test (355) split: images [N, 8, 8, 1], labels [N]."""
    from sklearn import datasets  # Costs a second, so others do not import it.

    flat, labels = datasets.load_digits(return_X_y=True)
    # Ink runs from 0 to 16 in the original.
    images = np.rint(np.asarray(flat) * (255 / 16)).astype(np.uint8)
    dataset = Dataset(images.reshape(-1, 8, 8, 1), np.asarray(labels, np.int32))
    return split_by_class(dataset, split)
