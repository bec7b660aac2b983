"""The page of results says what the files under results/ say, and no more."""

import json
import re
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import pytest

import fuprune
from fuprune import results
from fuprune.models import zoo
from fuprune.models.fresh import init_variables
from fuprune.run import checkpoint
from tests.loading import load_module


@pytest.fixture
def fill_results(repository):
    return load_module(repository / "docs" / "fill_results.py")


def runs_of(repository):
    return sorted(
        path.parent for path in (repository / "results").glob("*/config.json")
    )


def test_tables_of_the_pages_are_those_of_the_runs(fill_results):
    bodies = fill_results.bodies()
    for page in fill_results.PAGES:
        text = page.read_text()
        assert fill_results.filled(text, bodies) == text, "run docs/fill_results.py"


def test_every_run_is_whole_small_and_from_a_known_commit(repository):
    for run in runs_of(repository):
        record = json.loads((run / "config.json").read_text())
        assert len(record["commit"]) == 40 and record["command"][0] == "python", run
        assert (run / "results.json").exists() or "raw" in run.name, run
        assert (run / "metrics.jsonl").exists(), run
        for path in run.rglob("*"):
            assert path.stat().st_size < 2_000_000, path
            if path.suffix in (".json", ".jsonl"):
                assert "/root/" not in path.read_text(), path


def test_all_runs_are_small_and_in_the_index(repository):
    folder = repository / "results"
    index = (folder / "README.md").read_text()
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    assert sum(sizes) < 25_000_000
    for run in runs_of(repository):
        (line,) = re.findall(rf"^\| `{re.escape(run.name)}` \|.*$", index, re.M)
        for model in run.glob("models/*.safetensors"):
            assert f"`{model.stem}`" in line, model
        assert results.read_provenance(run).command, run


def test_published_logs_are_sums_over_rounds_without_points_of_curves(
    repository, tmp_path
):
    publish_run = load_module(repository / "docs" / "publish_run.py")
    rows = [
        {"phase": "a", "round": 0, "r_accuracy": 0.1},
        {"phase": "a", "round": 1, "images": 3.0, "loss": 2.0},
        {"phase": "b", "round": 1, "images": 5.0},
        {"phase": "a", "round": 2, "images": 4.0, "loss": 1.0, "r_accuracy": 0.2},
        {"phase": "a", "round": 3, "images": 6.0},
    ]
    clocks = [
        {"phase": "a", "unit_seconds": 9.0},
        *({"phase": "a", "round": n, "seconds": 2.0**-n} for n in (1, 2, 3)),
    ]
    publish_run.write_rows(tmp_path / "metrics.jsonl", rows)
    publish_run.write_rows(tmp_path / "timings.jsonl", clocks)
    audit = {"tests": [1], "detail": {"roc": {"loss": {}}, "relearn": {}}}
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    publish_run.thin(tmp_path)
    assert results.read_rows(tmp_path / "metrics.jsonl") == [
        rows[0],
        rows[2],
        rows[3] | {"images": 7.0},
        rows[4],
    ]
    assert results.read_rows(tmp_path / "timings.jsonl") == [
        clocks[0],
        {"phase": "a", "round": 2, "seconds": 0.75},
        clocks[3],
    ]
    audit["detail"].pop("roc")
    assert json.loads((tmp_path / "audit.json").read_text()) == audit


def test_the_report_is_rebuilt_from_the_files_alone(repository, tmp_path):
    runs = [str(run) for run in runs_of(repository)]
    command = [sys.executable, "-m", "fuprune.report", *runs, "--output", str(tmp_path)]
    subprocess.run(command, check=True, cwd=repository)
    page = (tmp_path / "report.html").read_text()
    assert "Table 2" in page and "Beside the paper" in page


@pytest.mark.parametrize("loaded_from", ["", "results/other/models/raw.safetensors"])
def test_a_published_run_has_its_record_and_loadable_models(
    repository, tmp_path, loaded_from
):
    publish_run = load_module(repository / "docs" / "publish_run.py")
    run = tmp_path / "runs" / "mine"
    model = zoo.create("resnet8", num_classes=2, input_shape=(4, 4, 1))
    variables = init_variables(model, jax.random.key(0), jnp.zeros((1, 4, 4, 1)))
    for name in ("raw", "retrain_seed2", "mask_logit", "class_pruning_pruned_1"):
        checkpoint.save_model(run / "models" / name, model, variables)
    (run / "run.lock").write_text("{}")
    (run / "metrics.jsonl").write_text('{"phase": "pretrain", "round": 1}\n')
    config = {"config": {"model": {"load": loaded_from}}}
    (run / "config.json").write_text(json.dumps(config))
    rounds = {"retrain_seed2": 3, "mask_logit": 0}
    methods = [{"name": name, "rounds": number} for name, number in rounds.items()]
    record = {"provenance": config, "methods": methods}
    (run / "results.json").write_text(json.dumps(record))
    stale = tmp_path / "results" / "mine" / "models" / "old.safetensors"
    stale.parent.mkdir(parents=True)
    stale.touch()
    target = publish_run.publish(run, tmp_path / "results")
    written = {str(path.relative_to(target)) for path in target.rglob("*.*")}
    models = {"models/retrain_seed2.safetensors"}
    # A raw model that was loaded is published where it came from.
    models |= set() if loaded_from else {"models/raw.safetensors"}
    assert written == {"config.json", "metrics.jsonl", "results.json", *models}
    _, loaded = fuprune.load(target / "models" / "retrain_seed2.safetensors")
    chex.assert_trees_all_equal(loaded, variables)


def test_every_published_model_can_be_loaded(repository):
    paths = sorted((repository / "results").glob("*/models/*.safetensors"))
    assert paths
    for path in paths:
        if "mobilenetv2" not in str(path):  # needs docs/mobilenet.py to be rebuilt
            fuprune.load(path)
