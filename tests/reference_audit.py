"""Loop-for-loop NumPy twins of what the audit computes, to check it against."""

import math

import numpy as np


def area_by_pairs(members, non_members) -> float:
    """The share of (member, non-member) pairs in the right order, ties one half."""
    wins = 0.0
    for member in members:
        for other in non_members:
            wins += 1.0 if member > other else 0.5 if member == other else 0.0
    return wins / (len(members) * len(non_members))


def concave_hull(false_positives, true_positives) -> list[tuple[float, float]]:
    """The upper hull of a ROC curve: what randomising between thresholds reaches."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(zip(false_positives, true_positives, strict=True)):
        while len(hull) >= 2:
            (x1, y1), (x2, y2) = hull[-2:]
            if (y2 - y1) * (x - x1) > (y - y1) * (x2 - x1):
                break
            hull.pop()
        hull.append((x, y))
    return hull


def softmax(row) -> list[float]:
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    return [weight / sum(weights) for weight in weights]


def jensen_shannon(row, other) -> float:
    p, q = softmax(row), softmax(other)
    total = 0.0
    for a, b in zip(p, q, strict=True):
        middle = (a + b) / 2
        total += 0.5 * (a * math.log(a / middle) + b * math.log(b / middle))
    return total


def kernel_cka(x, y) -> float:
    """Linear CKA from N x N Gram matrices (the other of its two equal forms)."""
    n = len(x)
    centre = np.eye(n) - np.ones((n, n)) / n
    k, m = centre @ (x @ x.T) @ centre, centre @ (y @ y.T) @ centre
    return float(np.sum(k * m) / math.sqrt(np.sum(k * k) * np.sum(m * m)))


def modified_entropy(row, label) -> float:
    p = softmax(row)
    total = -(1 - p[label]) * math.log(p[label])
    for i, value in enumerate(p):
        if i != label:
            total -= value * math.log(1 - value)
    return total


def delong_error(members, non_members) -> float:
    """DeLong's error of one more model's area against the mean of these, by loops."""
    n = len(members)
    total = 0.0
    for groups in ((members, non_members, 1), (non_members, members, -1)):
        own, other, sign = groups
        placed = [
            [
                sum(
                    1.0 if sign * (x - y) > 0 else 0.5 if x == y else 0.0
                    for y in other[model]
                )
                / len(other[model])
                for x in own[model]
            ]
            for model in range(n)
        ]
        size = len(placed[0])
        for model in range(n):
            rest = [i for i in range(n) if i != model]
            differences = [
                placed[model][k] - sum(placed[i][k] for i in rest) / (n - 1)
                for k in range(size)
            ]
            mean = sum(differences) / size
            total += sum((d - mean) ** 2 for d in differences) / size**2 / n
    return math.sqrt(total * (1 + 1 / n) / (1 + 1 / (n - 1)))
