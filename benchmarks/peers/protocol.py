"""How a contender and the benchmark talk: one JSON object a line.

A contender is a process of its own environment that warms up, says what it is
(`{"versions": ...}`), and then runs one round for every line `round` it reads,
answering `{"seconds": ...}`. It lives until its input ends, so that the rounds of many
contenders can be interleaved. Standard library only: every peer's environment imports
this.
"""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator


def claim_output():
    """Keep standard output for answers; whatever else is printed goes to the log."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


def requests() -> Iterator[None]:
    """One item for each round asked for, until the benchmark hangs up."""
    for line in sys.stdin:
        if line.strip() == "round":
            yield


def serve(channel, run_round: Callable[[], None], *, warm_up: int, **facts) -> None:
    """Warm up, introduce yourself, then time a round for each request."""
    first = []
    for _ in range(warm_up):
        start = time.perf_counter()
        run_round()
        first.append(time.perf_counter() - start)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = {"warm_up_seconds": first, "peak_bytes": peak, **facts}
    print(json.dumps(facts), file=channel)
    for _ in requests():
        start, busy = time.perf_counter(), time.process_time()
        run_round()
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        print(json.dumps({"seconds": seconds, "cpu_seconds": busy}), file=channel)


class ContenderError(Exception):
    """A contender that could not start or died; the message names its log."""


class Contender:
    """The benchmark's end of one contender's process."""

    def __init__(self, name: str, command: list[str], log: pathlib.Path, env=None):
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, log
        with open(log, "w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
                env={**os.environ, **(env or {})},
                # A group of its own, so that what it starts ends with it.
                start_new_session=True,
            )

    def answer(self) -> dict:
        """The next line it writes."""
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise ContenderError(f"{self.name} ended with code {code}; see {self.log}")
        return json.loads(line)

    def round(self) -> dict:
        """Runs one round: its `seconds`, and `cpu_seconds` if all in one process."""
        self.process.stdin.write("round\n")
        return self.answer()

    def close(self) -> None:
        """Hang up, and end it with all it started if it does not go."""
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
