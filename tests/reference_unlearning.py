"""Loop-for-loop NumPy twins of Eqs. 6-8, as the paper writes them."""

import math

import numpy as np


def term_frequency(a, target):
    num_channels = a.shape[1]
    total = 0.0
    for j in range(num_channels):
        total += float(a[target, j])
    frequency = np.zeros(num_channels)
    for j in range(num_channels):
        frequency[j] = float(a[target, j]) / total if total > 0 else 0.0
    return frequency


def inverse_document_frequency(a, variant="paper"):
    num_classes, num_channels = a.shape
    result = np.zeros(num_channels)
    for j in range(num_channels):
        users = 0
        for u in range(num_classes):
            if variant == "paper":
                threshold = sum(float(x) for x in a[u]) / num_channels
            else:
                threshold = sum(float(x) for x in a[:, j]) / num_classes
            if float(a[u, j]) >= threshold:
                users += 1
        if variant == "paper":
            result[j] = math.log((1 + num_classes) / (1 + users))
        else:
            result[j] = math.log(num_classes / (1 + users))
    return result


def tf_idf(a, target, variant="paper"):
    frequency = term_frequency(a, target)
    rarity = inverse_document_frequency(a, variant)
    return np.array([f * r for f, r in zip(frequency, rarity, strict=True)])
