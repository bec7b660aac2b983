"""Writes run directories as an experiment would, with made-up but plausible figures.

The verdicts come from the audit's own `judge`, so that the shape of audit.json here is
the shape it has in a real run.
"""

import json
from pathlib import Path

import numpy as np

from fuprune.audit.evidence import AuditReport
from fuprune.audit.verdict import judge

CIFAR10 = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
METHODS = (
    "class_pruning",
    "retrain",
    "fisher",
    "mask_logit",
    "fine_tune_only",
    "prune_random",
)
# U-set accuracy, drop of R-set accuracy, rounds to target, seconds.
OUTCOMES = {
    "class_pruning": (0.0, 0.002, 18, 210.0),
    "retrain": (0.0, 0.0, 164, 1893.0),
    "fisher": (0.22, 0.014, 121, 1420.0),
    "mask_logit": (0.0, 0.004, 0, 0.4),
    "fine_tune_only": (0.003, 0.001, 16, 190.0),
    "prune_random": (0.001, 0.006, 44, 520.0),
}


def resnet20_layers() -> dict[str, int]:
    layers = {"stem": 16}
    for stage, width in enumerate((16, 32, 64), start=1):
        for block in (1, 2, 3):
            for conv in (1, 2):
                layers[f"stage{stage}_block{block}_conv{conv}"] = width
    return layers


def write_run(
    directory: Path,
    *,
    seed: int = 0,
    dataset: str = "cifar10",
    model: str = "resnet20",
    classes: tuple[int, ...] = (9,),
    methods: tuple[str, ...] = METHODS,
    class_names: tuple[str, ...] = CIFAR10,
    bias: float = 0.1,
    algorithm: str = "fed_sgd",
    audited: bool = True,
    privacy: bool = True,
) -> Path:
    """Writes every file of a finished run into `directory` and returns it."""
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    num_classes = len(class_names)
    _write_config(directory, seed, dataset, model, classes, methods, bias, algorithm)
    _write_metrics(directory, rng, methods)
    results = _results(rng, dataset, model, classes, methods, class_names)
    if privacy:
        results["privacy"] = {
            "epsilon": 2.0,
            "delta": 1e-5,
            "noise_multiplier": 1.37,
            "mechanism": "gaussian",
            "clip": 1.0,
        }
        results["privacy_curve"] = [
            {
                "epsilon": epsilon,
                "r_accuracy": 0.86 - 0.1 / (1 + epsilon),
                "u_accuracy": 0.02 / (1 + epsilon),
                "overlap": 1 - 0.8 / (1 + epsilon),
                "fine_tuned_r_accuracy": 0.88 - 0.01 / (1 + epsilon),
                "fine_tuned_u_accuracy": 0.0,
            }
            for epsilon in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
        ]
    _write(directory / "results.json", results)
    _write_feature_maps(directory, rng, num_classes)
    if audited:
        report = make_audit(rng, classes, methods, num_classes)
        (directory / "audit.json").write_text(report.to_json())
    return directory


def _write(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=1))


def _write_config(
    directory, seed, dataset, model, classes, methods, bias, algorithm
) -> None:
    _write(
        directory / "config.json",
        {
            "config": {
                "seed": seed,
                "phases": ["pretrain", "unlearn", "audit", "report"],
                "data": {"name": dataset, "dir": None},
                "partition": {"kind": "bias", "clients": 100, "bias": bias},
                "model": {"name": model, "norm": "batch"},
                "train": {
                    "algorithm": algorithm,
                    "rounds": 400,
                    "cohort": 25,
                    "local_epochs": 1,
                    "batch_size": 32,
                    "learning_rate": 0.1,
                },
                "unlearn": {"methods": list(methods), "classes": list(classes)},
                "prune": {"rate": 0.05, "scope": "global", "order": "highest"},
                "fine_tune": {"rounds": 200, "target_accuracy": 0.85},
                "audit": {"retrained_seeds": 3},
                "runtime": {"backend": "auto", "dtype": "float32"},
            },
            "versions": {
                "python": "3.11.7",
                "jax": "0.10.2",
                "flax": "0.12.8",
                "fuprune": "0.1.0",
            },
            "commit": "45ba6d2f0c4b7b1a9f0e8d7c6b5a49382716f5e4",
            "command": [
                "python",
                "-m",
                "fuprune.main",
                "--config",
                f"configs/{dataset}_resnet.py",
                "--workdir",
                f"runs/{directory.name}",
                f"--config.seed={seed}",
            ],
        },
    )


def _write_metrics(directory, rng, methods) -> None:
    rows, times = [], []

    def log(phase, round_number, r_accuracy, u_accuracy):
        rows.append(
            {
                "phase": phase,
                "round": round_number,
                "loss": float(-np.log(max(r_accuracy, 1e-3))),
                "accuracy": 0.9 * r_accuracy + 0.1 * u_accuracy,
                "u_accuracy": u_accuracy,
                "r_accuracy": r_accuracy,
            }
        )
        times.append(
            {
                "phase": phase,
                "round": round_number,
                "seconds": 11.5,
                "images_per_second": 275.0,
            }
        )

    for round_number in range(0, 400, 4):
        level = 0.84 * (1 - np.exp(-round_number / 90)) + 0.1
        log("pretrain", round_number, float(level), float(level))
    for method in methods:
        u_accuracy, loss, rounds, _ = OUTCOMES[method]
        start = {"retrain": 0.11, "mask_logit": 0.855}.get(method, 0.21)
        length = max(rounds + 12, 30)
        scale = max(rounds, 1) / 3.2
        for round_number in range(length):
            rise = 1 - np.exp(-round_number / scale)
            level = start + (0.872 - loss - start) * rise + rng.normal(0, 0.004)
            log(f"unlearn/{method}", round_number, float(level), u_accuracy)
    for name, lines in (("metrics.jsonl", rows), ("timings.jsonl", times)):
        text = "".join(json.dumps(row) + "\n" for row in lines)
        (directory / name).write_text(text)


def _confusion(rng, num_classes, classes, r_accuracy, u_accuracy) -> np.ndarray:
    """[U, U] counts of 100 test images per class."""
    matrix = np.zeros((num_classes, num_classes), dtype=np.int64)
    for row in range(num_classes):
        gone = row in classes
        accuracy = u_accuracy if gone else np.clip(rng.normal(r_accuracy, 0.04), 0, 1)
        matrix[row, row] = round(100 * accuracy)
        others = [c for c in range(num_classes) if c != row]
        if u_accuracy == 0:
            others = [c for c in others if c not in classes] or others
        weights = rng.dirichlet(np.full(len(others), 0.4))
        matrix[row, others] += rng.multinomial(100 - matrix[row, row], weights)
    return matrix


def _stage(rng, method, stage, num_classes, classes, r_accuracy, u_accuracy) -> dict:
    matrix = _confusion(rng, num_classes, classes, r_accuracy, u_accuracy)
    per_class = np.diagonal(matrix) / matrix.sum(axis=1)
    rest = [c for c in range(num_classes) if c not in classes]
    return {
        "method": method,
        "stage": stage,
        "u_accuracy": float(per_class[list(classes)].mean()),
        "r_accuracy": float(per_class[rest].mean()),
        "per_class": per_class.tolist(),
        "confusion": matrix.tolist(),
    }


def _results(rng, dataset, model, classes, methods, class_names) -> dict:
    num_classes = len(class_names)
    stages = [_stage(rng, "raw", "raw", num_classes, classes, 0.833, 0.915)]
    rows = []
    for method in methods:
        u_accuracy, loss, rounds, seconds = OUTCOMES[method]
        if method in ("class_pruning", "prune_random"):
            for position, target in enumerate(classes):
                stages.append(
                    _stage(
                        rng,
                        method,
                        f"pruned_{target}",
                        num_classes,
                        classes,
                        0.21 + 0.1 * position,
                        0.0 if position == len(classes) - 1 else 0.02,
                    )
                )
        final = _stage(
            rng, method, "final", num_classes, classes, 0.868 - loss, u_accuracy
        )
        stages.append(final)
        jitter = int(rng.integers(0, 4))
        rows.append(
            {
                "method": method,
                "u_accuracy": final["u_accuracy"],
                "r_accuracy": final["r_accuracy"],
                "rounds": max(rounds + 12, 30),
                "rounds_to_target": None if method == "fisher" else rounds + jitter,
                "seconds": seconds,
                "upload_bytes": 1_081_000 * max(rounds, 1) * 25,
                "speedup": None
                if method in ("fisher", "mask_logit")
                else 164 / (rounds + jitter),
                "error": "The Fisher diagonal is not finite in stem."
                if method == "fisher"
                else None,
                "notes": {},
            }
        )
    layers = resnet20_layers()
    scores, cut, plan = {}, {}, []
    for layer, width in layers.items():
        values = rng.gamma(1.2, 1.0, width) / width
        scores[layer] = values.tolist()
        gone = [int(c) for c in np.flatnonzero(values > 0.17)]
        cut[layer] = gone
        plan.append(
            {
                "layer": layer,
                "channels_before": width,
                "channels_after": width - len(gone),
                "spared": 0,
                "parameters_before": 9 * width * width,
                "parameters_after": 9 * width * (width - len(gone)),
                "flops_before": 18 * width * width * 1024,
                "flops_after": 18 * width * (width - len(gone)) * 1024,
            }
        )
    fields = [key for key in plan[0] if key != "layer"]
    plan.append({"layer": "total"} | {k: sum(row[k] for row in plan) for k in fields})
    cuts = _cuts(classes, scores, cut, plan)
    return {
        "classes": list(classes),
        "class_names": list(class_names),
        "stages": stages,
        "methods": rows,
        "plan": {"class_pruning": cuts[-1]["plan"]},
        "scores": {"class_pruning": scores},
        "cut": {"class_pruning": cut},
        "cuts": {"class_pruning": cuts},
        "target_accuracy": 0.85,
        "model": {"name": model, "num_classes": num_classes},
        "dataset": dataset,
        "feature_maps": {"layer": "stage3_block3_conv2", "most": 41, "least": 7},
    }


def _cuts(classes, scores, cut, plan) -> list[dict]:
    """The cut for each class; each later one takes the last channel of each layer."""
    made = []
    channels = {layer: list(range(len(values))) for layer, values in scores.items()}
    for label in classes:
        made.append(
            {
                "class": label,
                "scores": scores,
                "channels": channels,
                "cut": cut,
                "plan": plan,
            }
        )
        kept = {
            layer: [c for c in ids if c not in cut[layer]]
            for layer, ids in channels.items()
        }
        scores = {
            layer: [scores[layer][channels[layer].index(c)] for c in ids]
            for layer, ids in kept.items()
        }
        channels, cut = kept, {layer: ids[-1:] for layer, ids in kept.items()}
        plan = [
            row
            | {
                "channels_before": row["channels_after"],
                "channels_after": row["channels_after"]
                - len(cut.get(row["layer"], "")),
            }
            for row in plan
        ]
    return made


def _write_feature_maps(directory, rng, num_classes) -> None:
    amount = 8
    across, down = np.meshgrid(np.linspace(-1, 1, 32), np.linspace(-1, 1, 32))
    labels = np.array([9, 9, 0, 1, 3, 5, 7, 8])[:amount] % num_classes
    images = np.zeros((amount, 32, 32, 3), np.uint8)
    for index, label in enumerate(labels):
        blob = np.exp(-((across - 0.1 * label + 0.4) ** 2 + down**2) * 4)
        colour = rng.uniform(0.3, 1.0, 3)
        noise = rng.uniform(0, 40, (32, 32, 1))
        images[index] = np.clip(blob[..., None] * colour * 215 + noise, 0, 255)
    most = rng.uniform(0, 0.15, (amount, 8, 8))
    most[labels == 9, 2:6, 2:6] += 0.8
    np.savez(
        directory / "feature_maps.npz",
        images=images,
        labels=labels.astype(np.int32),
        maps_most=most,
        maps_least=rng.uniform(0, 0.5, (amount, 8, 8)),
    )


def make_audit(rng, classes, methods, num_classes) -> AuditReport:
    """Makes an audit of all methods but retraining, with three retrained seeds."""
    candidates = [name for name in methods if name != "retrain"]

    def values(center: dict[str, float], raw: float, spread: float) -> dict:
        named = {
            name: max(0.0, center.get(name, center["*"]) + rng.normal(0, spread))
            for name in candidates
        }
        return named | {"raw": raw}

    def three(center, spread) -> list[float]:
        return [max(0.0, float(center + rng.normal(0, spread))) for _ in range(3)]

    common = {"confidence": 0.95}
    tests = [
        judge(
            "u_accuracy",
            values({"*": 0.0, "fisher": 0.22}, 0.915, 0.0),
            [0.0, 0.0, 0.0],
            kind="accuracy",
            question="How often does the model still recognise the forgotten class?",
            higher_is="worse",
            resolution=0.004,
            bounds=(0.0, 1.0),
            **common,
        ),
        judge(
            "r_accuracy",
            values({"*": 0.866, "fisher": 0.851}, 0.833, 0.001),
            three(0.868, 0.002),
            kind="accuracy",
            question="How good is the model on the classes it should keep?",
            higher_is="better",
            positive_control=None,
            **common,
        ),
        judge(
            "class_accuracy_kl",
            values({"*": 4e-5, "mask_logit": 3e-3}, 1.2, 1e-6),
            three(5e-5, 1e-5),
            kind="accuracy",
            question=(
                "How far is the distribution of accuracy over classes from retraining?"
            ),
            unit="nats",
            higher_is="worse",
            **common,
        ),
        judge(
            "class_accuracy_difference",
            values({"*": 0.03, "mask_logit": 0.06}, 0.915, 0.003),
            three(0.028, 0.004),
            kind="accuracy",
            question=(
                "In the class that differs most, how far is accuracy from retraining?"
            ),
            higher_is="worse",
            **common,
        ),
        judge(
            "threshold_loss_auc",
            values({"*": 0.51, "mask_logit": 0.56}, 0.59, 0.006),
            three(0.505, 0.008),
            kind="membership",
            question=(
                "How well does a threshold on the loss tell training from test images "
                "of the forgotten class (AUC, 0.5 is guessing)?"
            ),
            higher_is="two_sided",
            **common,
        ),
        judge(
            "threshold_entropy_auc",
            values({"*": 0.52}, 0.52, 0.006),
            three(0.515, 0.01),
            kind="membership",
            question=(
                "How well does a threshold on the entropy tell training from test "
                "images of the forgotten class (AUC, 0.5 is guessing)?"
            ),
            higher_is="two_sided",
            **common,
        ),
        judge(
            "shadow_success_rate",
            values({"*": 0.504}, 0.571, 0.003),
            three(0.502, 0.003),
            kind="shadow",
            question=(
                "How often is an attacker with shadow models right about whether an "
                "image of the forgotten class was trained on (0.5 is guessing)?"
            ),
            higher_is="worse",
            notes=["4 shadow models of the raw model's architecture"],
            **common,
        ),
        judge(
            "likelihood_ratio_online_tpr_at_0.1_percent",
            values({"*": 0.004}, 0.03, 0.001),
            three(0.004, 0.001),
            kind="likelihood_ratio",
            question=(
                "How many training images does a likelihood-ratio attacker (online, "
                "shadow models as references) find at 0.1% false alarms?"
            ),
            higher_is="worse",
            undecidable=(
                "100 non-members cannot resolve 0.1% false alarms; the value is at none"
            ),
            **common,
        ),
        judge(
            "probe_accuracy",
            values(
                {
                    "*": 0.74,
                    "class_pruning": 0.69,
                    "prune_random": 0.70,
                    "mask_logit": 0.9,
                },
                0.905,
                0.004,
            )
            | {"random_init": 0.21},
            three(0.62, 0.012),
            kind="probe",
            question=(
                "How much of the forgotten class does a fresh linear head recover from "
                "the frozen features?"
            ),
            higher_is="worse",
            bounds=(0.0, 1.0),
            **common,
        ),
        judge(
            "relearn_steps",
            {
                name: {"class_pruning": 24.0, "mask_logit": 2.0}.get(name, 14.0)
                for name in candidates
            }
            | {"raw": 2.0},
            [58.0, 64.0, 54.0],
            kind="relearn",
            question="How many training steps until the forgotten class is back?",
            unit="steps",
            higher_is="better",
            resolution=2,
            notes=["back means 0.823 accuracy on the forgotten test images"],
            **common,
        ),
        judge(
            "jensen_shannon",
            values({"*": 0.13, "mask_logit": 0.21}, 0.63, 0.004),
            three(0.12, 0.01),
            kind="distance",
            question=(
                "How far are the answers on forgotten images from retraining "
                "(Jensen-Shannon divergence)?"
            ),
            unit="nats",
            higher_is="worse",
            **common,
        ),
        judge(
            "cka_distance",
            values({"*": 0.16, "mask_logit": 0.22}, 0.22, 0.004),
            three(0.14, 0.012),
            kind="distance",
            question=(
                "How unlike retraining are the layers' activations on forgotten images "
                "(one minus linear CKA, mean over layers)?"
            ),
            unit="distance",
            higher_is="worse",
            **common,
        ),
    ]
    everyone = [*candidates, "raw", *(f"retrained_{i}" for i in range(3))]
    return AuditReport(
        classes=list(classes),
        candidates=candidates,
        tests=tests,
        detail={
            "roc": {
                attack: {name: _roc(rng, name) for name in everyone}
                for attack in ("loss", "likelihood_ratio_online")
            },
            "relearn": {
                "level": 0.823,
                "curves": {name: _relearned(name) for name in everyone},
            },
            "cka": {
                name: {
                    layer: float(np.clip(0.98 - 0.01 * i + rng.normal(0, 0.01), 0, 1))
                    for i, layer in enumerate(resnet20_layers())
                }
                for name in everyone
            },
            "shadow_models": [
                {"members": 500, "member_accuracy": 0.97, "non_member_accuracy": 0.71}
            ]
            * 4,
            "test_images_per_class": [100] * num_classes,
        },
        settings={
            "key": [0, 0],
            "confidence": 0.95,
            "retrained_models": 3,
            "shadow_models": 4,
            "forgotten_training_images": 1000,
            "forgotten_test_images": 100,
        },
    )


def _roc(rng, name) -> dict:
    rates = np.concatenate([[0.0], np.geomspace(1e-3, 1, 60)])
    power = {"raw": 0.75, "mask_logit": 0.85}.get(name, 0.97)
    found = np.clip(rates**power + rng.normal(0, 0.004, rates.size), 0, 1)
    found = np.maximum.accumulate(found)
    found[0], found[-1] = 0.0, 1.0
    return {"false_positives": rates.tolist(), "true_positives": found.tolist()}


def _relearned(name) -> dict:
    steps = list(range(0, 101, 4))
    scale = {"raw": 1.0, "mask_logit": 1.2, "class_pruning": 13.0}.get(name, 8.0)
    if name.startswith("retrained"):
        scale = 32.0 + int(name[-1]) * 3
    accuracy = [0.93 * (1 - float(np.exp(-step / scale))) for step in steps]
    return {"steps": steps, "accuracy": accuracy}
