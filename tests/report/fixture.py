"""A small run by the records' own constructors: made-up numbers, real types."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from fuprune import results
from fuprune.audit.record import Audit, Curve, Judged, Row
from fuprune.results import (
    Crossing,
    CurveRow,
    CutRow,
    FeatureMapsRow,
    LayerRow,
    MethodRow,
    Provenance,
    RequestRow,
    Run,
    RunRecord,
    StageRow,
    Times,
)

NAMES = ["airplane", "bird", "cat", "truck"]
# Accuracy on the forgotten and on the other classes, rounds run, rounds until
# retraining's own accuracy.
OUTCOMES = {
    "class_pruning": (0.0, 0.86, 20, 12),
    "mask_logit": (0.0, 0.84, 0, None),
    "fine_tune_only": (0.5, 0.87, 20, 10),
    "relabel": (0.0, 0.85, 20, None),
    "retrain": (0.0, 0.86, 200, 120),
    "retrain_seed2": (0.0, 0.865, 200, 140),
}


def method_row(name, u=0.0, r=0.86, rounds=20, reached=12, error=None) -> MethodRow:
    method, _, seed = name.partition("_seed")
    costs = (10.0 + reached, 100 * reached, 1000 * reached) if reached else ()
    crossing = Crossing("retrained", 0.855, reached, *costs)
    return MethodRow(
        name,
        method,
        int(seed or 1) - 1,
        u,
        r,
        rounds,
        100 * rounds,
        Times(2.0, float(rounds)),
        50,
        1000,
        [crossing],
        error,
    )


def stage_row(method, stage, u, r, classes=(3,), num_classes=4) -> StageRow:
    per_class = [u if index in classes else r for index in range(num_classes)]
    confusion = np.full((num_classes, num_classes), 2, dtype=int)
    return StageRow(method, stage, r, u, r, 0.5, [*per_class], confusion.tolist())


def cut_row(class_id=3) -> CutRow:
    layers = [LayerRow(name, 4, 3, 0, 40, 30, 400, 300) for name in ("stem", "conv1")]
    total = LayerRow("total", 8, 6, 0, 80, 60, 800, 600)
    scores = {"conv1": [0.1, 0.9, 0.3, 0.2], "stem": [0.4, 0.3, 0.2, 0.1]}
    channels = {layer: [0, 1, 2, 3] for layer in scores}
    removed = {"conv1": [1], "stem": [0]}
    return CutRow(class_id, scores, channels, removed, [*layers, total])


def make_record(
    *,
    outcomes=None,
    methods=tuple(OUTCOMES),
    classes=(3,),
    class_names=NAMES,
    seed=0,
    dataset="digits",
    bias=0.25,
    algorithm="fed_sgd",
    model="resnet20",
    rate=0.1,
    shift=0.0,
) -> RunRecord:
    """A record; `shift` is added to every R-set accuracy."""
    config = {
        "seed": seed,
        "data": {"name": dataset},
        "partition": {"kind": "bias", "clients": 10, "bias": bias},
        "train": {"algorithm": algorithm, "cohort": 5, "rounds": 200},
        "unlearn": {"methods": list(methods), "classes": list(classes)},
        "prune": {"rate": rate},
    }
    command = ["python", "-m", "fuprune.main", f"--config.seed={seed}"]
    size = len(class_names)
    stages = [stage_row("raw", "raw", 0.9, 0.85, classes, size)]
    rows = []
    for name in methods:
        u, r, rounds, reached = ((outcomes or {}) | OUTCOMES | (outcomes or {}))[name]
        rows.append(method_row(name, u, r + shift, rounds, reached))
        if name == "class_pruning":
            for n, class_id in enumerate(classes):
                pruned = (name, f"pruned_{class_id}", 0.1, 0.3 - 0.1 * n + shift)
                stages.append(stage_row(*pruned, classes, size))
        stages.append(stage_row(name, "fine_tuned", u, r + shift, classes, size))
    return RunRecord(
        provenance=Provenance({"jax": "0.10"}, "c" * 40, command, "cpu", config),
        dataset=dataset,
        model={"name": model},
        classes=list(classes),
        class_names=list(class_names),
        chosen_on="validation",
        stages=stages,
        methods=rows,
        cuts={"class_pruning": [cut_row(class_id) for class_id in classes]},
        privacy={"epsilon": 2.0, "delta": 1e-5},
        feature_maps=FeatureMapsRow("conv1", 1, 0),
        request=RequestRow("classes", list(classes), "test images", "the others"),
    )


def audit_row(name, differing=(), *, headline=True, powerless=False, kind="probe"):
    models = {
        model: Judged([0.5], 0.35, 0.25, 0.45, 0.001, True, False)
        if model in differing
        else Judged([0.15], 0.0, -0.1, 0.1, 0.9, False, False)
        for model in ("class_pruning", "fine_tune_only", "mask_logit", "raw")
    }
    if not headline:
        models = {model: Judged(judged.values) for model, judged in models.items()}
    return Row(
        name,
        kind,
        f"How is {name}?",
        "fraction",
        headline,
        "either",
        [0.14, 0.16, 0.15],
        models,
        0.05,
        powerless,
    )


def make_audit(*rows, classes=(3,)) -> Audit:
    """An audit which tells controls and the raw model apart, or of the given rows."""
    known = ("mask_logit", "fine_tune_only", "raw")
    found = list(rows) or [
        audit_row("u_accuracy", ("fine_tune_only", "raw"), kind="accuracy"),
        audit_row("probe_auc", known),
        audit_row("relearn_area", powerless=True, kind="relearn"),
        audit_row("threshold_auc", headline=False, kind="membership"),
    ]
    models = ("class_pruning", "mask_logit", "fine_tune_only", "raw", "retrained")
    return Audit(
        request="classes",
        classes=list(classes),
        candidates=["class_pruning", "mask_logit", "fine_tune_only"],
        retrained=3,
        confidence=0.95,
        rows=found,
        curves={model: Curve([0, 5], [0.0, 0.9]) for model in models},
        class_accuracies={},
        left_out={},
        settings={"key": 0},
    )


def make_curves(record: RunRecord) -> list[CurveRow]:
    return [
        CurveRow(
            f"unlearn/{row.name}", n, {"r_accuracy": 0.5 + 0.003 * n, "images": 1000.0}
        )
        for row in record.methods
        for n in range(0, row.rounds + 1, 10)
    ]


def make_run(record=None, audit=None, *, name="a", curves=()) -> Run:
    """A run as it is read."""
    record = make_record() if record is None else record
    return Run(name, record, list(curves), {}, audit)


def write_run(directory: Path, record=None, audit=None) -> Path:
    """Writes the files of a finished run and returns its directory."""
    record = make_record() if record is None else record
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(results.dumps(record.provenance))
    (directory / "results.json").write_text(results.dumps(record))
    (directory / "audit.json").write_text((audit or make_audit()).to_json())
    lines = [
        json.dumps({"phase": row.phase, "round": row.round_number, **row.values}) + "\n"
        for row in make_curves(record)
    ]
    (directory / "metrics.jsonl").write_text("".join(lines))
    images = np.arange(3 * 48, dtype=np.uint8).reshape(3, 4, 4, 3)
    labels = np.array([3, 0, 1])
    maps = {"maps_most": np.ones((3, 2, 2)), "maps_least": np.zeros((3, 2, 2))}
    maps["maps_next"] = np.full((2, 3, 2, 2), 0.5)
    np.savez(directory / "feature_maps.npz", images=images, labels=labels, **maps)
    answers = {"before": np.array([3, 3, 3]), "after": np.array([0, 1, 3])}
    np.savez(directory / "pictures.npz", images=images, labels=labels, **answers)
    return directory


replace = dataclasses.replace
