"""The time that JAX spends on programs: tracing, lowering, compiling, loading.

JAX reports each of these steps when it ends. Steps contain others (a traced function
traces those that it calls), so what counts is the time that at least one of them took.
"""

import threading
import time

import jax

_STEPS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class Stopwatch:
    """Adds up intervals that may contain each other, in the order in which they end."""

    def __init__(self):
        self._intervals: list[tuple[float, float]] = []  # disjoint, (start, end)
        self._lock = threading.Lock()

    def add(self, start: float, end: float) -> None:
        """Counts an interval that has just ended."""
        with self._lock:
            # Threads may report in another order than their steps ended in.
            while self._intervals and self._intervals[-1][0] >= start:
                end = max(end, self._intervals.pop()[1])
            if self._intervals:
                start = max(start, self._intervals[-1][1])
            if end > start:
                self._intervals.append((start, end))

    def total(self) -> float:
        """Seconds so far."""
        with self._lock:
            return sum(end - start for start, end in self._intervals)


_programs = Stopwatch()


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event in _STEPS:
        now = time.monotonic()
        _programs.add(now - duration_secs, now)


jax.monitoring.register_event_duration_secs_listener(_listen)


def seconds() -> float:
    """Time spent on programs since this module was loaded."""
    return _programs.total()
