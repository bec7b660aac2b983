"""The page of results says what the files under results/ say, and no more."""

import json
import subprocess
import sys

import pytest

import fuprune
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


def test_the_report_is_rebuilt_from_the_files_alone(repository, tmp_path):
    runs = [str(run) for run in runs_of(repository)]
    command = [sys.executable, "-m", "fuprune.report", *runs, "--output", str(tmp_path)]
    subprocess.run(command, check=True, cwd=repository)
    page = (tmp_path / "report.html").read_text()
    assert "Table 2" in page and "Beside the paper" in page


def test_every_published_model_can_be_loaded(repository):
    paths = sorted((repository / "results").glob("*/models/*.safetensors"))
    assert paths
    for path in paths:
        if "mobilenetv2" not in str(path):  # needs docs/mobilenet.py to be rebuilt
            fuprune.load(path)
