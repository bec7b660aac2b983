"""Loop-for-loop NumPy twins: FedAvg, FedSGD, and local_proc with its merging.

They follow the pseudocode line by line, one client and one example at a time, and know
nothing of masks, padding, vmapping or keys: the random choices are handed in.
"""

import numpy as np


def softmax(logits):
    """Row-wise softmax."""
    exps = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def logistic_gradient(weights, bias, images, labels):
    """Gradient of the mean cross-entropy of a linear classifier, example by example."""
    grad_weights, grad_bias = np.zeros_like(weights), np.zeros_like(bias)
    for image, label in zip(images, labels, strict=True):
        error = softmax(image @ weights + bias)
        error[label] -= 1.0
        grad_weights += np.outer(image, error)
        grad_bias += error
    return grad_weights / len(labels), grad_bias / len(labels)


def fed_avg_round(weights, bias, clients, *, rate, momentum, batches, local_steps=0):
    """One round of FedAvg (McMahan et al. 2017, Algorithm 1) on a linear classifier.

    Args:
      weights: [D, U].
      bias: [U].
      clients: list of (images [n, D], labels [n]).
      rate: of local SGD.
      momentum: heavy-ball, fresh every round.
      batches: for each client, a list of index arrays, in the order they are used.
      local_steps: after so many of them a client stops; 0 uses all.
    """
    total, sums = 0, [np.zeros_like(weights), np.zeros_like(bias)]
    for (images, labels), order in zip(clients, batches, strict=True):
        local = [weights.copy(), bias.copy()]
        trace = [np.zeros_like(weights), np.zeros_like(bias)]
        for step, chosen in enumerate(order):
            if local_steps and step == local_steps:
                break
            grads = logistic_gradient(*local, images[chosen], labels[chosen])
            for i in range(2):
                trace[i] = grads[i] + momentum * trace[i]
                local[i] = local[i] - rate * trace[i]
        for i in range(2):
            sums[i] += len(labels) * local[i]
        total += len(labels)
    return sums[0] / total, sums[1] / total


def fed_sgd_round(weights, bias, clients, *, rate):
    """One round of FedSGD: every client's full gradient, one server step."""
    total, sums = 0, [np.zeros_like(weights), np.zeros_like(bias)]
    for images, labels in clients:
        if not len(labels):
            continue
        grads = logistic_gradient(weights, bias, images, labels)
        for i in range(2):
            sums[i] += len(labels) * grads[i]
        total += len(labels)
    return weights - rate * sums[0] / total, bias - rate * sums[1] / total


def convolve(image, kernel):
    """3x3 convolution of one image [H, W, Cin] with zero padding of one (Eq. 4)."""
    height, width, _ = image.shape
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    out = np.zeros((height, width, kernel.shape[-1]))
    for y in range(height):
        for x in range(width):
            for j in range(kernel.shape[-1]):
                window = padded[y : y + 3, x : x + 3]
                out[y, x, j] = np.sum(window * kernel[..., j])
    return out


def pooled(feature_map):
    """AvgPool(ReLU(O)) of one feature map [H, W, C] (Eq. 5, appendix A.3)."""
    height, width, channels = feature_map.shape
    answer = np.zeros(channels)
    for j in range(channels):
        for y in range(height):
            for x in range(width):
                answer[j] += max(0.0, feature_map[y, x, j])
    return answer / (height * width)


def merge(clients, *, weighting):
    """A* of one layer from each client's list of (label, activation [C])."""
    classes = sorted({label for client in clients for label, _ in client})
    rows = []
    for u in classes:
        holders = sum(any(label == u for label, _ in c) for c in clients)
        median = weighting == "median" and holders > 2
        if weighting == "examples" or (weighting == "median" and not median):
            rows.append(
                np.mean([a for c in clients for label, a in c if label == u], axis=0)
            )
        else:
            means = [
                np.mean([a for label, a in c if label == u], axis=0)
                for c in clients
                if any(label == u for label, _ in c)
            ]
            rows.append(np.median(means, axis=0) if median else np.mean(means, axis=0))
    return np.stack(rows)
