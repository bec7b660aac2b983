"""What a run leaves behind: one record type per thing, and how its folder is read.

`run/` writes these records and `report/` reads them; this file knows neither. Each unit
of a run finds its part of a `RunRecord` once, and results.json is their union.
metrics.jsonl has a row per round and timings.jsonl the clocks; costs, and when a method
came to a target, follow from those two (`with_costs`). Every field has a default, so
that a file with a field more or less than this version knows still reads.
"""

import collections
import dataclasses
import functools
import json
import math
import os
import reprlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pydantic

from fuprune.errors import FupruneError, InputError, MissingFileError

RAW, RETRAIN = "raw", "retrain"
RUN_FILES = ("config.json", "results.json", "metrics.jsonl", "audit.json")
Kind = TypeVar("Kind")
Content = TypeVar("Content")


class FormatError(FupruneError, ValueError):
    """A file or text that does not hold the record it should."""


@dataclass(frozen=True)
class Start:
    """What one start of a run was: a resumed run has several."""

    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""  # of the code; "" if unknown
    command: list[str] = field(default_factory=list)  # none from a program
    platform: str = ""  # such as "cpu, 2 device(s)"


@dataclass(frozen=True)
class Provenance(Start):
    """Everything needed to know, and repeat, what a run did; also in config.json."""

    config: dict[str, Any] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)  # all of them, the first too


@dataclass(frozen=True)
class RequestRow:
    """What the run forgets, and which images its two accuracies are taken on."""

    kind: str = "classes"  # or "clients" or "examples"
    targets: list[int] = field(default_factory=list)
    u_set: str = ""  # "the 812 training images of client 3"
    r_set: str = ""  # "the 10000 test images, which nobody trained on"


@dataclass(frozen=True)
class StageRow:
    """What one model on the way does on the test split: raw, pruned, fine-tuned."""

    method: str = ""  # the unit that made it; "raw" for the trained model
    stage: str = ""
    accuracy: float = 0.0
    u_accuracy: float | None = None  # on what is to be forgotten; None without images
    r_accuracy: float | None = None  # on the rest
    test_loss: float | None = None  # None if it is not finite
    # [U] accuracies, None for a class without test images.
    per_class: list[float | None] = field(default_factory=list)
    # [U][U] counts, rows are true classes.
    confusion: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Times:
    """Seconds that a method took, over all the starts it needed."""

    own: float = 0.0  # its own work: capture, scoring, surgery, noise, sums
    training: float = 0.0  # federated rounds that it ran, evaluation included

    @property
    def total(self) -> float:
        """All of it."""
        return self.own + self.training


@dataclass(frozen=True)
class Crossing:
    """When a method's R-set accuracy first came to a target, on one evaluation grid.

    The grid starts at round 0, before any fine-tuning. None: not within the budget.
    """

    target: str = ""  # one of `TARGETS`
    accuracy: float = 0.0  # the target itself
    rounds: int | None = None
    seconds: float | None = None  # the method's own work included
    images: int | None = None  # forward and backward passes over one image
    upload_bytes: int | None = None  # by one client that takes part in everything


@dataclass(frozen=True)
class MethodRow:
    """What one method, with one seed, reached and cost.

    The unit leaves `images`, `times` and `crossings` empty; `with_costs` fills them.
    """

    name: str = ""  # of the unit: the method, with the seed's number behind it
    method: str = ""
    seed: int = 0
    u_accuracy: float | None = None
    r_accuracy: float | None = None
    rounds: int = 0
    images: int = 0  # forward and backward passes over one image, by all clients
    times: Times = Times()
    statistics_bytes: int = 0  # sent by one client before fine-tuning
    model_bytes: int = 0  # sent by one client per round
    crossings: list[Crossing] = field(default_factory=list)
    error: str | None = None  # why it stopped; the numbers above are then empty
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def upload_bytes(self) -> int:
        """Sent by one client that takes part in the statistics and every round."""
        return self.statistics_bytes + self.rounds * self.model_bytes


@dataclass(frozen=True)
class LayerRow:
    """Size of one layer, or of all ("total"), before and after a cut."""

    layer: str = ""
    channels_before: int = 0
    channels_after: int = 0
    spared: int = 0  # cuts not made because a layer must keep some channels
    parameters_before: int = 0
    parameters_after: int = 0
    flops_before: int = 0
    flops_after: int = 0


@dataclass(frozen=True)
class CutRow:
    """What was scored and removed for one class; layers are named."""

    class_id: int = 0
    # The score of each channel that the layer had.
    scores: dict[str, list[float]] = field(default_factory=dict)
    # Their ids in the uncut network.
    channels: dict[str, list[int]] = field(default_factory=dict)
    removed: dict[str, list[int]] = field(default_factory=dict)  # ids
    layers: list[LayerRow] = field(default_factory=list)


@dataclass(frozen=True)
class FeatureMapsRow:
    """Which channels feature_maps.npz shows (Figure 2)."""

    layer: str = ""
    most: int = 0  # the channel with the highest score
    least: int = 0


@dataclass(frozen=True)
class PicturesRow:
    """Whose answers pictures.npz shows beside the raw model's."""

    unit: str = ""


@dataclass(frozen=True, repr=False)
class RunRecord:
    """All of a run's results: results.json."""

    provenance: Provenance = Provenance()
    dataset: str = ""
    model: dict[str, Any] = field(default_factory=dict)  # the uncut network
    classes: list[int] = field(default_factory=list)  # in their order
    class_names: list[str] = field(default_factory=list)
    chosen_on: str = ""  # the split that targets and stops were judged on
    stages: list[StageRow] = field(default_factory=list)
    methods: list[MethodRow] = field(default_factory=list)
    # By unit, one for each class in the order cut.
    cuts: dict[str, list[CutRow]] = field(default_factory=dict)
    # The accountant's statement; empty without noise.
    privacy: dict[str, Any] = field(default_factory=dict)
    feature_maps: FeatureMapsRow | None = None
    pictures: PicturesRow | None = None
    request: RequestRow = RequestRow()
    # R-set accuracies to reach, by their names in `TARGETS`, as far as no curve has
    # them: "raw_masked" and "configured".
    targets: dict[str, float | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        """A line per method; the whole of it is results.json."""
        forgets = ", ".join(f"{self.request.kind} {x}" for x in self.request.targets)
        lines = [f"RunRecord: {model_name(self)} on {self.dataset} forgets {forgets}"]
        raw = raw_stage(self)
        for row in ([] if raw is None else [raw]) + self.methods:
            name = "raw" if isinstance(row, StageRow) else row.name
            found = f"U-set {_share(row.u_accuracy)}, R-set {_share(row.r_accuracy)}"
            lines.append(f"  {name}: {getattr(row, 'error', None) or found}")
        return "\n".join(lines)

    def __or__(self, part: "RunRecord") -> "RunRecord":
        """The record with the rows of one more unit."""
        return dataclasses.replace(
            self,
            stages=[*self.stages, *part.stages],
            methods=[*self.methods, *part.methods],
            cuts=self.cuts | part.cuts,
            privacy=self.privacy or part.privacy,
            feature_maps=self.feature_maps or part.feature_maps,
            pictures=self.pictures or part.pictures,
            targets=self.targets | part.targets,
        )


class CurveRow(NamedTuple):
    """One row of metrics.jsonl."""

    phase: str  # the unit
    round_number: int  # 0 is before the first round
    # "r_accuracy" and its kin are of the test split, "validation_r_accuracy" and its
    # kin of the validation split; a row of a round without evaluation has neither.
    values: dict[str, float]

    def judged(self, metric: str) -> float | None:
        """A metric on the split that the run's choices were made on, if evaluated."""
        return self.values.get(f"validation_{metric}", self.values.get(metric))


class PhaseClock(NamedTuple):
    """Seconds of one unit from timings.jsonl, over all the starts it needed."""

    own: float
    rounds: list[tuple[int, float]]  # (round, seconds); a repeated round is there twice
    unit: float | None = None  # the last start, all of it; None if it did not finish
    compiling: float = 0.0  # of its own work

    @property
    def training(self) -> float:
        """All rounds."""
        return sum(seconds for _, seconds in self.rounds)

    @property
    def steady(self) -> float:
        """Its work without compilation: rounds at the pace of the median one."""
        pace = statistics.median(s for _, s in self.rounds or [(0, 0)])
        rounds = min(self.training, len(self.rounds) * pace)
        return self.own - self.compiling + rounds

    def until(self, last: int) -> float:
        """The unit's own work and its rounds up to `last`."""
        return self.own + sum(s for number, s in self.rounds if number <= last)


class FeatureMaps(NamedTuple):
    """The arrays of feature_maps.npz: what two channels see in real images."""

    images: np.ndarray  # [n, H, W, 1 or 3] uint8
    labels: np.ndarray  # [n] integers
    maps_most: np.ndarray  # [n, h, w] of the most discriminative channel
    maps_least: np.ndarray  # [n, h, w] of the least discriminative one
    maps_next: np.ndarray | None = None  # [2, n, h, w] of the second and the third


class Pictures(NamedTuple):
    """The arrays of pictures.npz: forgotten test images and what is answered."""

    images: np.ndarray  # [n, H, W, 1 or 3] uint8
    labels: np.ndarray  # [n] integers
    before: np.ndarray  # [n] answers of the raw model
    after: np.ndarray  # [n] answers of the method under test


class Run(NamedTuple):
    """Everything that was readable in a run's directory."""

    name: str
    record: RunRecord  # without results.json, what config.json says and no results
    curves: list[CurveRow]
    clocks: dict[str, PhaseClock]  # by unit
    audit: Any = None
    feature_maps: FeatureMaps | None = None
    pictures: Pictures | None = None
    notes: tuple[str, ...] = ()  # a sentence for each file that is missing or broken


# Reading and writing.


def to_plain(value: Any) -> Any:
    """A value in JSON's own types; NaN and infinities become null.

    Records and NamedTuples become dictionaries of their fields, other tuples lists, and
    NumPy and JAX arrays and scalars lists and numbers.
    """
    if hasattr(value, "__dataclass_fields__"):
        names = [one.name for one in dataclasses.fields(value)]
        return {name: to_plain(getattr(value, name)) for name in names}
    if hasattr(value, "_asdict"):
        return {name: to_plain(one) for name, one in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return to_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dumps(value: Any) -> str:
    """A record as JSON text, with sorted keys so that equal records are equal files."""
    return json.dumps(to_plain(value), indent=1, sort_keys=True, allow_nan=False) + "\n"


_adapter = functools.cache(pydantic.TypeAdapter)


def loads(text: str, kind: type[Kind], what: str) -> Kind:
    """The record of type `kind` in a JSON text; `what` is its name in an error."""
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f".{part}" for part in first["loc"])
        reason = first["msg"][:1].lower() + first["msg"][1:]
        seen = reprlib.repr(first["input"])
        raise FormatError(f"{what}{where} is {seen}: {reason}") from None


def from_plain(value: Any, kind: type[Kind], what: str) -> Kind:
    """The record of type `kind` that `to_plain` gave; raises as `loads` does."""
    return loads(json.dumps(value), kind, what)


def read_text(path: str | os.PathLike) -> str:
    """The text of a run's file; without one, a MissingFileError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFileError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} does not parse ({error}).") from None


def read_rows(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The objects of a JSONL file; an unfinished last line is left out.

    Raises as `read_text` and `loads` do.
    """
    # What follows the last newline is a line that is still being written, or nothing.
    lines = read_text(path).split("\n")[:-1]
    return [
        loads(line, dict[str, Any], f"line {number} of {path}")
        for number, line in enumerate(lines, start=1)
    ]


def read_record(workdir: str | os.PathLike) -> RunRecord:
    """results.json of a run; raises as `read_text` and `loads` do."""
    path = Path(workdir) / "results.json"
    found = loads(read_text(path), RunRecord, str(path))
    if found.targets:
        return found
    # Up to version 0.2 the targets were in the crossings alone.
    crossings = [one for row in found.methods for one in row.crossings]
    return dataclasses.replace(found, targets={c.target: c.accuracy for c in crossings})


def read_provenance(workdir: str | os.PathLike) -> Provenance:
    """config.json of a run; raises as `read_text` and `loads` do."""
    path = Path(workdir) / "config.json"
    return loads(read_text(path), Provenance, str(path))


def read_curves(workdir: str | os.PathLike) -> list[CurveRow]:
    """The rows of metrics.jsonl in their order, also while the run goes on.

    Values that are not numbers are left out: null, which stands for NaN or an infinity,
    and the list of rejected clients.
    """
    return [
        CurveRow(
            str(row.pop("phase", "")),
            int(row.pop("round", 0)),
            {name: float(value) for name, value in row.items() if _is_number(value)},
        )
        for row in read_rows(Path(workdir) / "metrics.jsonl")
    ]


def read_clocks(workdir: str | os.PathLike) -> dict[str, PhaseClock]:
    """What timings.jsonl says of each unit; rows of other kinds are left out."""
    path = Path(workdir) / "timings.jsonl"
    clocks: dict[str, PhaseClock] = {}
    for row in read_rows(path) if path.exists() else []:
        phase = str(row.get("phase"))
        clock = clocks.setdefault(phase, PhaseClock(0.0, []))
        if _is_number(row.get("own_seconds")):
            own, compiling = row["own_seconds"], row.get("compiling", 0.0)
            clocks[phase] = clock._replace(
                own=clock.own + own, compiling=clock.compiling + compiling
            )
        elif _is_number(row.get("unit_seconds")):
            clocks[phase] = clock._replace(unit=float(row["unit_seconds"]))
        elif isinstance(row.get("round"), int) and _is_number(row.get("seconds")):
            clock.rounds.append((row["round"], float(row["seconds"])))
    return clocks


def read_arrays(path: str | os.PathLike, kind: Callable[..., Content]) -> Content:
    """`FeatureMaps` or `Pictures` from their file; a FormatError if it is broken."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return kind(**dict(arrays))
    except Exception as error:  # NumPy's reader of headers raises many kinds
        raise FormatError(str(error) or type(error).__name__) from error


def read_run(
    directory: str | Path, read_audit: Callable[[str], Any] | None = None
) -> Run:
    """Reads a run's directory; what is missing or broken becomes a note."""
    directory = Path(directory)
    if not any((directory / name).is_file() for name in RUN_FILES):
        raise InputError(
            f"{str(directory)!r} is not a run: it has none of {', '.join(RUN_FILES)}; "
            "give the --workdir of a finished or running experiment."
        )
    notes: list[str] = []

    def read(name: str, reader: Callable[[Path], Any], *, needed: bool = False) -> Any:
        path = directory / name
        try:
            if path.is_file():
                return reader(path)
            if needed:
                notes.append(f"{name} is missing.")
        except (FupruneError, OSError) as error:
            reason = str(error).replace(f"{directory}/", "").rstrip(".")
            notes.append(f"{name} does not parse: {reason[:300]}.")
        return None

    found = read("results.json", lambda _: read_record(directory), needed=True)
    if found is None:
        made_by = read("config.json", lambda _: read_provenance(directory), needed=True)
        found = RunRecord(made_by or Provenance())
        names = [str(setting(found, key) or "") for key in ("data.name", "model.name")]
        model = {"name": names[1]}
        found = dataclasses.replace(found, dataset=names[0], model=model)
    curves = read("metrics.jsonl", lambda _: read_curves(directory), needed=True) or []
    clocks = read("timings.jsonl", lambda _: read_clocks(directory)) or {}
    audit = None
    if read_audit is not None:
        audit = read("audit.json", lambda path: read_audit(read_text(path)))
    return Run(
        directory.resolve().name,
        with_costs(found, curves, clocks),
        curves,
        clocks,
        audit,
        read("feature_maps.npz", lambda path: read_arrays(path, FeatureMaps)),
        read("pictures.npz", lambda path: read_arrays(path, Pictures)),
        tuple(notes),
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Questions to a record.


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


# Settings that may differ between runs of one experiment: the seed, how a run is
# watched and judged, and which part it does, as when machines share retraining.
IRRELEVANT = ("seed", "phases", "runtime", "report", "audit")
_PARTS = {
    # Where the data is does not matter; what it is does.
    "data": ("dir",),
    "unlearn": ("method", "methods", "retrain_first", "retrain_seeds"),
    "fine_tune": ("seeds", "seeded"),
}


def experiment_of(record: RunRecord) -> str:
    """The settings that runs of one experiment share; "" if the run has no config."""
    config = record.provenance.config
    settings = {k: v for k, v in config.items() if k not in IRRELEVANT}
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


# Costs, targets and speed.

TARGETS = {
    "retrained": "retraining's own accuracy",
    "raw_masked": "the accuracy of the raw model with the class masked",
    "configured": "the accuracy set in the config",
}
COSTS = ("rounds", "seconds", "images", "upload_bytes")


class Reached(NamedTuple):
    """The mean over those seeds of a method that reached a target."""

    accuracy: float  # the target
    seeds: int
    late: int  # seeds that did not reach it
    rounds: float | None
    seconds: float | None  # the method's own work included
    images: float | None
    upload_bytes: float | None


def with_costs(
    record: RunRecord, curves: Sequence[CurveRow], clocks: Mapping[str, PhaseClock]
) -> RunRecord:
    """The record with what curves and clocks say of each method's costs.

    A row that says what it cost, as in every results.json, keeps that: the first
    versions logged less than they recorded.
    """
    by_unit: dict[str, list[CurveRow]] = collections.defaultdict(list)
    for row in curves:
        by_unit[row.phase.removeprefix("unlearn/")].append(row)
    targets = {**record.targets}
    for retrained in rows_of(record, RETRAIN)[:1]:
        judged = known(r.judged("r_accuracy") for r in by_unit[retrained.name])
        targets |= {"retrained": judged[-1]} if judged else {}
    rows = []
    for row in record.methods:
        curve = by_unit[row.name]
        clock = clocks.get(f"unlearn/{row.name}", PhaseClock(0.0, []))
        is_known = row.crossings or row.times != Times()
        if curve and not row.error and not is_known:
            row = dataclasses.replace(
                row,
                images=_images(row, curve, row.rounds),
                times=Times(round(clock.own, 3), round(clock.training, 3)),
                crossings=[
                    _crossing(name, targets[name], row, curve, clock)
                    for name in TARGETS
                    if targets.get(name) is not None
                ],
            )
        rows.append(row)
    return dataclasses.replace(record, methods=rows)


def _crossing(name: str, target, row: MethodRow, curve, clock: PhaseClock) -> Crossing:
    for point in curve:
        accuracy, number = point.judged("r_accuracy"), point.round_number
        if accuracy is not None and accuracy >= target:
            return Crossing(
                name,
                target,
                number,
                round(clock.until(number), 3),
                _images(row, curve, number),
                row.statistics_bytes + number * row.model_bytes,
            )
    return Crossing(name, target)


def _images(row: MethodRow, curve: Sequence[CurveRow], last: int) -> int:
    """Images of the rounds up to `last`, and of rounds of the method's own."""
    trained = sum(r.values.get("images", 0.0) for r in curve if r.round_number <= last)
    return int(trained) + int(row.notes.get("images", 0))


def crossing(row: MethodRow, target: str) -> Crossing | None:
    """When one seed of a method reached a target; None if the target is not known."""
    return next((one for one in row.crossings if one.target == target), None)


def reached(rows: Sequence[MethodRow], target: str) -> Reached | None:
    """Sums up the seeds of one method; None if none of them knows the target."""
    found = [one for row in rows if (one := crossing(row, target)) is not None]
    if not found:
        return None
    there = [one for one in found if one.rounds is not None]
    means = [mean(getattr(one, cost) for one in there) for cost in COSTS]
    accuracy = sum(one.accuracy for one in found) / len(found)
    return Reached(accuracy, len(found), len(found) - len(there), *means)


def speedups(method: Reached | None, retrained: Reached | None) -> list[float | None]:
    """Speed-up over retraining in each of `COSTS`.

    None if a seed of the method did not get there, or the method spent nothing.
    Retrained seeds that did not get there are left out, which favours retraining.
    """
    if method is None or retrained is None or method.late:
        return [None] * len(COSTS)
    pairs = [(getattr(retrained, cost), getattr(method, cost)) for cost in COSTS]
    return [base / spent if base and spent else None for base, spent in pairs]
