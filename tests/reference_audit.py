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
