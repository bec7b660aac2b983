"""A run's workdir: who may write, the rows of its rounds, and its record.

results.json is the union of what the finished units found, and says which those are;
metrics.jsonl has a row per round and timings.jsonl the clocks. Rows of metrics hold
nothing but results, so that two runs of one config write the same bytes. A unit that is
started again drops its rows of the rounds that it repeats, so each is there once.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fuprune import results
from fuprune.errors import FupruneError
from fuprune.federated.train import Record
from fuprune.files import write_whole
from fuprune.results import RunRecord, Times
from fuprune.run import processes


class WorkdirBusyError(FupruneError):
    """Another run holds the workdir."""


class Store:
    """The files of a run, of which process 0 writes each, and its record so far."""

    def __init__(self, workdir: Path, *, writes: bool = True):
        """Reads what earlier starts have found; `writes` says if this process does."""
        self.workdir, self.writes = workdir, writes
        self.record = self._agreed(self._read() if writes else RunRecord())

    def _read(self) -> RunRecord:
        """The record, without the costs, which follow from the logs."""
        try:
            found = results.read_record(self.workdir)
        except FileNotFoundError:
            return RunRecord()
        bare: dict[str, Any] = dict(images=0, times=Times(), crossings=[])
        methods = [dataclasses.replace(row, **bare) for row in found.methods]
        return dataclasses.replace(found, methods=methods)

    def _agreed(self, record: RunRecord) -> RunRecord:
        """The record of process 0, as a later start will read it."""
        text = processes.gather(results.dumps(record))[0]
        return results.loads(text, RunRecord, "results.json")

    def do(self, unit: str, work: Callable[[], RunRecord]) -> None:
        """Adds to the record what the `work` of a unit finds, unless it is there."""
        if self.is_finished(unit):
            return
        start = time.monotonic()
        found = work()
        self.clock(unit, unit_seconds=round(time.monotonic() - start, 3))
        self.record |= self._agreed(found)
        self.save()

    def is_finished(self, unit: str) -> bool:
        """Whether the unit has ended, in this start or an earlier one."""
        if unit == "audit":
            return (self.workdir / "audit.json").exists()
        if unit == "pretrain":
            return results.raw_stage(self.record) is not None
        if unit.startswith("unlearn/"):
            return any(f"unlearn/{row.name}" == unit for row in self.record.methods)
        return getattr(self.record, unit) is not None

    def costed(self) -> RunRecord:
        """The record with what the logs say of costs."""
        curves = results.read_curves(self.workdir)
        return results.with_costs(
            self.record, curves, results.read_clocks(self.workdir)
        )

    def save(self) -> None:
        """Writes results.json, if there are results."""
        if self.writes and self.record.stages:
            text = results.dumps(self.costed())
            write_whole(self.workdir / "results.json", text)

    def checkpoints(self, unit: str) -> Path:
        """Where the checkpoints of a unit's training are."""
        return self.workdir / "checkpoints" / unit.replace("/", "__")

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
        lines = path.read_text("utf-8").splitlines(keepends=True)
        rows = zip(lines, map(json.loads, lines), strict=True)
        kept = [x for x, row in rows if row["phase"] != unit or row["round"] <= after]
        if kept != lines:
            write_whole(path, "".join(kept))

    def open_logs(self) -> None:
        """Makes the logs, or drops a last line that a kill left without its end."""
        for name in ("metrics.jsonl", "timings.jsonl") if self.writes else ():
            path = self.workdir / name
            path.touch()
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends one JSON object; NaN and infinities, which JSON lacks, become null."""
    plain = results.to_plain(row)
    line = json.dumps(plain, allow_nan=False, ensure_ascii=False)
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@contextlib.contextmanager
def lock_workdir(workdir: str | os.PathLike) -> Iterator[None]:
    """Keeps a second run out of a workdir while the block lasts.

    The lock is the kernel's and ends with the process.
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
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
