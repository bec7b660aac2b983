"""A small run by the record's own constructors: made-up numbers, real types."""

import dataclasses
from pathlib import Path

import numpy as np

from fuprune import results
from fuprune.audit.evidence import HEADLINE, AuditReport, Evidence, Headline
from fuprune.results import (
    Crossing,
    CurveRow,
    CutRow,
    FeatureMapsRow,
    LayerRow,
    MethodRow,
    PrivacyPoint,
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
    costs = (10.0 + reached, 100 * reached, 1000 * reached) if reached else [None] * 3
    crossing = Crossing("retrained", 0.855, reached, *costs)
    return MethodRow(
        name, method, int(seed or 1) - 1, u, r, rounds, 100 * rounds,
        Times(2.0, float(rounds)), 50, 1000, [crossing], error, {},
    )  # fmt: skip


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
    methods=tuple(OUTCOMES),
    classes=(3,),
    class_names=NAMES,
    seed=0,
    dataset="digits",
    bias=0.25,
    algorithm="fed_sgd",
    model="resnet20",
    shift=0.0,
) -> RunRecord:
    """A record; `shift` is added to every R-set accuracy."""
    config = {
        "seed": seed,
        "data": {"name": dataset},
        "partition": {"kind": "bias", "clients": 10, "bias": bias},
        "train": {"algorithm": algorithm, "cohort": 5, "rounds": 200},
        "unlearn": {"methods": list(methods), "classes": list(classes)},
    }
    command = ["python", "-m", "fuprune.main", f"--config.seed={seed}"]
    size = len(class_names)
    stages = [stage_row("raw", "raw", 0.9, 0.85, classes, size)]
    rows = []
    for name in methods:
        u, r, rounds, reached = OUTCOMES[name]
        rows.append(method_row(name, u, r + shift, rounds, reached))
        if name == "class_pruning":
            for n, class_id in enumerate(classes):
                pruned = (name, f"pruned_{class_id}", 0.1, 0.3 - 0.1 * n + shift)
                stages.append(stage_row(*pruned, classes, size))
        stages.append(stage_row(name, "fine_tuned", u, r + shift, classes, size))
    return RunRecord(
        provenance=Provenance(config, {"jax": "0.10"}, "c" * 40, command, "cpu"),
        dataset=dataset,
        model={"name": model},
        classes=list(classes),
        class_names=list(class_names),
        chosen_on="test",
        stages=stages,
        methods=rows,
        cuts={"class_pruning": [cut_row(class_id) for class_id in classes]},
        privacy={"epsilon": 2.0, "delta": 1e-5},
        privacy_curve=[
            PrivacyPoint(e, 0.1, 0.8, 0.5, 1.0, 1.0, None, None)
            for e in (0.1, 1.0, 9.0)
        ],
        feature_maps=FeatureMapsRow("conv1", 1, 0),
        request=RequestRow("classes", list(classes), "test images", "the others"),
    )


def evidence(name, verdicts, *, kind="probe", interval=(0.1, 0.2), value=0.5):
    values = dict.fromkeys(verdicts, value)
    bounds = list(interval) if interval else None
    question, retrained = f"Is {name} as retraining has it?", [0.14, 0.16, 0.15]
    return Evidence(
        name, kind, question, "fraction", "two_sided", values, retrained, bounds,
        verdicts, [], HEADLINE,
    )  # fmt: skip


def make_audit(*tests, classes=(3,), detail=None) -> AuditReport:
    """An audit of class pruning and a control, or of the tests that are given."""
    fails = {"class_pruning": "fail", "mask_logit": "fail", "raw": "fail"}
    passes = {"class_pruning": "pass", "mask_logit": "fail", "raw": "fail"}
    unable = dict.fromkeys(fails, "cannot tell")
    found = list(tests) or [
        evidence("threshold_loss_auc", unable, kind="membership"),
        evidence("shadow_success_rate", unable, kind="shadow"),
        evidence("u_accuracy", passes, kind="accuracy"),
        evidence("probe_auc", passes),
        evidence("relearn_area", fails, kind="relearn", interval=(None, 0.2)),
        evidence("jensen_shannon", passes, kind="distance"),
    ]
    candidates = [name for name in found[0].values if name != "raw"]
    models = [*candidates, "raw", "retrained_0", "retrained_1"]
    drawn = {
        "roc": {
            "threshold_loss": {
                name: {
                    "false_positives": [0.0, 0.5, 1.0],
                    "true_positives": [0, 0.5, 1],
                }
                for name in models
            }
        },
        "relearn": {
            "level": 0.8,
            "curves": {m: {"steps": [0, 5], "accuracy": [0.0, 0.9]} for m in models},
            "runs": [],
        },
        "cka": {name: {"stem": 0.9, "conv1": 0.7} for name in models},
    }
    settings = {"confidence": 0.95, "forgotten_test_images": 100}
    headlines = {name: make_headline(found, name) for name in (*candidates, "raw")}
    shown = drawn if detail is None else detail
    return AuditReport(list(classes), candidates, found, shown, settings, headlines)


def make_headline(tests, name) -> Headline:
    """The headline as the audit would make it, all tests being of its family."""
    verdicts = {t.name: t.verdicts[name] for t in tests if name in t.verdicts}
    failed = [test for test, verdict in verdicts.items() if verdict == "fail"]
    decided = [verdict for verdict in verdicts.values() if verdict != "cannot tell"]
    other = decided[0] if decided else "cannot tell"
    return Headline("fail" if failed else other, len(verdicts), failed, None)


def make_curves(record: RunRecord) -> list[CurveRow]:
    return [
        CurveRow(f"unlearn/{row.name}", n, {"r_accuracy": 0.5 + 0.003 * n})
        for row in record.methods
        for n in range(0, row.rounds + 1, 10)
    ]


def with_later_seed(record: RunRecord) -> RunRecord:
    """A record whose class pruning failed with its first seed and not with its second.

    The second seed's rows and stages are those that the first one had.
    """
    (pruning, *others), later = record.methods, "class_pruning_seed2"
    units = {pruning.name: later}
    stages = [replace(s, method=units.get(s.method, s.method)) for s in record.stages]
    failed, second = replace(pruning, error="no memory"), replace(pruning, name=later)
    return replace(record, methods=[failed, second, *others], stages=stages)


def make_run(record=None, audit=None, *, name="a", curves=()) -> Run:
    """A run as it is read."""
    record = make_record() if record is None else record
    return Run(name, record, list(curves), {}, audit, None, ())


def write_run(directory: Path, record=None, audit=None) -> Path:
    """Writes the files of a finished run and returns its directory."""
    record = make_record() if record is None else record
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(results.dumps(record.provenance))
    (directory / "results.json").write_text(results.dumps(record))
    (directory / "audit.json").write_text((audit or make_audit()).to_json())
    lines = [
        results.dumps({"phase": row.phase, "round": row.round_number, **row.values})
        for row in make_curves(record)
    ]
    compact = "".join(" ".join(line.split()) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(compact)
    write_maps(directory)
    return directory


def write_maps(directory: Path, **changed) -> None:
    arrays = {
        "images": np.arange(3 * 48, dtype=np.uint8).reshape(3, 4, 4, 3),
        "labels": np.array([3, 0, 1]),
        "maps_most": np.ones((3, 2, 2)),
        "maps_least": np.zeros((3, 2, 2)),
    }
    np.savez(directory / "feature_maps.npz", **(arrays | changed))


def replace(value, **fields):
    """A record or a NamedTuple with other fields."""
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **fields)
    return value._replace(**fields)
