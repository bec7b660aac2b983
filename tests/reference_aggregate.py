"""Loop-for-loop NumPy twins of the server's aggregation rules, in float64."""

import numpy as np


def norm(update):
    """L2 norm of one client's update, a dict of arrays."""
    return float(
        np.sqrt(sum(np.sum(np.float64(leaf) ** 2) for leaf in update.values()))
    )


def weighted_mean(updates, weights):
    """Mean over a list of dicts of arrays."""
    mean = {name: np.zeros(leaf.shape) for name, leaf in updates[0].items()}
    total = sum(weight for weight in weights if weight > 0)
    for update, weight in zip(updates, weights, strict=True):
        if weight > 0:
            for name, leaf in update.items():
                mean[name] = mean[name] + weight * np.float64(leaf) / total
    return mean


def clipped_mean(updates, weights, clip_norm):
    """Weighted mean of updates cut to a norm."""
    clipped = []
    for update in updates:
        size = norm(update)
        scale = clip_norm / size if size > clip_norm else 1.0
        clipped.append({name: scale * leaf for name, leaf in update.items()})
    return weighted_mean(clipped, weights)


def coordinate_median(updates, weights):
    """Median of each coordinate over clients of positive weight."""
    return _by_coordinate(updates, weights, lambda values: float(np.median(values)))


def trimmed_mean(updates, weights, percent):
    """Mean of each coordinate without `percent` of the clients at each end."""

    def mean(values):
        cut = percent * len(values) // 100
        return float(np.mean(sorted(values)[cut : len(values) - cut]))

    return _by_coordinate(updates, weights, mean)


def _by_coordinate(updates, weights, rule):
    live = [u for u, weight in zip(updates, weights, strict=True) if weight > 0]
    result = {}
    for name, leaf in updates[0].items():
        result[name] = np.zeros(leaf.shape)
        for position in np.ndindex(leaf.shape):
            values = [np.float64(update[name][position]) for update in live]
            result[name][position] = rule(values) if values else 0.0
    return result
