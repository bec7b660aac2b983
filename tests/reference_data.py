"""Loop-for-loop twins: the q-split of the paper (Fang et al., 2020), channel sums."""

import numpy as np


def bias_partition(labels, num_clients, num_classes, bias, seed):
    """One example after the other, drawing as `fuprune.data.bias_partition` does."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_clients)
    groups = [[] for _ in range(num_classes)]
    for place, client in enumerate(order):
        groups[place % num_classes].append(client)

    parts = [[] for _ in range(num_clients)]
    for example, label in enumerate(labels):
        biased, other, instead, which = (rng.random() for _ in range(4))
        group = label
        if biased >= bias and num_classes > 1:
            others = [(label + step) % num_classes for step in range(1, num_classes)]
            group = others[int(other * len(others))]
        if not groups[group]:
            inhabited = [each for each in range(num_classes) if groups[each]]
            group = inhabited[int(instead * len(inhabited))]
        client = groups[group][int(which * len(groups[group]))]
        parts[client].append(example)
    return parts


def channel_sums(images, labels, parts, without_classes):
    """Pixel by pixel: how many, their sums and their squares' sums, per client."""
    channels = images.shape[-1]
    uploads = []
    for part in parts:
        pixels, sums, squares = 0, [0] * channels, [0] * channels
        for example in part:
            if labels[example] in without_classes:
                continue
            for pixel in images[example].reshape(-1, channels).tolist():
                pixels += 1
                for channel, byte in enumerate(pixel):
                    sums[channel] += byte
                    squares[channel] += byte * byte
        uploads.append([pixels, *sums, *squares])
    return uploads
