"""How long a client of FedAvg trains in a round: E local epochs, at most K steps.

McMahan et al. (2017) count local work in epochs, most analyses of FedAvg in steps (Li
et al. 2020, "On the Convergence of FedAvg on Non-IID Data"). Here a client passes over
its images E times, and stops after K steps if that is sooner; K = 0 is no bound.
Written with operators only, so that it works on traced and on NumPy integers.
"""

import numbers

from fuprune.errors import InputError


def check_local_work(local_epochs: int, local_steps: int) -> None:
    """Raises InputError unless both are whole numbers, E from 1 and K from 0."""
    for name, value, least in (
        ("local_epochs", local_epochs, 1),
        ("local_steps", local_steps, 0),
    ):
        if not isinstance(value, numbers.Integral) or value < least:
            raise InputError(
                f"{name} is {value!r:.40}, but must be a whole number from {least}."
            )


def count_batches(length, batch_size: int):
    """Batches that `length` images make, the last one perhaps smaller."""
    return (length + batch_size - 1) // batch_size


def count_steps(
    length, *, batch_size: int, local_epochs: int = 1, local_steps: int = 0
):
    """Steps of a client with `length` images: E ceil(n / B), or K if that is fewer."""
    steps = local_epochs * count_batches(length, batch_size)
    return at_most(steps, local_steps) if local_steps else steps


def count_images(length, *, batch_size: int, **work: int):
    """Images that a client with `length` of them trains on; every epoch counts."""
    steps = count_steps(length, batch_size=batch_size, **work)
    batches = count_batches(length, batch_size)
    epochs = steps // (batches + (batches == 0))
    # Only the last batch of an epoch is smaller, and it ends a whole one.
    return epochs * length + (steps - epochs * batches) * batch_size


def at_most(number, bound):
    """The smaller of two."""
    return number - (number - bound) * (number > bound)
