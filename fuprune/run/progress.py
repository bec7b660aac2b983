"""What a run shows: where it is while it runs.

A live line on a terminal, a plain line now and then elsewhere. Beside it only the
command lines print: their answers, and the one line of an error.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import rich.console
import rich.progress
import rich.table
import rich.text

DAY = 86_400.0
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
        whole = rich.table.Column(no_wrap=True)
        self._live = rich.progress.Progress(
            rich.progress.TextColumn(
                "{task.description}", markup=False, table_column=whole
            ),
            rich.progress.BarColumn(bar_width=10, table_column=whole),
            rich.progress.MofNCompleteColumn(table_column=whole),
            _Status(),
            console=self._console,
            transient=True,
        )
        self._whole_run_rounds, self._interval = whole_run_rounds, interval
        self._ends: dict[str, Any] = dict(
            audit_follows=audit_follows,
            platform=platform,
            reduced_config=reduced_config,
        )
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
                seconds = duration(self._clock() - begun)
                metrics = last.fields.get("metrics", "")
                text = f"{name}: {int(last.completed)}/{last.total} in {seconds}"
                self.note(f"{text}  {metrics}".rstrip())

    @contextlib.contextmanager
    def phase(
        self, name: str, rounds: int, *, first_round: int = 0
    ) -> Iterator[Callable[..., None]]:
        """Shows a phase of at most so many rounds while it lasts.

        `first_round` says how many were already done when the run was resumed.

        Yields:
          `update(round_number, *, images=0, **metrics)`, to be called after each round
          with the images it trained on and metrics, of which loss and accuracies are
          shown. A metric stays visible until it is given again.
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
                self.note(
                    f"{name}  round {round_number}/{rounds}  {left}{shown}{speed}"
                )
            if not self._estimated and seen >= 4 and pace:
                self._estimated = True  # once per run
                more = max(self._whole_run_rounds, rounds) - round_number
                self.note(estimate(name, pace, more, **self._ends))

        with self._task(name, rounds, first_round) as show:
            yield update

    @contextlib.contextmanager
    def steps(self, name: str, expected: int) -> Iterator[Callable[[str], None]]:
        """Shows work that goes by named steps, about as many as expected.

        Yields:
          `update(text)`, to be called when a step begins.
        """
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
        text += ", and the audit after them says its own time"
    if platform == "cpu" and seconds > DAY and reduced_config:
        return (
            f"{text}, too long for a CPU: --config {reduced_config} is the same "
            "experiment at a scale for it."
        )
    return text + "."


def duration(seconds: float) -> str:
    """Returns a length of time in its two largest units: 2 days 3 h, 4 min 10 s."""
    total = max(0, round(seconds))
    days, hours, minutes = total // 86_400, total // 3_600 % 24, total // 60 % 60
    if days:
        return f"{days} day{'s' if days > 1 else ''} {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {total % 60} s" if minutes else f"{total} s"
