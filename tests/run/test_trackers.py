"""Rows arrive in MLflow and Weights & Biases, both without any network."""

import json
import sys

import pytest

from fuprune import config
from fuprune.errors import FupruneError
from fuprune.run import trackers
from tests.integration import command
from tests.settings import quickstart

ROWS = [
    {"phase": "pretrain", "round": 1, "loss": 2.0, "converged": False},
    {"phase": "pretrain", "round": 2, "loss": 1.0, "accuracy": float("nan")},
    {"phase": "unlearn/class_pruning", "round": 1, "loss": 0.5, "note": "cut"},
]


def test_metrics_are_the_finite_numbers_of_a_row():
    assert [trackers.metrics_of(row) for row in ROWS] == [
        {"pretrain/loss": 2.0},
        {"pretrain/loss": 1.0},
        {"unlearn/class_pruning/loss": 0.5},
    ]


def test_tensorboard_gets_the_numbers_of_a_row(tmp_path):
    pytest.importorskip("tensorboardX")
    tracker = trackers.tensorboard(tmp_path)
    row = {"phase": "pretrain", "round": 3, "loss": 0.5, "bad": float("nan")}
    tracker.on_row(row)
    tracker.close()
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"pretrain/loss" in data and b"bad" not in data


def test_tensorboard_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(FupruneError, match=r"pip install 'fuprune\[tensorboard\]'"):
        trackers.tensorboard(tmp_path)


@pytest.mark.slow
def test_mlflow_store_holds_the_rows(tmp_path):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    values = config.flatten(quickstart())
    tracker = trackers.mlflow(uri, name="a", parameters=values)
    for row in ROWS:
        tracker.on_row(row)
    tracker.close()
    client = MlflowClient(uri)
    home = client.get_experiment_by_name("fuprune")
    assert home is not None
    (run,) = client.search_runs([home.experiment_id])
    assert run.data.params == {key: str(value) for key, value in values.items()}
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "pretrain/loss")
    assert [(point.step, point.value) for point in history] == [(1, 2.0), (2, 1.0)]
    assert run.data.metrics["unlearn/class_pruning/loss"] == 0.5


def test_wandb_keeps_the_rows_offline(tmp_path, monkeypatch):
    import wandb as package

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = trackers.wandb(
        "fuprune", name="a", parameters={"train.rounds": 2}, directory=tmp_path
    )
    for row in ROWS:
        tracker.on_row(row)
    tracker.close()
    # Its service process writes on after the run is finished, and ending it,
    # as a program that ends does, waits for that.
    package.teardown()
    (stored,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = stored.read_bytes()
    assert b"pretrain/loss" in content and b"unlearn/class_pruning/loss" in content


@pytest.mark.slow
def test_a_whole_run_is_followed_by_both_offline(tmp_path, monkeypatch):
    """Every row of metrics.jsonl with a number arrives, in the order of its phase."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    workdir = tmp_path / "run"
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    command.finish(
        workdir,
        "--config.train.rounds=2",
        "--config.fine_tune.rounds=1",
        f"--config.runtime.mlflow={uri}",
        "--config.runtime.wandb=fuprune",
    )
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    expected: dict[str, list] = {}
    for row in map(json.loads, lines):
        for name, value in trackers.metrics_of(row).items():
            expected.setdefault(name, []).append((row.get("round", 0), value))
    assert "pretrain/loss" in expected and "unlearn/class_pruning/loss" in expected
    client = MlflowClient(uri)
    home = client.get_experiment_by_name("fuprune")
    assert home is not None
    (run,) = client.search_runs([home.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.rounds"] == "2"
    for name, points in expected.items():
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted((x.step, x.value) for x in history) == sorted(points), name
    (stored,) = workdir.rglob("run-*.wandb")
    content = stored.read_bytes()
    assert all(name.encode() in content for name in expected)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_missing_package_is_named_with_its_extra(monkeypatch, name):
    for module in (name, "mlflow.entities"):
        monkeypatch.setitem(sys.modules, module, None)
    options = {"directory": "."} if name == "wandb" else {}
    with pytest.raises(FupruneError, match=rf"pip install 'fuprune\[{name}\]'"):
        getattr(trackers, name)("x", name="a", parameters={}, **options)
