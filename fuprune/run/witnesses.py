"""Last words: a line for the user when a process ends past Python's handlers."""

import contextlib
import os
import subprocess
import sys
import threading


@contextlib.contextmanager
def deadline(witness: subprocess.Popen, seconds: float, text: str):
    """End the process with one line if the block takes longer.

    The runtime would wait in C++, where no exception reaches it, and then abort.
    """

    def give_up():
        say_if_killed(witness, "")
        complain(text)
        # At once: the main thread hangs in C++ and would not notice an exception.
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def complain(text: str) -> None:
    """Prints an error that the user can correct, as one line."""
    print(f"fuprune: error: {text}", file=sys.stderr, flush=True)


def call() -> subprocess.Popen:
    """A shell that says the last line it was given should this process vanish.

    When another process dies the runtime aborts this one from C++, with a stack trace
    and past every handler of Python's; the end of the pipe is all that is left.
    """
    script = (
        "trap '' INT TERM; last=; while IFS= read -r line; do last=$line; done; "
        '[ -z "$last" ] || printf "fuprune: error: %s\\n" "$last" >&2'
    )
    return subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )


def say_if_killed(witness: subprocess.Popen, text: str) -> None:
    """Gives the witness its line; an empty one takes it back."""
    assert witness.stdin is not None
    with contextlib.suppress(OSError):
        witness.stdin.write(f"{text}\n".encode())
        witness.stdin.flush()


def dismiss(witness: subprocess.Popen) -> None:
    """Ends the witness without a word."""
    assert witness.stdin is not None
    say_if_killed(witness, "")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        witness.stdin.close()
        witness.wait(timeout=5)
