"""What a run shows: a live line on a terminal, a plain line now and then elsewhere."""

import contextlib
import math
import numbers
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import rich.console
import rich.progress
import rich.table
import rich.text

from fuprune.errors import from_extra

# What metrics are called where space is short; others are not shown.
_SHORT = {"loss": "loss", "accuracy": "all", "u_accuracy": "U", "r_accuracy": "R"}
_SHORT |= {f"validation_{name}": _SHORT[name] for name in list(_SHORT)[1:]}


class _Status(rich.progress.ProgressColumn):
    """The last column of a live line, which is cut where the terminal ends."""

    def render(self, task: rich.progress.Task) -> rich.text.Text:
        """The task's status on one line."""
        text = task.fields["status"]
        return rich.text.Text(text, no_wrap=True, overflow="ellipsis")


class Progress:
    """Where the run is."""

    def __init__(
        self,
        *,
        mode: str = "auto",
        whole_run_rounds: int = 0,
        stream: TextIO | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Prepares; the rounds are those of all units that are not finished."""
        self._console = rich.console.Console(
            file=stream or sys.stdout, highlight=False, soft_wrap=True
        )
        self._is_live = mode == "auto" and self._console.is_terminal
        self._off = mode == "off"
        self._live = rich.progress.Progress(
            rich.progress.TextColumn(
                "{task.description} {task.completed:.0f}/{task.total:.0f}"
            ),
            rich.progress.BarColumn(10, table_column=rich.table.Column(no_wrap=True)),
            _Status(),
            console=self._console,
            transient=True,
            disable=not self._is_live,
        )
        self._rounds_left, self._interval = whole_run_rounds, interval
        self._clock = clock

    def __enter__(self):
        self._live.start()
        return self

    def __exit__(self, *_):
        self._live.stop()

    def note(self, text: str) -> None:
        """Shows one line."""
        if not self._off:
            # As `Text`, because rich would read square brackets as markup.
            self._console.print(rich.text.Text(text))

    @contextlib.contextmanager
    def _task(self, name: str, total: int, done: int) -> Iterator[Callable[..., None]]:
        """A live line, which gives way to a lasting one at its end."""
        task = self._live.add_task(name, total=total, completed=done, status="")
        begun = self._clock()

        def show(**changes: Any) -> None:
            self._live.update(task, **changes)

        try:
            yield show
        finally:
            last = self._live.tasks[-1]
            self._live.remove_task(task)
            if self._is_live:
                text = f"{name}: {int(last.completed)}/{last.total} in "
                metrics = last.fields.get("metrics", "")
                self.note(f"{text}{duration(self._clock() - begun)}  {metrics}")

    @contextlib.contextmanager
    def phase(
        self, name: str, rounds: int, *, first_round: int = 0
    ) -> Iterator[Callable[..., None]]:
        """Shows a phase of at most so many rounds, `first_round` of which were done.

        Yields `update(round_number, *, images=0, **metrics)`, to be called after each
        round; loss and accuracies stay visible until they are given again.
        """
        latest: dict[str, float] = {}
        last_line, first, seen, trained = self._clock(), 0.0, 0, 0

        def update(round_number: int, *, images: int = 0, **metrics: float) -> None:
            nonlocal last_line, first, seen, trained
            now, seen, trained = self._clock(), seen + 1, trained + images
            latest.update({n: x for n, x in metrics.items() if n in _SHORT})
            # From the end of the first round, which compiles.
            first = first or now
            pace = (now - first) / max(1, seen - 1)
            left, speed = "", ""
            if pace:
                left = f"{duration((rounds - round_number) * pace)} left  "
                speed = f"  {trained / seen / pace:,.0f} images/s" if trained else ""
            shown = "  ".join(_metric(*pair) for pair in latest.items())
            status = f"{left}{shown}{speed}"
            show(completed=round_number, status=status, metrics=shown)
            is_due = now - last_line >= self._interval or round_number >= rounds
            if is_due and not self._is_live:
                last_line = now
                self.note(f"{name}  round {round_number}/{rounds}  {status}")
            if self._rounds_left and seen >= 4 and pace:
                more = max(self._rounds_left, rounds) - round_number
                self._rounds_left = 0  # said once per run
                advice = " The configs whose names end in _cpu are shorter."
                self.note(
                    f"{name}: {pace:.3g} s per round; the {more} rounds left in this "
                    f"run take about {duration(more * pace)}, before any audit."
                    + advice
                    * (more * pace > DAY)
                )

        with self._task(name, rounds, first_round) as show:
            yield update

    @contextlib.contextmanager
    def steps(self, name: str, expected: int) -> Iterator[Callable[[str], None]]:
        """Shows named steps, about as many; yields `update(text)` for their begins."""
        start, begun = self._clock(), 0

        def update(text: str) -> None:
            nonlocal begun
            done, begun = begun, begun + 1
            total = max(expected, begun)
            if done:
                pace = (self._clock() - start) / done
                text = f"{duration((total - done) * pace)} left  {text}"
            show(completed=done, total=total, status=text)
            if not self._is_live:
                self.note(f"{name}  {begun}/{total}  {text}")

        with self._task(name, expected, 0) as show:
            yield update
            show(completed=begun, total=max(begun, 1))


def _metric(name: str, value: float) -> str:
    share = f"{value:.4f}" if name == "loss" else f"{value:.1%}"
    return f"{_SHORT[name]} {share}"


DAY = 86_400  # seconds


def duration(seconds: float) -> str:
    """A length of time to the second, such as 0:01:15 or 2 days, 3:00:00."""
    return str(timedelta(seconds=round(seconds)))


@contextlib.contextmanager
def tensorboard(directory: str | Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """An `on_row` that writes an event file, one curve per phase and metric."""
    with from_extra("tensorboard", "runtime.tensorboard"):
        from tensorboardX import SummaryWriter
    with SummaryWriter(str(directory)) as writer:

        def on_row(row: Mapping[str, Any]) -> None:
            for name, value in row.items():
                is_number = isinstance(value, numbers.Real) and name != "round"
                if is_number and math.isfinite(value):
                    writer.add_scalar(f"{row['phase']}/{name}", value, row["round"])

        yield on_row
