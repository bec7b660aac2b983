"""Errors that the user can correct; the command line prints each as one line.

They are raised where the wrong thing entered, as one sentence with the value seen,
what is allowed and the way out. Anything else that reaches the command line is a bug
and keeps its traceback.
"""

import contextlib
import operator
from collections.abc import Iterable, Iterator


class FupruneError(Exception):
    """Something the user can correct; printed as one line, never as a traceback."""


class InputError(FupruneError, ValueError):
    """An argument, or the content of a file, that cannot be used."""


class UnlearnError(InputError):
    """A method that cannot go on: it diverged, or lacks what it needs."""


class ConfigError(InputError):
    """An option or key of the configuration that is unknown, or a value of one."""


class MissingFileError(FupruneError, FileNotFoundError):
    """A file or directory that was named and is not there."""


class UsageError(FupruneError):
    """A command line that cannot be run."""


class TooFewClientsError(FupruneError):
    """Fewer clients remain than the round, or the protocol, needs."""


class MissingPackageError(FupruneError, ImportError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str, what: str):
        super().__init__(
            f"{what} needs the package {package}; install it with "
            f"pip install 'fuprune[{extra}]'."
        )


@contextlib.contextmanager
def from_extra(extra: str, what: str) -> Iterator[None]:
    """Imports inside need an extra; without it, the error says that `what` needs it."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(str(error.name), extra, what) from error


def check_choice(what: str, value: object, allowed: Iterable[str]) -> None:
    """Raises InputError unless the value of an option is one of those allowed."""
    allowed = tuple(allowed)
    if value not in allowed:
        choices = ", ".join(allowed)
        raise InputError(f"{what} is {value!r}, but must be one of {choices}.")


def check_classes(
    classes: Iterable[int],
    num_classes: int,
    *,
    name: str = "the request",
    dataset: str = "",
) -> tuple[int, ...]:
    """Returns the classes to forget as distinct ints; one of U or more must remain.

    `name` is what named the classes, and `dataset` whose they are, for the message.
    """
    chosen = distinct_integers(classes, name=name)
    allowed = f"0 to {num_classes - 1}"
    if dataset:
        allowed += f", the classes of {dataset}"
    if not chosen:
        raise InputError(f"{name} names no class to forget; allowed: {allowed}.")
    for number in chosen:
        if not 0 <= number < num_classes:
            raise InputError(f"{name} names class {number}; allowed: {allowed}.")
    if len(chosen) == num_classes:
        raise InputError(
            f"{name} names all {num_classes} classes; allowed: at most "
            f"{num_classes - 1}, because something must remain."
        )
    return chosen


def distinct_integers(
    numbers: int | Iterable[int], *, name: str = "the request"
) -> tuple[int, ...]:
    """Returns one number, or several of any integer type, as ints, each once."""
    try:
        several = numbers if isinstance(numbers, Iterable) else (numbers,)
        return tuple(dict.fromkeys(map(operator.index, several)))
    except TypeError:
        # A float would be cut to another class, client or example.
        raise InputError(
            f"{name} names {numbers!r:.60}; allowed: whole numbers."
        ) from None


def first_line(error: BaseException) -> str:
    """What an error says first, cut short, for a message of one line; or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
