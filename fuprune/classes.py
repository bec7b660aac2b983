"""The one check of the classes that a request names, before and after data are read."""

import operator
from collections.abc import Iterable

from fuprune.errors import InputError


def check_classes(
    classes: Iterable[int],
    num_classes: int,
    *,
    name: str = "the request",
    dataset: str = "",
    error: type[InputError] = InputError,
) -> tuple[int, ...]:
    """Returns the classes to forget as distinct ints in their order.

    Args:
      classes: to forget.
      num_classes: U; at least one of them must remain.
      name: what named the classes, for the message.
      dataset: whose classes they are, for the message.
      error: what to raise.
    """
    chosen = distinct_integers(classes, name=name, error=error)
    last, of_dataset = num_classes - 1, f" of {dataset}" if dataset else ""
    if not chosen:
        raise error(
            f"{name} names no class to forget; allowed: one or more of 0 to {last}."
        )
    for number in chosen:
        if not 0 <= number < num_classes:
            those = f", the classes{of_dataset}" if dataset else ""
            raise error(f"{name} names class {number}; allowed: 0 to {last}{those}.")
    if len(chosen) == num_classes:
        raise error(
            f"{name} names all {num_classes} classes{of_dataset}; allowed: at most "
            f"{last}, because something must remain."
        )
    return chosen


def distinct_integers(
    numbers: Iterable[int],
    *,
    name: str = "the request",
    error: type[InputError] = InputError,
) -> tuple[int, ...]:
    """Returns numbers of any integer type as ints in their order, each once."""
    numbers = tuple(numbers)
    try:
        return tuple(dict.fromkeys(map(operator.index, numbers)))
    except TypeError:
        # A float would be cut to another class, client or example.
        raise error(f"{name} names {numbers!r:.60}; allowed: whole numbers.") from None
