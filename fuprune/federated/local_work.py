"""How long a client of FedAvg trains in a round: E local epochs, at most K steps.

McMahan et al. (2017) count local work in epochs, most analyses of FedAvg in steps (Li
et al. 2020, "On the Convergence of FedAvg on Non-IID Data"). Here a client passes over
its images E times, and stops after K steps if that is sooner.
"""

import numbers
from typing import TypedDict, Unpack

from fuprune.errors import InputError


class LocalWork(TypedDict, total=False):
    """The two numbers as keyword arguments."""

    local_epochs: int  # E, by default 1
    local_steps: int  # K; 0, the default, takes all steps of the epochs


def local_work(*, local_epochs: int = 1, local_steps: int = 0) -> LocalWork:
    """The arguments, with their defaults.

    Raises:
      InputError: a number that is too small, or not whole.
    """
    for name, value, least in (
        ("local_epochs", local_epochs, 1),
        ("local_steps", local_steps, 0),
    ):
        if not isinstance(value, numbers.Integral) or value < least:
            raise InputError(
                f"{name} is {value!r:.40}, but must be a whole number from {least}."
            )
    return LocalWork(local_epochs=local_epochs, local_steps=local_steps)


def count_steps(
    length, *, batch_size: int, local_epochs: int = 1, local_steps: int = 0
):
    """Steps of a client with `length` images: E ceil(n / B), or K if that is fewer."""
    steps = local_epochs * count_batches(length, batch_size)
    if not local_steps:
        return steps
    # By operators only, which work on traced and on NumPy integers.
    return steps - (steps - local_steps) * (steps > local_steps)


def count_images(length, *, batch_size: int, **work: Unpack[LocalWork]):
    """Images that a client with `length` of them trains on; every epoch counts."""
    steps = count_steps(length, batch_size=batch_size, **work)
    batches = count_batches(length, batch_size)
    epochs = steps // (batches + (batches == 0))
    # Only the last batch of an epoch is smaller, and it ends a whole one.
    return epochs * length + (steps - epochs * batches) * batch_size


def count_batches(length, batch_size: int):
    """Batches that `length` images make, the last one perhaps smaller."""
    return (length + batch_size - 1) // batch_size
