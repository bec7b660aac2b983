"""The mean and deviation of each channel that images are scaled with.

Constants do not depend on the data. Federated statistics are sums of what clients
upload, 2 * C + 1 integers, without the classes that will be forgotten. Central ones
read every training image in one place, as no federation can.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fuprune.data.known_sets import find_known


class Statistics(NamedTuple):
    """What `normalise` scales with, on the scale where white is 1."""

    mean: tuple[float, ...]  # one per channel
    std: tuple[float, ...]  # one per channel, positive


def constant_statistics(name: str, num_channels: int) -> Statistics:
    """The constants of a known set; for any other, mean 1/2 and deviation 1/4."""
    known = find_known(name)
    if known is not None and len(known.mean) == num_channels:
        return Statistics(known.mean, known.std)
    return Statistics((0.5,) * num_channels, (0.25,) * num_channels)


def channel_sums(
    images: np.ndarray,
    parts: Sequence[np.ndarray],
    *,
    labels: np.ndarray | None = None,
    without_classes: Iterable[int] = (),
) -> np.ndarray:
    """What each client uploads: how many pixels, their sums and sums of squares.

    The images are [N, H, W, C] uint8, `parts` the indices of each client's; labels [N]
    are needed to leave classes out. Gives [K, 2 * C + 1] int64, exact.
    """
    num_examples, height, width, channels = images.shape
    per_image = np.empty((num_examples, 2 * channels + 1), np.int64)
    per_image[:, 0] = height * width
    # By blocks, so that memory does not grow with the number of images.
    size = max(1, 2**22 // max(1, height * width * channels))
    for start in range(0, num_examples, size):
        block = images[start : start + size].astype(np.uint32)
        sums = per_image[start : start + size]
        sums[:, 1 : channels + 1] = block.sum(axis=(1, 2), dtype=np.int64)
        sums[:, channels + 1 :] = (block * block).sum(axis=(1, 2), dtype=np.int64)
    left_out = tuple(without_classes)
    if left_out:
        per_image[np.isin(np.asarray(labels), left_out)] = 0
    uploads = np.zeros((len(parts), 2 * channels + 1), np.int64)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    held = np.concatenate([*map(np.asarray, parts), np.empty(0, int)]).astype(np.int64)
    np.add.at(uploads, owner, per_image[held])
    return uploads


def statistics_of_sums(uploads: np.ndarray) -> Statistics:
    """The channels' mean and deviation, rounded to float32, from all clients' sums.

    A constant channel has deviation 1; without any pixel, the mean is 0.
    """
    # Python integers and one float64 division: the same on every machine and for
    # every way to deal the examples.
    pixels, *sums = (int(each) for each in np.asarray(uploads).sum(axis=0))
    channels = len(sums) // 2
    means, deviations = [], []
    for total, squares in zip(sums[:channels], sums[channels:], strict=True):
        count = max(1, pixels)
        variance = (count * squares - total * total) / (count * count * 255 * 255)
        means.append(float(np.float32(total / (count * 255))))
        deviation = variance**0.5 if variance > 1e-12 else 1.0
        deviations.append(float(np.float32(deviation)))
    return Statistics(tuple(means), tuple(deviations))


def channel_statistics(images: np.ndarray) -> Statistics:
    """The statistics of all images [N, H, W, C] in one place, every class included."""
    return statistics_of_sums(channel_sums(images, [np.arange(len(images))]))
