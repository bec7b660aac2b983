"""Gathers what a report is made from: the record, the curves, the audit, the maps.

A file that is missing or does not parse leaves its part empty and one sentence in
`Run.notes`; nothing in a file is ever executed.
"""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from fuprune.audit.evidence import AuditReport
from fuprune.errors import FupruneError, InputError
from fuprune.report import roles
from fuprune.run import files
from fuprune.run.record import FORMAT, CurveRow, Provenance, RunRecord

RUN_FILES = ("config.json", "results.json", "metrics.jsonl", "audit.json")
_NO_PROVENANCE = Provenance({}, {}, "", [], "")
_LARGEST_ARCHIVE = 64 * 1024 * 1024
Content = TypeVar("Content")


class FeatureMaps(NamedTuple):
    """The arrays of feature_maps.npz: what two channels see in real images."""

    images: np.ndarray  # [n, H, W, 1 or 3] uint8
    labels: np.ndarray  # [n] integers
    maps_most: np.ndarray  # [n, h, w] of the most discriminative channel
    maps_least: np.ndarray  # [n, h, w] of the least discriminative one


class Run(NamedTuple):
    """Everything that was readable in a run's directory."""

    name: str
    record: RunRecord  # without results.json, what config.json says and no results
    curves: list[CurveRow]
    audit: AuditReport | None
    feature_maps: FeatureMaps | None
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

    def read(name: str, reader: Callable[[Path], Content]) -> Content | None:
        try:
            if (directory / name).is_file():
                return reader(directory)
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
        curves=read("metrics.jsonl", files.read_curves) or [],
        audit=read("audit.json", files.read_audit),
        feature_maps=read("feature_maps.npz", read_feature_maps)
        if (directory / "feature_maps.npz").is_file()
        else None,
        notes=tuple(notes),
    )


def empty_record(provenance: Provenance) -> RunRecord:
    """The record of a run that has no results yet."""
    empty = RunRecord(FORMAT, provenance, "", {}, [], [], "", [], [], {}, {}, [], None)
    return empty._replace(
        dataset=str(roles.setting(empty, "data.name") or ""),
        model={"name": str(roles.setting(empty, "model.name") or "")},
    )


def read_feature_maps(directory: Path) -> FeatureMaps:
    """Reads `feature_maps.npz`.

    Raises:
      FormatError: the archive is broken, too large, or holds something else.
    """
    path = directory / "feature_maps.npz"
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_ARCHIVE:
                raise ValueError("it is larger than any run writes")
        with np.load(path, allow_pickle=False) as arrays:
            maps = FeatureMaps(
                *(np.asarray(arrays[key]) for key in FeatureMaps._fields)
            )
        _check_shapes(maps)
    except Exception as error:  # NumPy's reader of headers raises many kinds
        raise files.FormatError(str(error) or type(error).__name__) from error
    return maps


def _check_shapes(maps: FeatureMaps) -> None:
    images, labels = maps.images, maps.labels
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or images.dtype != np.uint8:
        raise ValueError(
            f"images are {images.dtype}{list(images.shape)}, not uint8 [n, H, W, 1|3]"
        )
    for seen in (maps.maps_most, maps.maps_least):
        if seen.ndim != 3 or len(seen) != len(images) or seen.dtype.kind != "f":
            raise ValueError(
                f"maps are {seen.dtype}{list(seen.shape)}, not float [n, h, w]"
            )
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels are {labels.dtype}{list(labels.shape)}, not int [n]")
