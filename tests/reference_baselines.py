"""Loop-for-loop NumPy twins of the baselines, for softmax regression and small arrays.

Softmax regression: logits = x W + b with x [D], W [D, U], b [U].
"""

import numpy as np


def softmax(logits):
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def loss_gradient(kernel, bias, x, y):
    """d CE(y) / d (W, b) for one example."""
    error = softmax(x @ kernel + bias)
    error[y] -= 1.0
    return np.outer(x, error), error


def diagonal_fisher(kernel, bias, images):
    """Mean over images of sum_y p(y|x) (d CE(y) / d w)^2."""
    by_kernel, by_bias = np.zeros_like(kernel), np.zeros_like(bias)
    for x in images:
        probability = softmax(x @ kernel + bias)
        for y in range(len(bias)):
            grad_kernel, grad_bias = loss_gradient(kernel, bias, x, y)
            by_kernel += probability[y] * grad_kernel**2
            by_bias += probability[y] * grad_bias**2
    return by_kernel / len(images), by_bias / len(images)


def summed_gradient(kernel, bias, images, labels):
    """As one vector: b first, then W row by row."""
    total = np.zeros(bias.size + kernel.size)
    for x, y in zip(images, labels, strict=True):
        grad_kernel, grad_bias = loss_gradient(kernel, bias, x, y)
        total += np.concatenate([grad_bias, grad_kernel.ravel()])
    return total


def summed_hessian(kernel, bias, images):
    """[U + D U, U + D U], in the order of `summed_gradient`."""
    size = bias.size + kernel.size
    total = np.zeros((size, size))
    for x in images:
        probability = softmax(x @ kernel + bias)
        covariance = np.diag(probability) - np.outer(probability, probability)
        inputs = np.concatenate([[1.0], x])
        total += np.kron(np.outer(inputs, inputs), covariance)
    return total


def influence_step(kernel, bias, remaining, forgotten, damping):
    """x of (H_r / N_r + damping) x = grad_f / N_r; each set is (images, labels)."""
    number = len(remaining[0])
    hessian = summed_hessian(kernel, bias, remaining[0]) / number
    gradient = summed_gradient(kernel, bias, *forgotten) / number
    return np.linalg.solve(hessian + damping * np.eye(len(gradient)), gradient)


def released_noise(weight, fisher, classes, *, alpha, is_head, reset_row):
    """Golatkar et al.'s `get_mean_var`; arrays in PyTorch's order, outputs first."""
    variance = np.minimum(1.0 / (fisher + 1e-8), 1e3)
    if is_head:
        variance = np.minimum(variance, 1e2)
    variance = alpha * variance
    if weight.ndim > 1:
        variance = np.broadcast_to(variance.mean(axis=1, keepdims=True), weight.shape)
    mean, variance = weight.copy(), variance.copy()
    if is_head and reset_row:
        for u in classes:
            mean[u] = 0.0
            variance[u] = 0.0001
    if is_head or weight.ndim == 1:
        variance *= 10
    return mean, variance
