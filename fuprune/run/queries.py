"""Questions to a `RunRecord`: rows of a method, stages, names of classes, settings."""

import json
from collections.abc import Iterable
from typing import Any

from fuprune.run.record import MethodRow, RunRecord, StageRow

RAW = "raw"

# Settings that may differ between runs of one experiment: the seed, how a run is
# watched and judged, and which part it does, as when machines share retraining.
_IRRELEVANT = ("seed", "phases", "runtime", "report", "audit")
_PARTS = {
    # Where the data is does not matter; what it is does.
    "data": ("dir",),
    "unlearn": ("method", "methods", "retrain_first", "retrain_seeds"),
    "fine_tune": ("seeds", "seeded"),
}


def rows_of(record: RunRecord, method: str | None) -> list[MethodRow]:
    """The results of one method that came to an end, one per seed."""
    return [row for row in record.methods if row.method == method and row.error is None]


def raw_stage(record: RunRecord) -> StageRow | None:
    """The model before anything was forgotten."""
    return next((stage for stage in record.stages if stage.stage == RAW), None)


def pruned_stages(record: RunRecord, unit: str | None) -> list[StageRow]:
    """The models of a unit between its cuts, in order."""
    return [
        stage
        for stage in record.stages
        if stage.method == unit and stage.stage.startswith("pruned")
    ]


def class_name(record: RunRecord, class_id: int) -> str:
    """Names a class as the data set does; by its number if it has no name."""
    names = record.class_names
    return (names[class_id] if 0 <= class_id < len(names) else "") or str(class_id)


def class_label(record: RunRecord, class_id: int) -> str:
    """Names a class as the data set does, with its number where they differ."""
    name = class_name(record, class_id)
    return f"{name} ({class_id})" if name != str(class_id) else name


def model_name(record: RunRecord) -> str:
    """The network's name, or that of the factory which made it."""
    return str(record.model.get("name", record.model.get("factory", "")))


def setting(record: RunRecord, dotted: str) -> Any:
    """Looks up a key such as `partition.bias` in the run's config."""
    value: Any = record.provenance.config
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def experiment_of(record: RunRecord) -> str:
    """The settings that runs of one experiment share; "" if the run has no config."""
    config = record.provenance.config
    settings = {k: v for k, v in config.items() if k not in _IRRELEVANT}
    for section, keys in _PARTS.items():
        if isinstance(settings.get(section), dict):
            kept = {k: v for k, v in settings[section].items() if k not in keys}
            settings[section] = kept
    return json.dumps(settings, sort_keys=True) if settings else ""


def known(values: Iterable[float | None]) -> list[float]:
    """Those values that are there."""
    return [value for value in values if value is not None]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those values that are there; None without any."""
    found = known(values)
    return sum(found) / len(found) if found else None
