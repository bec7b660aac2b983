"""Loop-for-loop NumPy twins of FedEraser and of SISA's schedule, in float64."""

import numpy as np


def softmax_step(kernel, bias, images, labels, rate):
    """One step of gradient descent on the mean cross-entropy of a linear model."""
    logits = images @ kernel + bias
    logits -= logits.max(axis=1, keepdims=True)
    wrong = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wrong[np.arange(len(labels)), labels] -= 1
    wrong /= len(labels)
    return kernel - rate * images.T @ wrong, bias - rate * wrong.sum(axis=0)


def train_clients(model, clients, epochs, rate):
    """The models of several clients after full-batch epochs from one start."""
    trained = []
    for images, labels in clients:
        kernel, bias = model
        for _ in range(epochs):
            kernel, bias = softmax_step(kernel, bias, images, labels, rate)
        trained.append((kernel, bias))
    return trained


def fed_eraser(old_global, old_clients, stays, clients, epochs, rate, variant="paper"):
    """FedEraser on a linear model.

    Args:
      old_global: GM_0 .. GM_J, the last one the final model; (kernel, bias) each.
      old_clients: for each kept round, {client: (kernel, bias)}.
      stays: ids of those who stay.
      clients: {client: (images, labels)} of what remains.
      epochs: ceil(r E).
      rate: learning rate.
      variant: "released" takes the next global model as the base of the length.
    """
    new = old_global[0]
    for t in range(len(old_clients)):
        here = [k for k in old_clients[t] if k in stays]
        if t == 0:
            new = tuple(
                sum(old_clients[0][k][i] for k in here) / len(here) for i in range(2)
            )
            continue
        new_clients = train_clients(new, [clients[k] for k in here], epochs, rate)
        stepped = []
        for i in range(2):
            base = old_global[t + 1 if variant == "released" else t][i]
            old_mean = sum(old_clients[t][k][i] for k in here) / len(here)
            length = np.sqrt(np.sum((old_mean - base) ** 2))
            new_mean = sum(model[i] for model in new_clients) / len(here)
            direction = new_mean - new[i]
            norm = np.sqrt(np.sum(direction**2))
            stepped.append(new[i] + (length / norm * direction if norm > 0 else 0))
        new = tuple(stepped)
    return new


def slice_epochs(epochs, slices):
    """SISA's epochs of each slice, as its released code counts them."""
    average = 2 * epochs / (slices + 1)
    return [int((i + 1) * average) - int(i * average) for i in range(slices)]
