"""A run's workdir: who may write, the rows of its rounds, its finished units.

units/ holds what each finished unit left, metrics.jsonl a row per round and
timings.jsonl the clocks. Rows of metrics hold nothing but results, so that two runs of
one config write the same bytes. A unit that is started again drops its rows of the
rounds that it repeats, so each is there once.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fuprune import results
from fuprune.errors import FupruneError
from fuprune.federated.train import Record
from fuprune.files import write_whole
from fuprune.results import FormatError
from fuprune.run import processes

Outcome = TypeVar("Outcome")


class WorkdirBusyError(FupruneError):
    """Another run holds the workdir."""


@dataclasses.dataclass(frozen=True)
class AuditOutcome:
    """Outcome of the audit; its findings are in audit.json."""

    steps: int


@dataclasses.dataclass(frozen=True)
class _Finished:
    """What units/<name>.json holds."""

    outcome: Any = None


class Store(NamedTuple):
    """The files of a run, of which one process writes each."""

    workdir: Path
    writes: bool = True  # whether this process does

    def do(
        self, unit: str, kind: type[Outcome], work: Callable[[], Outcome]
    ) -> Outcome:
        """The outcome of a unit: as it was kept, or that of its `work`, kept now."""
        done = self.read(unit, kind)
        if done is not None:
            return done
        start = time.monotonic()
        outcome = work()
        self.clock(unit, unit_seconds=round(time.monotonic() - start, 3))
        self.finish(unit, outcome)
        processes.await_file(self.path(unit))
        # Read back, so that this run goes on from the values that a resumed one reads.
        done = self.read(unit, kind)
        assert done is not None
        return done

    def read(self, unit: str, kind: type[Outcome]) -> Outcome | None:
        """The outcome of a finished unit, None if it has not finished."""
        path = self.path(unit)
        if not path.exists():
            return None
        try:
            found = results.loads(results.read_text(path), _Finished, str(path))
            return results.from_plain(found.outcome, kind, f"{path}: outcome")
        except FormatError as error:
            raise FormatError(f"{error}; delete it to run {unit} again.") from None

    def finish(self, unit: str, outcome: Any) -> None:
        """Keep what a unit that has ended leaves, by one atomic write."""
        if self.writes:
            write_whole(self.path(unit), results.dumps(_Finished(outcome)))

    def is_finished(self, unit: str) -> bool:
        """Whether the unit has ended, in this start or an earlier one."""
        return self.path(unit).exists()

    def path(self, unit: str) -> Path:
        """Where the outcome of a unit is kept."""
        return self.workdir / "units" / f"{_file_name(unit)}.json"

    def checkpoints(self, unit: str) -> Path:
        """Where the checkpoints of a unit's training are."""
        return self.workdir / "checkpoints" / _file_name(unit)

    def model(self, name: str) -> Path:
        """Where a model of the run is saved."""
        return self.workdir / "models" / name

    def log(self, unit: str, record: Record) -> dict[str, Any]:
        """Writes the row of a round to metrics.jsonl, and returns it."""
        row = {"phase": unit, "round": record.round_number, **record.metrics}
        if record.rejected:
            row["rejected"] = list(record.rejected)
        if self.writes:
            append_row(self.workdir / "metrics.jsonl", row)
        return row

    def clock(self, unit: str, **seconds: float) -> None:
        """Writes a row of timings.jsonl, where clocks are never the same twice."""
        if self.writes:
            append_row(self.workdir / "timings.jsonl", {"phase": unit, **seconds})

    def clock_round(self, unit: str, number: int, seconds: float, images: int) -> None:
        """Writes how long a round took, and its images per second."""
        speed = round(images / seconds, 3) if seconds > 0 else 0.0
        self.clock(
            unit, round=number, seconds=round(seconds, 6), images_per_second=speed
        )

    def drop_rows(self, unit: str, *, after: int) -> None:
        """Drops the rows of a unit's rounds after one, which it will train again."""
        path = self.workdir / "metrics.jsonl"
        if not self.writes:
            return
        lines = path.read_text("utf-8").split("\n")[:-1]
        rows = zip(lines, map(json.loads, lines), strict=True)
        kept = [x for x, row in rows if row["phase"] != unit or row["round"] <= after]
        if kept != lines:
            write_whole(path, "".join(f"{line}\n" for line in kept))

    def open_logs(self) -> None:
        """Makes the logs, or drops a last line that a kill left without its end."""
        for name in ("metrics.jsonl", "timings.jsonl"):
            if self.writes:
                path = self.workdir / name
                path.touch()
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends one JSON object; NaN and infinities, which JSON lacks, become null."""
    plain = results.to_plain(row)
    line = json.dumps(plain, allow_nan=False, ensure_ascii=False)
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _file_name(unit: str) -> str:
    return unit.replace("/", "__")


def seed_of(unit: str) -> int:
    """A number that names a unit in the derivation of keys."""
    # Not `hash`, which differs from process to process; 31 bits fit any integer type.
    return zlib.crc32(unit.encode()) & 0x7FFFFFFF


@contextlib.contextmanager
def lock_workdir(workdir: str | os.PathLike) -> Iterator[None]:
    """Keeps a second run out of a workdir while the block lasts.

    The operating system drops the lock when the process ends in any way, so that a dead
    run leaves nothing to clear away.

    Raises:
      WorkdirBusyError: another run holds it; the message says which.
    """
    with open(Path(workdir) / ".lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read(200).strip() or "another process"
            raise WorkdirBusyError(
                f"the workdir {workdir} is in use by {holder}; wait for it to end or "
                "choose another --workdir."
            ) from error
        # Who holds it, for the message above; the lock itself is the kernel's.
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
