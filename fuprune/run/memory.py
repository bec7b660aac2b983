"""What a run asks of the C library before the first thread starts."""

import contextlib
import ctypes
import os

_ARENA_MAX = -8  # M_ARENA_MAX in malloc.h


def limit_arenas() -> None:
    """Lets glibc keep freed memory in one pool per core.

    By default it makes up to eight per core, and each of the threads that compile,
    compute and save fills its own: a fifth more memory, which also grows as they take
    turns (docs/reliability.md). $MALLOC_ARENA_MAX goes first.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, os.cpu_count() or 1)
