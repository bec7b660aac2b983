"""How long a client of FedAvg trains in a round: E local epochs, at most K steps.

K = 0 is no bound. Written with operators only, so that it works on traced and on NumPy
integers.
"""

from fuprune.errors import InputError


def check_local_work(local_epochs: int, local_steps: int) -> None:
    """Raises InputError unless both are whole numbers, E from 1 and K from 0."""
    if not (
        local_epochs % 1 == local_steps % 1 == 0 and local_epochs > 0 <= local_steps
    ):
        raise InputError(
            f"local_epochs is {local_epochs} and local_steps {local_steps}, but they "
            "must be whole numbers, from 1 and from 0."
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


def at_most(number, bound):
    """The smaller of two."""
    return number - (number - bound) * (number > bound)
