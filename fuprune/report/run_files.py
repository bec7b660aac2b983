"""Reads the files of one run into plain values, trusting none of them.

A run may still be going, may have been killed in the middle of a line, or may come
from somebody else: whatever cannot be read is left out and said in `Run.notes`, and
nothing in a file is ever executed.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fuprune.audit.evidence import AuditReport
from fuprune.errors import InputError
from fuprune.report import formats
from fuprune.report.feature_maps import FeatureMaps, read_feature_maps

RUN_FILES = ("config.json", "results.json", "metrics.jsonl", "audit.json")
_LARGEST_FILE = 256 * 1024 * 1024
_MOST_CLASSES = 1000


class Stage(NamedTuple):
    """Test accuracy of one model on the way: raw, pruned, fine-tuned, retrained."""

    method: str
    stage: str
    u_accuracy: float | None  # on the classes to forget
    r_accuracy: float | None  # on the remaining classes
    per_class: tuple[float | None, ...]  # [U]
    confusion: np.ndarray | None  # [U, U] counts, rows are true classes


class Method(NamedTuple):
    """What one way to forget reached and cost."""

    method: str
    u_accuracy: float | None
    r_accuracy: float | None
    rounds: float | None
    rounds_to_target: float | None
    seconds: float | None
    upload_bytes: float | None
    speedup: float | None
    error: str | None
    notes: Mapping[str, Any]


class LayerWidth(NamedTuple):
    """Size of one layer before and after the cut."""

    layer: str
    channels_before: int
    channels_after: int
    spared: int
    parameters_before: float | None
    parameters_after: float | None
    flops_before: float | None
    flops_after: float | None


class Cut(NamedTuple):
    """What was scored and removed for one class; layers are mapped by name."""

    class_id: int | None  # None if the file does not say
    scores: Mapping[str, tuple[float, ...]]  # of the channels the layer had
    channels: Mapping[str, tuple[int, ...]]  # their ids in the uncut network
    removed: Mapping[str, tuple[int, ...]]  # ids of those that were cut
    plan: tuple[LayerWidth, ...]


class MetricRow(NamedTuple):
    """One line of metrics.jsonl."""

    phase: str
    round_number: int
    values: Mapping[str, float]


class PrivacyPoint(NamedTuple):
    """One noise level of the accuracy-against-epsilon curve."""

    epsilon: float
    r_accuracy: float | None
    u_accuracy: float | None
    overlap: float | None  # share of the noiseless cut that is kept
    tuned_r_accuracy: float | None = None  # after fine-tuning, where it was done
    tuned_u_accuracy: float | None = None


class Run(NamedTuple):
    """Everything that was readable in a run's directory."""

    directory: Path
    name: str
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    commit: str
    command: tuple[str, ...]
    platform: str
    metrics: tuple[MetricRow, ...]
    phase_seconds: Mapping[str, float]
    classes: tuple[int, ...]
    class_names: tuple[str, ...]
    stages: tuple[Stage, ...]
    methods: tuple[Method, ...]
    cuts: Mapping[str, tuple[Cut, ...]]  # method -> one for each class, in order
    target_accuracy: float | None
    model: str
    dataset: str
    privacy: Mapping[str, Any]
    privacy_curve: tuple[PrivacyPoint, ...]
    feature_maps: FeatureMaps | None
    audit: AuditReport | None
    notes: tuple[str, ...]


def is_run(directory: Path) -> bool:
    """Says whether a directory holds at least one file that a run writes."""
    return any((directory / name).is_file() for name in RUN_FILES)


def read_run(directory: str | Path) -> Run:
    """Reads a run's directory.

    Args:
      directory: The run's `workdir`.

    Returns:
      The run; missing or broken files leave empty fields and a sentence in `notes`.

    Raises:
      ValueError: If the directory is not one a run wrote.
    """
    directory = Path(directory)
    if not is_run(directory):
        raise InputError(
            f"{str(directory)!r} is not a run: it has none of {', '.join(RUN_FILES)}; "
            "give the --workdir of a finished or running experiment."
        )
    notes: list[str] = []
    recorded = _read_json(directory / "config.json", notes)
    results = _read_json(directory / "results.json", notes)
    config = mapping(recorded.get("config"))
    methods = tuple(_methods(results))
    classes = _classes(results, config)
    return Run(
        directory=directory,
        name=directory.resolve().name,
        config=config,
        versions=mapping(recorded.get("versions")),
        commit=words(recorded.get("commit")),
        command=tuple(words(part) for part in sequence(recorded.get("command"))),
        platform=words(recorded.get("platform")),
        metrics=tuple(_metrics(directory / "metrics.jsonl", notes)),
        phase_seconds=_phase_seconds(directory / "timings.jsonl", notes),
        classes=classes,
        class_names=tuple(
            formats.shorten(words(name), 40)
            for name in sequence(results.get("class_names"))[:_MOST_CLASSES]
        ),
        stages=tuple(_stages(results, notes)),
        methods=methods,
        cuts=_cuts(results, classes),
        target_accuracy=number(results.get("target_accuracy")),
        model=_model_name(results, config),
        dataset=words(results.get("dataset"))
        or words(mapping(config.get("data")).get("name")),
        privacy=mapping(results.get("privacy")),
        privacy_curve=tuple(_privacy_curve(results)),
        feature_maps=_feature_maps(directory / "feature_maps.npz", results, notes),
        audit=_audit(directory / "audit.json", notes),
        notes=tuple(notes),
    )


def number(value: Any) -> float | None:
    """Returns a finite number, or `None` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def whole(value: Any) -> int | None:
    """Returns an integer, or `None` for anything else."""
    value = number(value)
    return int(value) if value is not None and value == int(value) else None


def words(value: Any) -> str:
    """Returns text for a string or a number, and nothing for anything else."""
    if isinstance(value, str):
        return formats.shorten(value, 400)
    return str(value) if isinstance(value, (int, float)) else ""


def mapping(value: Any) -> Mapping[str, Any]:
    """Returns a mapping, empty if the file held something else."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """Returns a list, empty if the file held something else."""
    return value if isinstance(value, list) else []


def class_name(run: Run, class_id: int) -> str:
    """Names a class as the data set does; by its number if it has no name."""
    names = run.class_names
    return (names[class_id] if 0 <= class_id < len(names) else "") or str(class_id)


def class_label(run: Run, class_id: int) -> str:
    """Names a class as the data set does, with its number where they differ."""
    name = class_name(run, class_id)
    return f"{name} ({class_id})" if name != str(class_id) else name


def setting(run: Run, dotted: str) -> Any:
    """Looks up a key such as `partition.bias` in the recorded config."""
    value: Any = run.config
    for key in dotted.split("."):
        value = mapping(value).get(key)
    return value


def _read_json(path: Path, notes: list[str]) -> Mapping[str, Any]:
    if not path.is_file():
        notes.append(f"{path.name} is not there.")
        return {}
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError("it is larger than any run writes")
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it does not hold an object")
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} could not be read ({formats.shorten(str(error))}).")
        return {}
    return value


def _audit(path: Path, notes: list[str]) -> AuditReport | None:
    if not path.is_file():
        notes.append(f"{path.name} is not there.")
        return None
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError("it is larger than any run writes")
        return AuditReport.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} could not be read ({formats.shorten(str(error))}).")
        return None


def _json_lines(path: Path, notes: list[str]) -> Iterator[Mapping[str, Any]]:
    skipped = []
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for position, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("not an object")
                except (ValueError, RecursionError):
                    skipped.append(str(position))
                    continue
                yield row
    except OSError as error:
        notes.append(f"{path.name} could not be read ({error.strerror}).")
    if skipped:
        notes.append(
            f"{path.name}: skipped {formats.plural(len(skipped), 'unreadable line')} "
            f"({formats.listing(skipped)}); a cut last line is normal while a run goes."
        )


def _metrics(path: Path, notes: list[str]) -> Iterator[MetricRow]:
    if not path.is_file():
        notes.append(f"{path.name} is not there.")
        return
    for row in _json_lines(path, notes):
        round_number = whole(row.get("round"))
        phase = words(row.get("phase"))
        if round_number is None or not phase:
            continue
        finite = {key: number(value) for key, value in row.items() if key != "round"}
        yield MetricRow(
            phase, round_number, {k: v for k, v in finite.items() if v is not None}
        )


def _phase_seconds(path: Path, notes: list[str]) -> dict[str, float]:
    totals: dict[str, float] = {}
    if path.is_file():
        for row in _json_lines(path, notes):
            seconds = number(row.get("seconds"))
            # Rows without a round sum up a phase whose rounds were counted already.
            if seconds is not None and "round" in row and words(row.get("phase")):
                phase = words(row["phase"])
                totals[phase] = totals.get(phase, 0.0) + seconds
    return totals


def _classes(results: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    listed = results.get("classes") or mapping(config.get("unlearn")).get("classes")
    if isinstance(listed, str):
        listed = [int(part) for part in listed.split(",") if part.strip().isdecimal()]
    elif isinstance(listed, int):
        listed = [listed]
    listed = sequence(listed)
    return tuple(c for c in map(whole, listed) if c is not None)


def _model_name(results: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    model = results.get("model")
    name = words(mapping(model).get("name")) or words(model)
    return name or words(mapping(config.get("model")).get("name"))


def _stages(results: Mapping[str, Any], notes: list[str]) -> Iterator[Stage]:
    for row in map(mapping, sequence(results.get("stages"))):
        stage = words(row.get("stage"))
        if not stage:
            notes.append("results.json: left out a stage without a name.")
            continue
        yield Stage(
            method=words(row.get("method")),
            stage=stage,
            u_accuracy=number(row.get("u_accuracy")),
            r_accuracy=number(row.get("r_accuracy")),
            per_class=tuple(
                number(v) for v in sequence(row.get("per_class"))[:_MOST_CLASSES]
            ),
            confusion=_square(row.get("confusion")),
        )


def _square(value: Any) -> np.ndarray | None:
    rows = [[number(v) for v in sequence(row)] for row in sequence(value)]
    if not 0 < len(rows) <= _MOST_CLASSES or any(len(r) != len(rows) for r in rows):
        return None
    if any(v is None or v < 0 for row in rows for v in row):
        return None
    return np.asarray(rows, dtype=np.float64)


def _methods(results: Mapping[str, Any]) -> Iterator[Method]:
    for row in map(mapping, sequence(results.get("methods"))):
        name = words(row.get("method"))
        if not name:
            continue
        yield Method(
            method=name,
            u_accuracy=number(row.get("u_accuracy")),
            r_accuracy=number(row.get("r_accuracy")),
            rounds=number(row.get("rounds")),
            rounds_to_target=number(row.get("rounds_to_target")),
            seconds=number(row.get("seconds")),
            upload_bytes=number(row.get("upload_bytes")),
            speedup=number(row.get("speedup")),
            error=words(row.get("error")) or None,
            notes=mapping(row.get("notes")),
        )


def _layer_widths(rows: Any) -> Iterator[LayerWidth]:
    for row in map(mapping, sequence(rows)):
        before = whole(row.get("channels_before"))
        after = whole(row.get("channels_after"))
        if before is None or after is None or before < 0 or after < 0:
            continue
        yield LayerWidth(
            layer=formats.shorten(words(row.get("layer")), 60),
            channels_before=before,
            channels_after=after,
            spared=whole(row.get("spared")) or 0,
            parameters_before=number(row.get("parameters_before")),
            parameters_after=number(row.get("parameters_after")),
            flops_before=number(row.get("flops_before")),
            flops_after=number(row.get("flops_after")),
        )


def _cuts(
    results: Mapping[str, Any], classes: tuple[int, ...]
) -> dict[str, tuple[Cut, ...]]:
    """The cuts of each method, or the one that a file without `cuts` tells of."""
    found = {
        formats.shorten(method): tuple(
            Cut(
                whole(row.get("class")),
                _by_layer(row.get("scores"), _numbers),
                _by_layer(row.get("channels"), _channels),
                _by_layer(row.get("cut"), _channels),
                tuple(_layer_widths(row.get("plan"))),
            )
            for row in map(mapping, sequence(rows)[:_MOST_CLASSES])
        )
        for method, rows in mapping(results.get("cuts")).items()
    }
    parts = [mapping(results.get(name)) for name in ("scores", "cut", "plan")]
    for method in dict.fromkeys(name for part in parts for name in part):
        if not found.get(formats.shorten(method)):
            scores, removed, plan = (part.get(method) for part in parts)
            found[formats.shorten(method)] = (
                Cut(
                    classes[0] if len(classes) == 1 else None,
                    _by_layer(scores, _numbers),
                    {},
                    _by_layer(removed, _channels),
                    tuple(_layer_widths(plan)),
                ),
            )
    return {method: cuts for method, cuts in found.items() if cuts}


def _by_layer(value: Any, read: Any) -> dict[str, tuple]:
    return {
        formats.shorten(layer, 60): read(entries)
        for layer, entries in mapping(value).items()
    }


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(number(v) or 0.0 for v in sequence(value))


def _channels(value: Any) -> tuple[int, ...]:
    return tuple(c for c in map(whole, sequence(value)) if c is not None)


def _privacy_curve(results: Mapping[str, Any]) -> Iterator[PrivacyPoint]:
    for row in map(mapping, sequence(results.get("privacy_curve"))):
        epsilon = number(row.get("epsilon"))
        if epsilon is not None and epsilon > 0:
            yield PrivacyPoint(
                epsilon,
                number(row.get("r_accuracy")),
                number(row.get("u_accuracy")),
                number(row.get("overlap")),
                number(row.get("fine_tuned_r_accuracy")),
                number(row.get("fine_tuned_u_accuracy")),
            )


def _check_maps(maps: FeatureMaps) -> None:
    images = maps.images
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or images.dtype != np.uint8:
        raise ValueError(
            f"images are {images.dtype}{list(images.shape)}, not uint8 [n, H, W, 1|3]"
        )
    shapes = maps.maps_most.shape, maps.maps_least.shape
    if any(len(shape) != 3 or shape[0] != len(images) for shape in shapes):
        raise ValueError(f"maps are {list(shapes)}, not [{len(images)}, h, w]")
    if maps.labels.shape != (len(images),) or maps.labels.dtype.kind not in "iu":
        raise ValueError(f"labels are {list(maps.labels.shape)}, not [{len(images)}]")


def _feature_maps(
    path: Path, results: Mapping[str, Any], notes: list[str]
) -> FeatureMaps | None:
    if not path.is_file():
        return None
    about = mapping(results.get("feature_maps"))
    try:
        return read_feature_maps(
            path,
            layer=words(about.get("layer")),
            most=words(about.get("most")),
            least=words(about.get("least")),
        )
    except ValueError as error:
        notes.append(f"{path.name} could not be read ({formats.shorten(str(error))}).")
        return None
