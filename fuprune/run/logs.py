"""What a run tells: rows in JSONL files, progress on the console, final tables.

Rows of metrics hold nothing but results, so two runs of one config write the same
bytes; clocks go to their own file. Here too is the lock that keeps a second run out of
a workdir. Nothing in the library proper writes or prints.
"""

import collections
import contextlib
import errno
import fcntl
import json
import math
import numbers
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import rich.console
import rich.progress
import rich.table
import rich.text

from fuprune.errors import FupruneError, InputError

DAY = 86_400.0


class WorkdirBusyError(FupruneError):
    """Another run holds the workdir."""


class LinkedFileError(FupruneError):
    """A file to write leads out of the workdir."""


class MetricsLog:
    """An append-only file of one JSON object a line, readable while it grows.

    Each row is written at once and whole. The position after the last row goes into
    each checkpoint; on resume the file is cut back to it, so no row is there twice.
    """

    def __init__(self, path: str | os.PathLike | None):
        """Opens the file, dropping a last line that a kill left unfinished.

        Args:
          path: the file, made if need be; None, for processes that only take part,
            discards every row.
        """
        self._file = None
        if path is not None:
            self._file = _open_to_append(path)
            os.ftruncate(self._file, _end_of_last_line(self._file))

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row; NaN and infinities, which JSON lacks, become null."""
        if self._file is None:
            return
        line = json.dumps(_plain(row), allow_nan=False, ensure_ascii=False) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self._file, data) :]

    def offset(self) -> int:
        """Returns the length of the file in bytes."""
        return 0 if self._file is None else os.fstat(self._file).st_size

    def truncate_to(self, offset: int) -> None:
        """Cuts off all rows after a position that `offset` gave."""
        if self._file is None:
            return
        if not 0 <= offset <= self.offset():
            raise InputError(
                f"offset is {offset}, but the file has {self.offset()} bytes: rows "
                "that a checkpoint counts on are gone; start in a fresh workdir."
            )
        os.ftruncate(self._file, offset)

    def close(self) -> None:
        """Closes the file; further rows are discarded."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class TimingsLog(MetricsLog):
    """The same for clocks, which are never the same twice."""

    def record(
        self, phase: str, round_number: int, seconds: float, images: int = 0
    ) -> None:
        """Writes how long a round took and how many images it trained on."""
        self.append(
            {
                "phase": phase,
                "round": round_number,
                "seconds": round(seconds, 6),
                "images_per_second": round(images / seconds, 3) if seconds > 0 else 0.0,
            }
        )


def read_rows(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads a JSONL file, also one that is being written: a partial last line is left.

    Raises:
      ValueError: if a whole line is not a JSON object.
    """
    rows = []
    lines = Path(path).read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"line {number} of {path} is not a JSON object.")
        rows.append(row)
    return rows


def _open_to_append(path: str | os.PathLike) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise LinkedFileError(
            f"{os.fspath(path)} is a link, and what a run writes stays in its workdir; "
            "remove the link or choose another --workdir."
        ) from error


def _end_of_last_line(file: int) -> int:
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65_536)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _plain(value: Any) -> Any:
    """The value in JSON's types: NumPy and JAX scalars and arrays included."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"a row holds {value!r}, which JSON cannot hold.")


class TensorBoardLog:
    """The numbers of the rows as TensorBoard scalars, one curve a phase and metric."""

    def __init__(self, directory: str | os.PathLike):
        """Opens an event file in the directory.

        Raises:
          FupruneError: if tensorboardX is not installed.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise FupruneError(
                "runtime.tensorboard is True, but tensorboardX is not installed: "
                "pip install 'fuprune[tensorboard]'."
            ) from error
        self._writer = SummaryWriter(str(directory))

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes the finite numbers of a row at its round."""
        for name, value in row.items():
            if name == "round" or isinstance(value, bool):
                continue
            if isinstance(value, numbers.Real) and math.isfinite(value):
                tag = f"{row.get('phase', 'run')}/{name}"
                self._writer.add_scalar(tag, float(value), int(row.get("round", 0)))

    def close(self) -> None:
        """Writes out what is pending."""
        self._writer.close()


class Progress:
    """Where the run is: a live line on a terminal, a plain one now and then elsewhere.

    Example:
      >>> with Progress(whole_run_rounds=50) as progress:
      ...     with progress.phase("pretrain", 50) as update:
      ...         for number in range(1, 51):
      ...             update(number, images=320, loss=1.5, accuracy=0.4)
    """

    def __init__(
        self,
        *,
        mode: str = "auto",
        whole_run_rounds: int = 0,
        platform: str = "cpu",
        reduced_config: str | None = None,
        stream: TextIO | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Prepares; nothing is shown before a phase begins.

        Args:
          mode: "auto" is live on a terminal and plain elsewhere; "plain"; "off".
          whole_run_rounds: of all units that are not finished, for the estimate; 0 if
            unknown.
          platform: what JAX computes on, as in `jax.default_backend()`.
          reduced_config: the config to name if a CPU would need more than a day.
          stream: where to write; standard output if None.
          interval: seconds between plain lines.
          clock: seconds.
        """
        stream = stream or sys.stdout
        self._console = rich.console.Console(
            file=stream, highlight=False, soft_wrap=True
        )
        live = mode == "auto" and self._console.is_terminal
        self._off = mode == "off"
        self._live = _live_display(self._console) if live else None
        self._whole_run_rounds = whole_run_rounds
        self._platform = platform
        self._reduced_config = reduced_config
        self._interval = interval
        self._clock = clock
        self._estimated = False

    def __enter__(self):
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_):
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Shows one line."""
        if not self._off:
            self._console.print(rich.text.Text(text))

    @contextlib.contextmanager
    def phase(
        self, name: str, rounds: int, *, first_round: int = 0
    ) -> Iterator[Callable[..., None]]:
        """Shows a phase while it lasts.

        Args:
          name: as in metrics.jsonl.
          rounds: of the phase, at most.
          first_round: how many were already done when the run was resumed.

        Yields:
          `update(round_number, *, images=0, **metrics)`, to be called after each round
          with the images it trained on and any of loss and accuracy. A metric stays
          shown until it is given again.
        """
        pace = _Pace(rounds, first_round)
        shown: dict[str, float] = {}
        last_line = self._clock()
        task = None
        if self._live is not None:
            task = self._live.add_task(
                name, total=rounds, completed=first_round, status=""
            )

        def update(round_number: int, *, images: int = 0, **metrics: float) -> None:
            nonlocal last_line
            now = self._clock()
            pace.tick(now, round_number, images)
            shown.update(metrics)
            status = _status(shown, pace)
            if self._live is not None and task is not None:
                self._live.update(task, completed=round_number, status=status)
            elif now - last_line >= self._interval or round_number >= rounds:
                last_line = now
                self.note(f"{name}  round {round_number}/{rounds}  {status}".rstrip())
            if not self._estimated and pace.settled():
                self._estimated = True
                self.note(self._estimate(name, pace, rounds, round_number))

        try:
            yield update
        finally:
            if self._live is not None and task is not None:
                self._live.stop_task(task)

    def _estimate(self, name: str, pace: "_Pace", rounds: int, done: int) -> str:
        left = max(self._whole_run_rounds, rounds) - done
        return estimate(
            name,
            pace.seconds_per_round(),
            left,
            platform=self._platform,
            reduced_config=self._reduced_config,
        )


def estimate(
    phase: str,
    seconds_per_round: float,
    rounds_left: int,
    *,
    platform: str = "cpu",
    reduced_config: str | None = None,
) -> str:
    """Says how long the rounds that are left will take, and what to do if too long."""
    seconds = seconds_per_round * rounds_left
    text = (
        f"{phase}: {seconds_per_round:.3g} s a round; the {rounds_left} rounds left in "
        f"this run take about {duration(seconds)}"
    )
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


class _Pace:
    """Rounds and images a second over the last rounds, compilation left out."""

    def __init__(self, rounds: int, first_round: int):
        self._rounds = rounds
        self._done = first_round
        # (time, round, images so far); the first entry is the end of the first round,
        # which is the one that compiles.
        self._marks: collections.deque = collections.deque(maxlen=20)
        self._images = 0

    def tick(self, now: float, round_number: int, images: int) -> None:
        self._images += images
        self._done = round_number
        self._marks.append((now, round_number, self._images))

    def _span(self) -> tuple[float, int, int]:
        if len(self._marks) < 2:
            return 0.0, 0, 0
        (start, first, before), (end, last, after) = self._marks[0], self._marks[-1]
        return end - start, last - first, after - before

    def settled(self) -> bool:
        return len(self._marks) >= 4 and self.seconds_per_round() > 0

    def seconds_per_round(self) -> float:
        seconds, rounds, _ = self._span()
        return seconds / rounds if rounds > 0 else 0.0

    def images_per_second(self) -> float:
        seconds, _, images = self._span()
        return images / seconds if seconds > 0 else 0.0

    def seconds_left(self) -> float:
        return self.seconds_per_round() * max(0, self._rounds - self._done)


def _status(metrics: Mapping[str, float], pace: _Pace) -> str:
    parts = [f"{name} {float(value):.4f}" for name, value in metrics.items()]
    if pace.seconds_per_round() > 0:
        parts.append(f"{1 / pace.seconds_per_round():.3g} rounds/s")
        if pace.images_per_second() > 0:
            parts.append(f"{pace.images_per_second():,.0f} images/s")
        parts.append(f"{duration(pace.seconds_left())} left")
    return "  ".join(parts)


def _live_display(console: rich.console.Console) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(bar_width=24),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[status]}", markup=False),
        console=console,
    )


def print_table(
    rows: Sequence[Mapping[str, Any]],
    *,
    title: str = "",
    stream: TextIO | None = None,
) -> None:
    """Prints rows with the same keys as a table, those keys as its head.

    Args:
      rows: values are shown with `str`, floats with four digits, None as a dash.
      title: a line above.
      stream: where to; standard output if None.
    """
    console = rich.console.Console(file=stream or sys.stdout, highlight=False)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if console.is_terminal:
        # Text, for rich would take [..] in a name for markup.
        table = rich.table.Table(title=rich.text.Text(title) if title else None)
        for place, column in enumerate(columns):
            numeric = all(_is_number(row.get(column)) for row in rows) and place > 0
            table.add_column(
                rich.text.Text(column), justify="right" if numeric else "left"
            )
        for line in cells:
            table.add_row(*(rich.text.Text(cell) for cell in line))
        console.print(table)
        return
    widths = [
        max(len(column), *(len(line[place]) for line in cells), 0)
        for place, column in enumerate(columns)
    ]
    out = stream or sys.stdout
    if title:
        out.write(title + "\n")
    for line in [columns, ["-" * width for width in widths], *cells]:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        out.write("  ".join(padded).rstrip() + "\n")
    out.flush()


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, numbers.Real)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return f"{float(value):.4g}"
    return str(value)


class WorkdirLock:
    """Keeps a second run out of a workdir, for as long as this process lives.

    The operating system drops the lock when the process ends in any way, so a dead run
    leaves nothing to clear away. Use as a context manager.
    """

    def __init__(self, workdir: str | os.PathLike):
        """Names the workdir; the lock is taken on entering."""
        self._workdir = Path(workdir)
        self._file: TextIO | None = None

    def __enter__(self):
        file = os.fdopen(_open_to_append(self._workdir / ".lock"), "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read(200).strip() or "another process"
            file.close()
            raise WorkdirBusyError(
                f"the workdir {self._workdir} is in use by {holder}; wait for it to "
                "end or choose another --workdir."
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._file = file
        return self

    def __exit__(self, *_):
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None
