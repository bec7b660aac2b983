"""Copies what a reader needs of finished runs into results/, their models included.

A run's workdir also holds checkpoints and a report; these stay where they are: the
first are large, and the second is rebuilt by `python -m fuprune.report results/*`. Of
the models, those are copied that took rounds to make. The others (a masked logit, a
network between its cut and its fine-tuning) follow from the raw model and the record.

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
)


def publish(run: pathlib.Path, results: pathlib.Path = RESULTS) -> pathlib.Path:
    """Writes the folder of one run anew, and returns it."""
    target = results / run.resolve().name
    shutil.rmtree(target, ignore_errors=True)
    (target / "models").mkdir(parents=True)
    for name in KEPT:
        if (run / name).exists():
            shutil.copyfile(run / name, target / name)
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


def main(*runs: str):
    """Publish the runs named on the command line."""
    for run in runs:
        print(publish(pathlib.Path(run)))


if __name__ == "__main__":
    main(*sys.argv[1:])
