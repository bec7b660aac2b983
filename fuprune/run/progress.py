"""What a run shows: where it is while it runs.

A live line on a terminal, a plain line now and then elsewhere. Beside it only the
command lines print: their answers, and the one line of an error.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

import rich.console
import rich.progress
import rich.text

DAY = 86_400.0


class Progress:
    """Where the run is: a live line on a terminal, a plain one now and then elsewhere.

    Example:
      >>> with Progress(mode="off", whole_run_rounds=50) as progress:
      ...     with progress.phase("pretrain", 50) as update:
      ...         for number in range(1, 51):
      ...             update(number, images=320, loss=1.5, accuracy=0.4)
    """

    def __init__(
        self,
        *,
        mode: str = "auto",
        whole_run_rounds: int = 0,
        audit_follows: bool = False,
        platform: str = "cpu",
        reduced_config: str | None = None,
        stream: TextIO | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Prepares; nothing is shown before a phase begins.

        The mode is that of `runtime.progress`. The rounds of all units that are not
        finished (0 if unknown), whether an audit follows them, the platform as in
        `jax.default_backend()`, and the config to name if a CPU would need more than a
        day make the estimate; plain lines are `interval` seconds apart.
        """
        self._console = rich.console.Console(
            file=stream or sys.stdout, highlight=False, soft_wrap=True
        )
        self._is_live = mode == "auto" and self._console.is_terminal
        self._off = mode == "off"
        # Without a terminal it counts and shows nothing.
        self._live = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[status]}", markup=False),
            console=self._console,
            disable=not self._is_live,
            # A round may take minutes, and a speed needs two of them.
            speed_estimate_period=float("inf"),
            get_time=clock,
        )
        self._whole_run_rounds = whole_run_rounds
        self._audit_follows = audit_follows
        self._platform = platform
        self._reduced_config = reduced_config
        self._interval = interval
        self._clock = clock
        self._estimated = False

    def __enter__(self):
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_):
        if self._is_live:
            self._live.stop()

    def note(self, text: str) -> None:
        """Shows one line."""
        if not self._off:
            # As `Text`, because rich would read square brackets as markup.
            self._console.print(rich.text.Text(text))

    @contextlib.contextmanager
    def phase(
        self, name: str, rounds: int, *, first_round: int = 0
    ) -> Iterator[Callable[..., None]]:
        """Shows a phase of at most so many rounds while it lasts.

        `first_round` says how many were already done when the run was resumed.

        Yields:
          `update(round_number, *, images=0, **metrics)`, to be called after each round
          with the images it trained on and any of loss and accuracy. A metric stays
          visible until it is given again.
        """
        latest: dict[str, float] = {}
        last_line, seen, trained = self._clock(), 0, 0
        task = self._live.add_task(name, total=rounds, completed=first_round, status="")

        def update(round_number: int, *, images: int = 0, **metrics: float) -> None:
            nonlocal last_line, seen, trained
            now, seen, trained = self._clock(), seen + 1, trained + images
            latest.update(metrics)
            self._live.update(task, completed=round_number)
            # Rounds per second since the end of the first one, which compiles.
            speed = self._live.tasks[task].speed or 0.0
            status = _status(
                latest, speed, speed * trained / seen, rounds - round_number
            )
            self._live.update(task, status=status)
            is_due = now - last_line >= self._interval or round_number >= rounds
            if is_due and not self._is_live:
                last_line = now
                self.note(f"{name}  round {round_number}/{rounds}  {status}".rstrip())
            if not self._estimated and seen >= 4 and speed:
                self._estimated = True  # once per run
                left = max(self._whole_run_rounds, rounds) - round_number
                self.note(
                    estimate(
                        name,
                        1 / speed,
                        left,
                        audit_follows=self._audit_follows,
                        platform=self._platform,
                        reduced_config=self._reduced_config,
                    )
                )

        try:
            yield update
        finally:
            self._live.stop_task(task)

    @contextlib.contextmanager
    def steps(self, name: str, expected: int) -> Iterator[Callable[[str], None]]:
        """Shows work that goes by named steps, about as many as expected.

        Yields:
          `update(text)`, to be called when a step begins.
        """
        task, begun = self._live.add_task(name, total=expected, status=""), 0

        def update(text: str) -> None:
            nonlocal begun
            begun += 1
            total = max(expected, begun)
            self._live.update(task, completed=begun - 1, total=total, status=text)
            if not self._is_live:
                self.note(f"{name}: {text}")

        yield update
        self._live.update(task, completed=begun, total=begun, status="")


def estimate(
    phase: str,
    seconds_per_round: float,
    rounds_left: int,
    *,
    audit_follows: bool = False,
    platform: str = "cpu",
    reduced_config: str | None = None,
) -> str:
    """Says how long the rounds that are left will take, and what to do if too long."""
    seconds = seconds_per_round * rounds_left
    text = (
        f"{phase}: {seconds_per_round:.3g} s per round; the {rounds_left} rounds left "
        f"in this run take about {duration(seconds)}"
    )
    if audit_follows:
        text += ", and the audit follows"
    if platform == "cpu" and seconds > DAY and reduced_config:
        return (
            f"{text}, too long for a CPU: --config {reduced_config} is the same "
            "experiment at a scale for it."
        )
    return text + "."


def duration(seconds: float) -> str:
    """Returns a length of time in its two largest units: 2 days 3 h, 4 min 10 s."""
    total = max(0, round(seconds))
    days, rest = divmod(total, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds_left = divmod(rest, 60)
    if days:
        return f"{days} day{'s' if days > 1 else ''} {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {seconds_left} s"
    return f"{seconds_left} s"


def _status(
    metrics: Mapping[str, float], speed: float, images_per_second: float, left: int
) -> str:
    parts = [f"{name} {float(value):.4f}" for name, value in metrics.items()]
    if speed:
        parts.append(f"{speed:.3g} rounds/s")
        if images_per_second:
            parts.append(f"{images_per_second:,.0f} images/s")
        parts.append(f"{duration(max(0, left) / speed)} left")
    return "  ".join(parts)
