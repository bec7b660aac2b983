"""A backdoor that one can plant, to see whether forgetting removes it.

A trigger is a checked square in the lower right corner. Images with the trigger are
trained on under one target label; a model that has learned the backdoor answers the
target whenever it sees the trigger. Retrained models never met it, so that success
there is the rate of plain mistakes.
"""

import numpy as np

from fuprune.data.dataset import Dataset

TARGET = 0  # the label that the trigger stands for


def stamp(images: np.ndarray) -> np.ndarray:
    """Copies with the trigger: a square of a quarter of the side, at least 2 pixels."""
    stamped = np.array(images)
    side = max(2, min(images.shape[1:3]) // 4)
    rows, columns = np.indices((side, side))
    checks = np.where((rows + columns) % 2 == 0, 255, 0).astype(np.uint8)
    stamped[:, -side:, -side:, :] = checks[None, :, :, None]
    return stamped


def plant(train: Dataset, places: np.ndarray, share: float, seed: int) -> Dataset:
    """A copy with the backdoor in a share of the images at `places`, at least one."""
    number = max(1, round(share * len(places)))
    chosen = np.random.default_rng(seed).permutation(places)[:number]
    images, labels = np.array(train.images), np.array(train.labels)
    images[chosen] = stamp(images[chosen])
    labels[chosen] = TARGET
    return Dataset(images, labels)


def triggered(test: Dataset) -> Dataset:
    """Test images with the trigger, those of the target class left out."""
    other = np.asarray(test.labels) != TARGET
    return Dataset(stamp(test.images[other]), test.labels[other])
