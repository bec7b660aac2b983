"""Errors that the user can correct; the command line prints each as one line.

They are raised where the wrong thing entered, as one sentence with the value seen,
what is allowed and the way out. Anything else that reaches the command line is a bug
and keeps its traceback.
"""


class FupruneError(Exception):
    """Something the user can correct; printed as one line, never as a traceback."""


class InputError(FupruneError, ValueError):
    """An argument, or the content of a file, that cannot be used."""


class MissingFileError(FupruneError, FileNotFoundError):
    """A file or directory that was named and is not there."""


class UsageError(FupruneError):
    """A command line that cannot be run."""


class TooFewClientsError(FupruneError):
    """Fewer clients remain than the round, or the protocol, needs."""
