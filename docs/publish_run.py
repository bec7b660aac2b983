"""Copies what a reader needs of finished runs into results/, their models included.

A run's workdir also holds checkpoints and a report; these stay where they are: the
first are large, and the second is rebuilt by `python -m fuprune.report results/*/`. Of
the models, those are copied that took rounds to make. The others (a masked logit, a
network between its cut and its fine-tuning) follow from the raw model and the record.
Logs are thinned: metrics and timings have a row per evaluated round, which sums the
rounds since the one before, and an audit has no points of ROC curves.

    python docs/publish_run.py runs/cifar10_resnet20_class9 [...]

    import fuprune
    model, variables = fuprune.load("results/NAME/models/raw.safetensors")
"""

import json
import pathlib
import shutil
import sys

from fuprune.run.checkpoint import MODEL_FILE

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
KEPT = (
    "config.json",
    "metrics.jsonl",
    "timings.jsonl",
    "results.json",
    "audit.json",
    "feature_maps.npz",
    "pictures.npz",
)


def publish(run: pathlib.Path, results: pathlib.Path = RESULTS) -> pathlib.Path:
    """Writes the folder of one run anew, and returns it."""
    target = results / run.resolve().name
    shutil.rmtree(target, ignore_errors=True)
    (target / "models").mkdir(parents=True)
    for name in KEPT:
        if (run / name).exists():
            shutil.copyfile(run / name, target / name)
    thin(target)
    record = json.loads((run / "results.json").read_text())
    trained = {row["name"] for row in record["methods"] if row["rounds"]}
    # A raw model that was loaded is published where it came from.
    if not record["provenance"]["config"]["model"]["load"]:
        trained.add("raw")
    for saved in sorted((run / "models").glob(f"*/{MODEL_FILE}")):
        name = saved.parent.name
        if name in trained:
            shutil.copyfile(saved, target / "models" / f"{name}.safetensors")
    return target


def thin(run: pathlib.Path) -> None:
    """Rewrites the logs and records of a published run without their bulk."""
    metrics = read_rows(run / "metrics.jsonl")
    last = {row["phase"]: row["round"] for row in metrics}
    evaluated = {
        (row["phase"], row["round"])
        for row in metrics
        if any(name.endswith("r_accuracy") for name in row)
        or row["round"] == last[row["phase"]]
    }
    write_rows(
        run / "metrics.jsonl", summed(metrics, evaluated, ("images", "examples"))
    )
    if (run / "timings.jsonl").exists():
        clocks = read_rows(run / "timings.jsonl")
        write_rows(run / "timings.jsonl", summed(clocks, evaluated, ("seconds",)))
    for name in ("audit.json", "results.json"):
        if (run / name).exists():
            content = json.loads((run / name).read_text())
            content.get("detail", {}).pop("roc", None)
            (run / name).write_text(json.dumps(content) + "\n")


def summed(rows, evaluated, names) -> list[dict]:
    """Rows of evaluated rounds, with sums over the rounds since the one before.

    Rows without a round stay as they are. Of the rounds after the last evaluation, the
    last one has the sums.
    """
    kept, open_row = [], {}
    for row in rows:
        if "round" not in row:
            kept.append(row)
            continue
        phase = row["phase"]
        before = open_row.pop(phase, {})
        sums = {n: row.get(n, 0) + before.get(n, 0) for n in names if n in row}
        open_row[phase] = row | {n: round(value, 6) for n, value in sums.items()}
        if (phase, row["round"]) in evaluated:
            kept.append(open_row.pop(phase))
    return kept + list(open_row.values())


def read_rows(path: pathlib.Path) -> list[dict]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: pathlib.Path, rows) -> None:
    """The same file with other rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(*runs: str):
    """Publish the runs named on the command line."""
    for run in runs:
        print(publish(pathlib.Path(run)))


if __name__ == "__main__":
    main(*sys.argv[1:])
