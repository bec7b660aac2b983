"""The files of a run: how they are read, which units are finished, who may write.

A workdir holds config.json (`Provenance`), results.json (`RunRecord`), audit.json,
metrics.jsonl and timings.jsonl (see `logs`), and units/ with the outcome of each
finished unit. Everything is read strictly: a file that does not hold what it should is
one `FupruneError`.
"""

import contextlib
import errno
import fcntl
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fuprune import typed_json
from fuprune.audit.evidence import AuditReport
from fuprune.errors import FupruneError, MissingFileError
from fuprune.files import write_whole
from fuprune.run.record import Provenance, RunRecord, find_problem
from fuprune.typed_json import FormatError

LARGEST_FILE = 256 * 1024 * 1024  # bytes; no run writes a larger one
Outcome = TypeVar("Outcome")


class WorkdirBusyError(FupruneError):
    """Another run holds the workdir."""


class LinkedFileError(FupruneError):
    """A file to write leads out of the workdir."""


def read_record(workdir: str | os.PathLike) -> RunRecord:
    """results.json of a run.

    Raises:
      MissingFileError: no unit of the run has finished.
      FormatError: the file does not hold a `RunRecord` that a run writes.
    """
    path = Path(workdir) / "results.json"
    record = _read(path, RunRecord)
    if problem := find_problem(record):
        raise FormatError(f"{path} has {problem}.")
    return record


def read_provenance(workdir: str | os.PathLike) -> Provenance:
    """config.json of a run; raises as `read_record` does."""
    return _read(Path(workdir) / "config.json", Provenance)


def read_audit(workdir: str | os.PathLike) -> AuditReport:
    """audit.json of a run; raises as `read_record` does."""
    return AuditReport.from_json(_text(Path(workdir) / "audit.json"))


def read_rows(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The objects of a JSONL file; an unfinished last line is left out.

    Raises:
      MissingFileError: there is no such file.
      FormatError: a whole line is not a JSON object.
    """
    rows = []
    # What follows the last newline is a line that is still being written, or nothing.
    for number, line in enumerate(_text(Path(path)).split("\n")[:-1], start=1):
        what = f"line {number} of {path}"
        rows.append(typed_json.loads(line, dict[str, Any], what))
    return rows


def _read(path: Path, kind: Any) -> Any:
    return typed_json.loads(_text(path), kind, str(path))


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise FormatError(f"{path} is larger than any run writes.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFileError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise FormatError(f"{path} does not parse ({reason}).") from None


class _Finished(NamedTuple):
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
        outcome = _read(path, _Finished).outcome
        return typed_json.from_plain(outcome, kind, f"{path}: outcome")
    except FormatError as error:
        raise FormatError(f"{error}; delete it to run {unit} again.") from None


def finish(workdir: Path, unit: str, outcome: Any, *, offset: int) -> None:
    """Write down that `unit` has ended, by one atomic write.

    `offset` is the length of metrics.jsonl: what a run that dies later logs after it is
    cut off before the next unit starts.
    """
    write_whole(path_of(workdir, unit), typed_json.dumps(_Finished(offset, outcome)))


def end_of_finished(workdir: Path) -> int:
    """How long metrics.jsonl was when the last unit finished; 0 if none has."""
    paths = (workdir / "units").glob("*.json")
    return max((_read(path, _Finished).offset for path in paths), default=0)


def seed_of(unit: str) -> int:
    """A number that names a unit in the derivation of keys."""
    # Not `hash`, which differs from process to process; 31 bits fit any integer type.
    return zlib.crc32(unit.encode()) & 0x7FFFFFFF


def open_to_append(path: str | os.PathLike) -> int:
    """A file descriptor for appending; a link in the file's place is refused."""
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


@contextlib.contextmanager
def lock_workdir(workdir: str | os.PathLike) -> Iterator[None]:
    """Keeps a second run out of a workdir while the block lasts.

    The operating system drops the lock when the process ends in any way, so that a dead
    run leaves nothing to clear away.

    Raises:
      WorkdirBusyError: another run holds it; the message says which.
    """
    with os.fdopen(open_to_append(Path(workdir) / ".lock"), "a+") as file:
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
