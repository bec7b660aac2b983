"""Gathers what a report is made from: the record, the curves, the audit, the maps.

A file that is missing or does not parse leaves its part empty and one sentence in
`Run.notes`; nothing in a file is ever executed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from fuprune.audit.evidence import AuditReport
from fuprune.errors import FupruneError, InputError
from fuprune.run import files, logs, queries
from fuprune.run.feature_maps import PictureArrays, read_feature_maps
from fuprune.run.record import (
    FORMAT,
    CurveRow,
    PhaseClock,
    Provenance,
    RequestRow,
    RunRecord,
)

RUN_FILES = ("config.json", "results.json", "metrics.jsonl", "audit.json")
_NO_PROVENANCE = Provenance({}, {}, "", [], "")
Content = TypeVar("Content")


class Run(NamedTuple):
    """Everything that was readable in a run's directory."""

    name: str
    record: RunRecord  # without results.json, what config.json says and no results
    curves: list[CurveRow]
    clocks: dict[str, PhaseClock]  # by unit
    audit: AuditReport | None
    feature_maps: PictureArrays | None
    notes: tuple[str, ...]


def read_run(directory: str | Path) -> Run:
    """Reads a run's directory.

    Raises:
      InputError: the directory holds none of the files that a run writes.
    """
    directory = Path(directory)
    if not any((directory / name).is_file() for name in RUN_FILES):
        raise InputError(
            f"{str(directory)!r} is not a run: it has none of {', '.join(RUN_FILES)}; "
            "give the --workdir of a finished or running experiment."
        )
    notes: list[str] = []

    def read(
        name: str, reader: Callable[[Path], Content], *, needed: bool = True
    ) -> Content | None:
        try:
            if (directory / name).is_file():
                return reader(directory)
            if needed:
                notes.append(f"{name} is missing.")
        except (FupruneError, OSError) as error:
            reason = str(error).replace(f"{directory}/", "").rstrip(".")
            notes.append(f"{name} does not parse: {reason[:300]}.")
        return None

    record = read("results.json", files.read_record)
    if record is None:
        provenance = read("config.json", files.read_provenance)
        record = empty_record(provenance or _NO_PROVENANCE)
    return Run(
        name=directory.resolve().name,
        record=record,
        curves=read("metrics.jsonl", logs.read_curves) or [],
        clocks=read("timings.jsonl", logs.read_clocks, needed=False) or {},
        audit=read("audit.json", files.read_audit),
        feature_maps=read("feature_maps.npz", read_feature_maps, needed=False),
        notes=tuple(notes),
    )


def empty_record(provenance: Provenance) -> RunRecord:
    """The record of a run that has no results yet."""
    request = RequestRow("classes", [], "", "")
    empty = RunRecord(
        FORMAT, provenance, "", {}, [], [], "", [], [], {}, {}, [], None, request
    )
    return empty._replace(
        dataset=str(queries.setting(empty, "data.name") or ""),
        model={"name": str(queries.setting(empty, "model.name") or "")},
    )
