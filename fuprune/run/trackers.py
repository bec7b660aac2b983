"""Rows of metrics.jsonl for TensorBoard, MLflow and Weights & Biases.

Each function returns a `Tracker`: a function for `on_row`, and one that ends it. A
metric is called `phase/name`. The packages are extras and are imported here only.
"""

import math
import numbers
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fuprune.errors import FupruneError

Row = Mapping[str, Any]
EXPERIMENT = "fuprune"  # what runs belong to in an MLflow store


class Tracker(NamedTuple):
    """What follows a run."""

    on_row: Callable[[Row], None]
    close: Callable[[], None]


def metrics_of(row: Row) -> dict[str, float]:
    """The finite numbers of a row, each under `phase/name`."""
    return {
        f"{row.get('phase', 'run')}/{name}": float(value)
        for name, value in row.items()
        if name != "round"
        and isinstance(value, numbers.Real)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


def tensorboard(directory: str | Path) -> Tracker:
    """Writes an event file in a directory, one curve per phase and metric.

    Raises:
      FupruneError: tensorboardX is not installed.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise _missing("tensorboard", "tensorboardX") from error
    writer = SummaryWriter(str(directory))

    def on_row(row: Row) -> None:
        for name, value in metrics_of(row).items():
            writer.add_scalar(name, value, int(row.get("round", 0)))

    return Tracker(on_row, writer.close)


def mlflow(uri: str, *, name: str, parameters: Mapping[str, Any]) -> Tracker:
    """Sends rows to an MLflow store, at sqlite:///mlflow.db or http://host:5000.

    `parameters` are shown beside the run, such as the flat configuration.

    Raises:
      FupruneError: mlflow is not installed.
    """
    try:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise _missing("mlflow") from error
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(EXPERIMENT)
    home = found.experiment_id if found else client.create_experiment(EXPERIMENT)
    run = client.create_run(home, run_name=name).info.run_id
    told = [Param(key, str(value)) for key, value in parameters.items()]
    for start in range(0, len(told), 100):  # as many as a store takes at once
        client.log_batch(run, params=told[start : start + 100])

    def on_row(row: Row) -> None:
        step, now = int(row.get("round", 0)), int(1000 * time.time())
        found = metrics_of(row).items()
        client.log_batch(run, [Metric(key, value, now, step) for key, value in found])

    return Tracker(on_row, lambda: client.set_terminated(run))


def wandb(
    project: str, *, name: str, parameters: Mapping[str, Any], directory: str | Path
) -> Tracker:
    """Sends rows to Weights & Biases; WANDB_MODE=offline keeps them on the disk.

    Every phase has a round of its own as its horizontal axis, because phases count
    from 1. The package writes in a process of its own: its file is whole when the
    program has ended, which may be a moment after `close`.

    Raises:
      FupruneError: wandb is not installed.
    """
    try:
        import wandb as package
    except ImportError as error:
        raise _missing("wandb") from error
    run = package.init(
        project=project, name=name, config=dict(parameters), dir=str(directory)
    )
    phases: set[str] = set()

    def on_row(row: Row) -> None:
        phase = str(row.get("phase", "run"))
        # Before its first row, or the service would plot it by a counter of its own.
        if phase not in phases:
            phases.add(phase)
            run.define_metric(f"{phase}/*", step_metric=f"{phase}/round")
        run.log({**metrics_of(row), f"{phase}/round": int(row.get("round", 0))})

    return Tracker(on_row, run.finish)


def _missing(extra: str, package: str = "") -> FupruneError:
    return FupruneError(
        f"runtime.{extra} is set, but {package or extra} is not installed: "
        f"pip install 'fuprune[{extra}]'."
    )
