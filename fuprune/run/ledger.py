"""Which parts of a run are finished, so that a second start repeats none of them.

A run is a sequence of units (pretrain, unlearn/<method>, audit, report). When one ends,
its outcome is written to units/<name>.json by an atomic rename, together with the
length of metrics.jsonl at that moment: whatever was logged after it by a run that died
is cut off before the next unit starts.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fuprune.errors import FupruneError


class LedgerError(FupruneError):
    """A ledger that cannot be read."""


def path_of(workdir: Path, unit: str) -> Path:
    """Where the outcome of `unit` is kept."""
    return workdir / "units" / f"{unit.replace('/', '__')}.json"


def finished(workdir: Path, unit: str) -> dict[str, Any] | None:
    """The outcome of a finished unit, None if it has not finished."""
    path = path_of(workdir, unit)
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text())
        return {"offset": int(record["offset"]), "outcome": dict(record["outcome"])}
    except (
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise LedgerError(
            f"{path} cannot be read ({error}); delete it to run {unit} again."
        ) from None


def finish(workdir: Path, unit: str, outcome: dict[str, Any], *, offset: int) -> None:
    """Write down that `unit` has ended."""
    write_json(path_of(workdir, unit), {"offset": offset, "outcome": outcome})


def end_of_finished(workdir: Path) -> int:
    """How long metrics.jsonl was when the last unit finished; 0 if none has."""
    records = [read_json(path) for path in (workdir / "units").glob("*.json")]
    return max((int(record["offset"]) for record in records), default=0)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> Any:
    """A JSON file of the run, or one line that says which is damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise FupruneError(
            f"{path} cannot be read ({type(error).__name__}); delete it, or choose "
            "another --workdir."
        ) from None


def seed_of(unit: str) -> int:
    """A number that names a unit in the derivation of keys."""
    return zlib.crc32(unit.encode()) & 0x7FFFFFFF


def plain(value: Any) -> Any:
    """A value in JSON's own types; NaN and infinities become null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
