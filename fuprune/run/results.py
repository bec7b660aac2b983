"""results.json and the closing tables, from the outcomes of a run's units."""

from pathlib import Path
from typing import Any

import numpy as np

from fuprune.models import zoo
from fuprune.run import assembly, ledger, logs
from fuprune.run.context import (
    Run,
    UnlearnUnit,
    load_model,
    outcome_of,
    privacy_units,
    target_accuracy,
    unlearn_units,
)
from fuprune.unlearning.feature_maps import telling_feature_maps


def collect_results(this: Run) -> dict[str, Any]:
    """results.json from the outcomes of the units."""
    config = this.config
    stages = [*outcome_of(this, "pretrain").get("stages", [])]
    outcomes = [
        (unit, outcome_of(this, f"unlearn/{unit.name}"))
        for unit in unlearn_units(config)
    ]
    seconds = _unit_seconds(this.workdir)
    retrain = next((o for u, o in outcomes if u.name == "retrain"), {})
    methods, plans, scores, cut, cuts = [], {}, {}, {}, {}
    for unit, outcome in outcomes:
        stages += outcome["stages"]
        methods.append(
            _method_row(unit, outcome, retrain, seconds.get(f"unlearn/{unit.name}"))
        )
        made = outcome.get("notes", {}).get("cuts")
        if made:
            plans[unit.name] = made[-1]["plan"]
            scores[unit.name] = made[0]["scores"]
            cut[unit.name] = made[0]["cut"]
            cuts[unit.name] = made
    results = {
        "dataset": config.data.name,
        "classes": list(this.classes),
        "class_names": list(this.federation.class_names),
        "model": zoo.spec(assembly.make_model(config, this.federation, this.runtime)),
        "target_accuracy": target_accuracy(this),
        "stages": stages,
        "methods": methods,
        "plan": plans,
        "scores": scores,
        "cut": cut,
        "cuts": cuts,
    }
    pruned = {u.name: o for u, o in outcomes}.get("class_pruning", {})
    if "privacy" in pruned.get("notes", {}):
        results["privacy"] = pruned["notes"]["privacy"]
    points = [outcome_of(this, name) for name, _ in privacy_units(config)]
    if points:
        results["privacy_curve"] = points
    if this.runtime.is_main:
        if scores.get("class_pruning"):
            results["feature_maps"] = _save_feature_maps(this, pruned)
        ledger.write_json(this.workdir / "results.json", results)
    return results


def _method_row(unit: UnlearnUnit, outcome, retrain, seconds) -> dict[str, Any]:
    last = outcome["stages"][-1] if outcome["stages"] else {}
    rounds, base = outcome.get("rounds_to_target"), retrain.get("rounds_to_target")
    speedup = base / rounds if base and rounds and unit.method != "retrain" else None
    return {
        "method": unit.name,
        "u_accuracy": last.get("u_accuracy"),
        "r_accuracy": last.get("r_accuracy"),
        "rounds": outcome.get("rounds"),
        "rounds_to_target": rounds,
        "seconds": seconds,
        # By a client that takes part in the statistics and in every round.
        "upload_bytes": outcome.get("upload_bytes", 0)
        + outcome.get("rounds", 0) * outcome.get("model_bytes", 0),
        "statistics_bytes": outcome.get("upload_bytes"),
        "model_bytes": outcome.get("model_bytes"),
        "speedup": speedup,
        "error": outcome.get("error"),
        "notes": {k: v for k, v in outcome.get("notes", {}).items() if k != "cuts"},
    }


def _save_feature_maps(this: Run, outcome) -> dict[str, Any]:
    """Figure 2: what the most and the least telling channel see on real images."""
    model, variables = load_model(this, "raw", "pretrain")
    scores = outcome["notes"]["cuts"][0]["scores"]
    chosen = telling_feature_maps(
        model,
        variables,
        this.federation.test,
        # From input to output, which a file does not keep: the stem is left out.
        {layer: scores[layer] for layer in zoo.layer_names(model)},
        target=this.classes[0],
        prepare=this.federation.prepare,
    )
    path = this.workdir / "feature_maps.npz"
    temporary = this.workdir / ".feature_maps.npz"
    np.savez(temporary, allow_pickle=False, **chosen.arrays)
    temporary.replace(path)
    return {"layer": chosen.layer, "most": chosen.most, "least": chosen.least}


def show_tables(results: dict[str, Any]) -> None:
    """Print the table of the paper's form, and the comparison of methods."""
    if not results:
        return
    percent = lambda x: None if x is None else f"{100 * x:.2f}%"  # noqa: E731
    logs.print_table(
        [
            {
                "method": row["method"],
                "stage": row["stage"],
                "U-set": percent(row["u_accuracy"]),
                "R-set": percent(row["r_accuracy"]),
            }
            for row in results["stages"]
        ],
        title=f"Accuracy by stage, forgetting class {_listed(results['classes'])}",
    )
    logs.print_table(
        [
            {
                "method": row["method"],
                "U-set": percent(row["u_accuracy"]),
                "R-set": percent(row["r_accuracy"]),
                "rounds to target": row["rounds_to_target"],
                "seconds": row["seconds"],
                "bytes": row["upload_bytes"],
                "speed-up": row["speedup"],
                "error": row["error"],
            }
            for row in results["methods"]
        ],
        title=f"Methods, target R-set accuracy {percent(results['target_accuracy'])}",
    )


def _listed(numbers) -> str:
    return ", ".join(str(n) for n in numbers)


def _unit_seconds(workdir: Path) -> dict[str, float]:
    """Seconds of every method, over all the starts it took."""
    total: dict[str, float] = {}
    path = workdir / "timings.jsonl"
    for row in logs.read_rows(path) if path.exists() else []:
        if "method_seconds" in row or "round" not in row:
            continue
        total[row["phase"]] = total.get(row["phase"], 0.0) + row["seconds"]
    return {phase: round(seconds, 3) for phase, seconds in total.items()}
