"""Loop-for-loop NumPy twins of Eqs. 6-8, as the paper writes them."""

import math

import numpy as np
from scipy import special


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


def replay_server(
    start,
    uploads,
    *,
    without,
    rates,
    momentum,
    nesterov,
    weight_decay,
    clip_norm,
    renormalise=False,
):
    """A server's SGD over recorded updates, some clients' counted as zero.

    Args:
      start: parameters, one array.
      uploads: of each round (updates [M, ...], weights [M], client ids [M]).
      without: ids of the clients whose updates are zero.
      rates: learning rate of each round.
      momentum: of the server's SGD.
      nesterov: of the momentum.
      weight_decay: added to the gradient, times the parameters.
      clip_norm: longest update.
      renormalise: whether the other clients share the weight of those left out.
    """
    weights = np.array(start, np.float64)
    trace = np.zeros_like(weights)
    for (updates, numbers, clients), rate in zip(uploads, rates, strict=True):
        mean, total = np.zeros_like(weights), 0.0
        for update, number, client in zip(updates, numbers, clients, strict=True):
            update = np.array(update, np.float64)
            norm = np.sqrt(np.sum(update**2))
            if norm > clip_norm:
                update = update * clip_norm / norm
            if client not in without:
                mean = mean + number * update
            if client not in without or not renormalise:
                total += number
        gradient = mean / total + weight_decay * weights
        trace = gradient + momentum * trace
        step = gradient + momentum * trace if nesterov else trace
        weights = weights - rate * step
    return weights


def gaussian_delta(epsilon: float, ratio: float) -> float:
    """The smallest delta at which a Gaussian release is (epsilon, delta)-DP.

    Theorem 8 of Balle & Wang 2018:
    Phi(r / 2 - epsilon / r) - exp(epsilon) Phi(-r / 2 - epsilon / r).

    Args:
        epsilon: at least 0.
        ratio: r, sensitivity over standard deviation.
    """
    if ratio <= 0:
        return 0.0
    first = special.log_ndtr(ratio / 2 - epsilon / ratio)
    second = epsilon + special.log_ndtr(-ratio / 2 - epsilon / ratio)
    # In logarithms, a difference of nearly equal terms keeps its relative precision.
    return float(-math.exp(first) * math.expm1(min(second - first, 0.0)))
