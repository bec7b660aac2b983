"""Errors that the user can correct; the command line prints each as one line.

They are raised where the wrong thing entered, as one sentence with the value seen,
what is allowed and the way out. Anything else that reaches the command line is a bug
and keeps its traceback.
"""

from collections.abc import Iterable


class FupruneError(Exception):
    """Something the user can correct; printed as one line, never as a traceback."""


class InputError(FupruneError, ValueError):
    """An argument, or the content of a file, that cannot be used."""


class ConfigError(InputError):
    """An option or key of the configuration that is unknown, or a value of one."""


class MissingFileError(FupruneError, FileNotFoundError):
    """A file or directory that was named and is not there."""


class UsageError(FupruneError):
    """A command line that cannot be run."""


class TooFewClientsError(FupruneError):
    """Fewer clients remain than the round, or the protocol, needs."""


def check_choice(what: str, value: object, allowed: Iterable[str]) -> None:
    """Raises InputError unless the value of an option is one of those allowed."""
    allowed = tuple(allowed)
    if value not in allowed:
        choices = ", ".join(allowed)
        raise InputError(f"{what} is {value!r}, but must be one of {choices}.")


def first_line(error: BaseException) -> str:
    """What an error says first, cut short, for a message of one line; or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
