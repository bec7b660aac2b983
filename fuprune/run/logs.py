"""The rows of a run: metrics.jsonl and timings.jsonl, as they are written.

Rows of metrics hold nothing but results, so that two runs of one config write the same
bytes; clocks go to their own file. `experiment.run(on_row=...)` hands each row of
metrics to further functions, as `trackers` has some.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from fuprune import results
from fuprune.errors import InputError


class RowLog:
    """An append-only file of one JSON object per line, readable while it grows.

    Each row is written at once and whole. The position after the last row goes into
    each checkpoint; on resume the file is cut back to it, so no row is there twice.
    """

    def __init__(self, path: str | os.PathLike | None):
        """Opens the file, dropping a last line that a kill left unfinished.

        Without a path, for processes that only take part, it discards every row.
        """
        self._file = None
        if path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            self._file = os.open(path, flags, 0o644)
            os.ftruncate(self._file, _end_of_last_line(self._file))

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row; NaN and infinities, which JSON lacks, become null."""
        if self._file is None:
            return
        plain = results.to_plain(row)
        line = json.dumps(plain, allow_nan=False, ensure_ascii=False) + "\n"
        # `os.write` may take a part only, on a full disk or after a signal.
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


def metrics_row(
    phase: str, number: int, metrics: Mapping[str, float], rejected: Sequence[int] = ()
) -> dict[str, Any]:
    """A row of metrics.jsonl: what a round reached, and clients it turned away."""
    row: dict[str, Any] = {"phase": phase, "round": number, **metrics}
    return row | ({"rejected": list(rejected)} if rejected else {})


def round_clock(phase: str, number: int, seconds: float, images: int) -> dict[str, Any]:
    """A row of timings.jsonl: how long a round took, and at which speed."""
    return {
        "phase": phase,
        "round": number,
        "seconds": round(seconds, 6),
        "images_per_second": round(images / seconds, 3) if seconds > 0 else 0.0,
    }


def own_clock(phase: str, seconds: float) -> dict[str, Any]:
    """A row of timings.jsonl: work of a unit's own, beside its rounds."""
    return {"phase": phase, "own_seconds": round(seconds, 3)}


def unit_clock(phase: str, seconds: float, programs: float) -> dict[str, Any]:
    """A row of timings.jsonl: a whole unit, and of that what programs took."""
    return {
        "phase": phase,
        "unit_seconds": round(seconds, 3),
        "program_seconds": round(programs, 3),
    }


def _end_of_last_line(file: int) -> int:
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65_536)
        # From the end, block by block: the file may be large.
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
