"""Loop-for-loop NumPy twin of the distillation loss, in float64."""

import math


def distillation_loss(student, teacher, label, *, temperature, weight, masked):
    """Loss of one example from the logits of both networks, lists of floats."""
    said = max(range(len(teacher)), key=lambda u: teacher[u])
    labelled = -math.log(softmax(student)[label])
    if said in masked:
        return labelled
    kept = [u for u in range(len(teacher)) if u not in masked]
    taught = softmax([teacher[u] / temperature for u in kept])
    answered = softmax([value / temperature for value in student])
    divergence = 0.0
    for probability, u in zip(taught, kept, strict=True):
        if probability > 0:
            divergence += probability * math.log(probability / answered[u])
    return (1 - weight) * labelled + weight * temperature**2 * divergence


def softmax(values):
    """Probabilities of a list of logits."""
    highest = max(values)
    exps = [math.exp(value - highest) for value in values]
    return [value / sum(exps) for value in exps]
