"""What a report is about: a run, and the part that each of its models plays."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fuprune import results
from fuprune.audit import reading
from fuprune.audit.record import Audit
from fuprune.report import formats
from fuprune.results import RAW, RETRAIN, MethodRow, Run, RunRecord, StageRow, Times
from fuprune.unlearning.methods import METHODS

PREFERRED = "class_pruning"
# A class counts as gone from the answers up to this share above retraining's.
GONE = 0.02
# Below this accuracy on what remains, by number of classes, a raw model knows little.
_WEAK, _WEAK_MANY, _MANY = 0.6, 0.3, 20
_ORDER = ["before forgetting", "under test", "gold standard", "baseline", "control"]


class Subject(NamedTuple):
    """A run, its audit, and the method under test."""

    run: Run
    record: RunRecord
    audit: Audit | None
    tested: str | None

    def rows(self, method: str | None) -> list[MethodRow]:
        """The finished seeds of a method."""
        return results.rows_of(self.record, method)

    def mean(self, method: str | None, field: str) -> float | None:
        """The mean over a method's seeds of a field such as "u_accuracy"."""
        return results.mean(getattr(row, field) for row in self.rows(method))

    @property
    def raw(self) -> StageRow | None:
        """The model before anything was forgotten."""
        return results.raw_stage(self.record)

    def final_stage(self, method: str | None) -> StageRow | None:
        """The last model of a method's first finished seed."""
        unit = next((row.name for row in self.rows(method)), "")
        stages = [stage for stage in self.record.stages if stage.method == unit]
        return stages[-1] if stages else None

    @property
    def methods(self) -> list[str]:
        """The methods that finished, the one under test first and controls last."""
        names = dict.fromkeys(r.method for r in self.record.methods if not r.error)
        return sorted(names, key=lambda name: _ORDER.index(role(name, self.tested)))

    @property
    def controls(self) -> list[str]:
        """The controls that finished."""
        return [name for name in self.methods if control(name)]

    @property
    def of_classes(self) -> bool:
        """Whether classes were to be forgotten, and not images."""
        return self.record.request.kind == "classes"

    def has_forgotten(self, method: str) -> bool | None:
        """Whether a method's answers forgot; None if nothing says so.

        A class is gone if it is answered hardly more often than by retraining. The
        images of clients, and single ones, should be answered as retraining answers
        them: then at least half the raw model's distance to it must be gone.
        """
        found = self.mean(method, "u_accuracy")
        retrained = self.mean(RETRAIN, "u_accuracy")
        if found is None:
            return None
        if self.of_classes:
            return found <= GONE + (retrained or 0.0)
        raw = self.raw.u_accuracy if self.raw else None
        if retrained is None or raw is None:
            return None
        return abs(found - retrained) <= max(GONE, abs(raw - retrained) / 2)

    def is_undertrained(self) -> bool:
        """Whether the raw model knew too little for forgetting to be seen."""
        if self.raw is None or self.raw.r_accuracy is None:
            return False
        weak = _WEAK if len(self.raw.per_class) <= _MANY else _WEAK_MANY
        retrained = self.mean(RETRAIN, "r_accuracy") or 0.0
        return self.raw.r_accuracy < max(weak, retrained - 0.1)


def read_subject(workdir: str | Path) -> Subject:
    """Reads a run, and the retrained models of other runs that its audit refers to."""
    run = results.read_run(workdir, reading.read)
    names = str(results.setting(run.record, "audit.reference") or "").split(",")
    others = [results.read_run(name) for name in names if name and Path(name).is_dir()]
    if not others or results.rows_of(run.record, RETRAIN):
        return subject_of(run)
    # When a method came to retraining's accuracy follows from all of the curves.
    measured = {row.phase.removeprefix("unlearn/") for row in run.curves}
    own = [
        dataclasses.replace(row, times=Times(), crossings=[])
        if row.name in measured
        else row
        for row in run.record.methods
    ]
    record = dataclasses.replace(run.record, methods=own)
    both = merged(run._replace(record=record), others, only=RETRAIN)
    record = results.with_costs(both.record, both.curves, both.clocks)
    return subject_of(both._replace(record=record))


def merged(first: Run, others: Sequence[Run], only: str = "") -> Run:
    """A run with the finished units of others, too; `only` those of one method.

    Parts of an experiment that share the seed made the same model by the same name: it
    counts once. A name that another seed's model has gets the run's name behind it.
    """
    found: dict[tuple, tuple[Run, MethodRow]] = {}
    for run in (first, *others):
        seed = results.setting(run.record, "seed") or 0
        for row in run.record.methods:
            known = found.get((seed, row.name))
            wanted = run is first or (not row.error and only in ("", row.method))
            if wanted and (known is None or known[1].error):
                found[seed, row.name] = (run, row)
    rows, cuts, clocks = [], {}, dict(first.clocks)
    curves = [row for row in first.curves if not row.phase.startswith("unlearn/")]
    stages = [stage for stage in first.record.stages if stage.method == RAW]
    for run, row in found.values():
        taken = {row.name for row in rows}
        name = f"{row.name}, {run.name}" if row.name in taken else row.name
        old, new = f"unlearn/{row.name}", f"unlearn/{name}"
        rows.append(dataclasses.replace(row, name=name))
        stages += [
            dataclasses.replace(stage, method=name)
            for stage in run.record.stages
            if stage.method == row.name
        ]
        curves += [one._replace(phase=new) for one in run.curves if one.phase == old]
        if old in run.clocks:
            clocks[new] = run.clocks[old]
        if row.name in run.record.cuts:
            cuts[name] = run.record.cuts[row.name]
    record = dataclasses.replace(first.record, methods=rows, stages=stages, cuts=cuts)
    return first._replace(record=record, curves=curves, clocks=clocks)


def subject_of(run: Run) -> Subject:
    """What the report of a run is about."""
    names = [row.method for row in run.record.methods]
    tested = tested_among([*(run.audit.candidates if run.audit else ()), *names])
    return Subject(run, run.record, run.audit, tested)


def tested_among(names: Iterable[str]) -> str | None:
    """The paper's method if it is there, or the first that is no control."""
    others = [name for name in names if name != RETRAIN and not control(name)]
    preferred = [name for name in others if name.startswith(PREFERRED)]
    return next(iter(preferred or others), None)


def control(method: str) -> str:
    """What a control does, in one phrase; "" for a method that is none."""
    return METHODS[method].control if method in METHODS else ""


def warning(method: str) -> str:
    """What must stand beside the numbers of a method, wherever they stand."""
    trains = method in METHODS and METHODS[method].trains_on_forgotten
    return "trains on the forgotten images" if trains else ""


def role(name: str, tested: str | None) -> str:
    """What a model stands for in the comparison, in words."""
    fixed = {RAW: _ORDER[0], RETRAIN: _ORDER[2], tested: _ORDER[1]}
    return fixed.get(name) or _ORDER[4 if control(name) else 3]


def setting_in_use(record: RunRecord, key: str):
    """A setting of a run; None also if nothing that the run did depends on it."""
    known = [METHODS[row.method] for row in record.methods if row.method in METHODS]
    unused = {
        "partition.bias": results.setting(record, "partition.kind") != "bias",
        "train.local": results.setting(record, "train.algorithm") != "fed_avg",
        "prune.": known and all("prune" not in one.sections for one in known),
    }
    if any(key.startswith(start) for start, holds in unused.items() if holds):
        return None
    return results.setting(record, key)


def forgotten(record: RunRecord) -> str:
    """Names what was to be forgotten: `class cat (3)`, `clients 3 and 17`."""
    kind, names = record.request.kind, [str(n) for n in record.request.targets]
    if kind == "classes":
        names = [results.class_label(record, n) for n in record.classes] or ["?"]
    elif len(names) > 5:
        return f"{len(names)} {kind}"
    one = "class" if kind == "classes" else kind.removesuffix("s")
    return f"{one if len(names) == 1 else kind} {formats.listing(names)}"


def title(record: RunRecord) -> str:
    """Names a run: `Forgetting class 9: resnet20 on cifar10`."""
    names = (results.model_name(record), record.dataset)
    where = " on ".join(name for name in names if name)
    return f"Forgetting {forgotten(record)}" + (f": {where}" if where else "")
