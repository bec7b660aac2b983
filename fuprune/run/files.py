"""The files of a run: which units are finished, who may write.

A workdir holds the files that `fuprune.results` reads, and units/ with the outcome of
each finished unit.
"""

import contextlib
import dataclasses
import fcntl
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from fuprune import results
from fuprune.errors import FupruneError
from fuprune.files import write_whole
from fuprune.results import FormatError

Outcome = TypeVar("Outcome")


class WorkdirBusyError(FupruneError):
    """Another run holds the workdir."""


@dataclasses.dataclass(frozen=True)
class UnlearnedUnits:
    """Outcome of the phase as a whole: there is nothing left of it to do."""

    names: list[str]


@dataclasses.dataclass(frozen=True)
class AuditOutcome:
    """Outcome of the audit; its findings are in audit.json."""

    steps: int


@dataclasses.dataclass(frozen=True)
class _Finished:
    """What units/<name>.json holds."""

    offset: int  # length of metrics.jsonl when the unit ended
    outcome: Any


def path_of(workdir: Path, unit: str) -> Path:
    """Where the outcome of `unit` is kept."""
    return workdir / "units" / f"{unit.replace('/', '__')}.json"


def finished(workdir: Path, unit: str, kind: type[Outcome]) -> Outcome | None:
    """The outcome of a finished unit, None if it has not finished."""
    path = path_of(workdir, unit)
    if not path.exists():
        return None
    try:
        outcome = _read(path).outcome
        return results.from_plain(outcome, kind, f"{path}: outcome")
    except FormatError as error:
        raise FormatError(f"{error}; delete it to run {unit} again.") from None


def finish(workdir: Path, unit: str, outcome: Any, *, offset: int) -> None:
    """Write down that `unit` has ended, by one atomic write.

    `offset` is the length of metrics.jsonl: what a run that dies later logs after it is
    cut off before the next unit starts.
    """
    write_whole(path_of(workdir, unit), results.dumps(_Finished(offset, outcome)))


def end_of_finished(workdir: Path) -> int:
    """How long metrics.jsonl was when the last unit finished; 0 if none has."""
    paths = (workdir / "units").glob("*.json")
    return max((_read(path).offset for path in paths), default=0)


def _read(path: Path) -> _Finished:
    return results.loads(results.read_text(path), _Finished, str(path))


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
