"""The real command, which kills itself (-9) in the middle of a chosen call.

python -m tests.integration.dying MODULE:FUNCTION NUMBER DELAY FLAGS...: the process is
killed DELAY seconds after FUNCTION is entered for the NUMBERth time, by a thread, so
that the call is under way; at the latest when it returns.
"""

import functools
import importlib
import os
import signal
import sys
import threading

from fuprune import main


def kill():
    """No handler, no clean-up, no flush: as the kernel or a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str, number: int, delay: float) -> None:
    """Replaces the function by one that does not survive."""
    module, _, path = place.partition(":")
    *holders, name = path.split(".")
    holder = functools.reduce(getattr, holders, importlib.import_module(module))
    original, calls = getattr(holder, name), []

    @functools.wraps(original)
    def dying(*arguments, **options):
        calls.append(None)
        if len(calls) < number:
            return original(*arguments, **options)
        threading.Timer(delay, kill).start()
        try:
            return original(*arguments, **options)
        finally:
            kill()

    setattr(holder, name, dying)


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    sys.argv[1:4] = []
    main.run()
