"""What every part of a running experiment has at hand, and what it asks of it.

A `Run` holds the config and the open files; models, outcomes of finished units, keys
and evaluations are looked up through it.
"""

import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune import config as configuration
from fuprune.config import ConfigError
from fuprune.federated.cohort import resolve_backend
from fuprune.federated.evaluate import Evaluation, make_evaluator
from fuprune.run import assembly, checkpoint, ledger, logs, processes
from fuprune.run import machine as runtime
from fuprune.unlearning.protocol import Stage


class StopRequested(Exception):
    """SIGTERM came; everything worth keeping is saved."""


class Run(NamedTuple):
    """What every unit of a run has at hand."""

    config: Any
    workdir: Path
    runtime: runtime.Runtime
    federation: assembly.Federation
    classes: tuple[int, ...]
    key: jax.Array
    metrics: logs.MetricsLog
    timings: logs.TimingsLog
    board: logs.TensorBoardLog | None
    progress: logs.Progress
    stop: threading.Event


def measure(this: Run, name: str, stage: Stage) -> dict[str, Any]:
    """A row of results.json: what a model does on the test split."""
    evaluation = evaluator(this, stage.model)(stage.variables)
    return {
        "method": name,
        "stage": stage.name,
        **accuracies(evaluation, this.classes),
        "per_class": [float(x) for x in np.nan_to_num(evaluation.per_class)],
        "confusion": evaluation.confusion.tolist(),
    }


def accuracies(evaluation: Evaluation, classes) -> dict[str, float]:
    """Accuracy on everything, on the forgotten classes and on the rest."""
    return {
        "accuracy": evaluation.accuracy,
        "u_accuracy": evaluation.accuracy_on(classes),
        "r_accuracy": evaluation.accuracy_without(classes),
        "test_loss": evaluation.loss if np.isfinite(evaluation.loss) else 1e30,
    }


def evaluator(this: Run, model):
    """Evaluation of a model on the run's test split."""
    return make_evaluator(
        model,
        this.federation.test,
        num_classes=this.federation.num_classes,
        preprocess=this.federation.prepare,
        mesh=this.runtime.mesh if backend_of(this) == "shard_map" else None,
    )


def backend_of(this: Run) -> str:
    """How this run iterates over clients."""
    return resolve_backend(
        this.runtime.backend, loops_are_fast=this.runtime.conv == "onednn"
    )[0]


def target_accuracy(this: Run) -> float | None:
    """R-set accuracy that counts rounds; None if there is no target."""
    wanted = this.config.fine_tune.target_accuracy
    if wanted >= 0:
        return wanted or None
    return outcome_of(this, "pretrain")["stages"][-1]["r_accuracy"]


def outcome_of(this: Run, unit: str) -> dict[str, Any]:
    """What a finished unit left in the ledger."""
    done = ledger.finished(this.workdir, unit)
    if done is None:
        phase = unit.split("/")[0]
        raise ConfigError(
            f"phases is {this.config.phases!r}, but {unit} has not been run in "
            f"{this.workdir}; add {phase} to phases."
        )
    return done["outcome"]


def load_model(this: Run, name: str, phase: str):
    """A model that an earlier phase of the run saved."""
    path = this.workdir / "models" / name
    if not path.exists():
        raise ConfigError(
            f"phases is {this.config.phases!r}, but there is no model {path}; add "
            f"{phase} to phases."
        )
    return checkpoint.load(
        path, conv=this.runtime.conv, dtype=assembly.compute_dtype(this.config)
    )


def key_for(this: Run, purpose: str) -> jax.Array:
    """The key that one purpose, by name, uses in this run."""
    return jax.random.fold_in(this.key, ledger.seed_of(purpose))


class UnlearnUnit(NamedTuple):
    """One method with one seed."""

    name: str  # of the unit: the method, with the seed's number behind it
    method: str
    seed: int


def unlearn_units(config) -> list[UnlearnUnit]:
    """The methods of a config in their order, with as many seeds as it asks for."""
    units = []
    for method in configuration.methods(config):
        seeds = {
            "retrain": config.unlearn.retrain_seeds,
            "class_pruning": config.fine_tune.seeds,
        }.get(method, 1)
        for seed in range(seeds):
            suffix = f"_seed{seed + 1}" if seed else ""
            units.append(UnlearnUnit(f"{method}{suffix}", method, seed))
    return units


def privacy_units(config) -> list[tuple[str, float]]:
    """The units that make the points of accuracy against epsilon, and their epsilons.

    A fine-tuned point is another unit, so that it can be asked for later.
    """
    suffix = "_fine_tuned" if config.privacy.curve_fine_tune else ""
    return [
        (f"privacy_curve/{epsilon:g}{suffix}", epsilon)
        for epsilon in sorted(configuration.privacy_curve(config))
    ]


def stopping(this: Run) -> bool:
    """Whether SIGTERM has come to any process of the run; all of them ask together."""
    return processes.any_process(this.stop.is_set())
