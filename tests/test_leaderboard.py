"""The leaderboard's page: what is ranked, in which order, and what is drawn."""

from types import SimpleNamespace

import pytest

from fuprune import config as configuration
from fuprune.results import MethodRow
from fuprune.unlearning.methods import METHODS
from tests.loading import load_module


@pytest.mark.parametrize("part", ["tenth", "fiftieth", "clients", "cifar100"])
def test_every_part_is_a_run_of_methods_that_serve_its_request(part):
    _, config = configuration.load_config(f"leaderboard:{part}")
    configuration.validate(config)
    share = {"fiftieth": 50}.get(part, 10)
    assert config.fine_tune.rounds == config.train.rounds // share
    kind = "clients" if part == "clients" else "classes"
    named = config.unlearn.methods.split(",")
    assert "fine_tune_only" in named and len(named) > 8
    assert all(kind in METHODS[name].serves for name in named)


def row(method, u, r, seed=0, images=100, model_bytes=8):
    return MethodRow(
        method, method, seed, u, r, 2, images=images, model_bytes=model_bytes
    )


def test_methods_that_forget_come_first_by_what_they_keep(repository, tmp_path):
    page = load_module(repository / "docs" / "fill_results.py")
    rows = [
        row("fine_tune_only", 0.10, 0.90),
        row("not", 0.01, 0.85),
        row("not", 0.03, 0.87, seed=1, images=300),
        row("class_pruning", 0.0, 0.88, model_bytes=6),
        row("ssd", 0.05, 0.95),
        MethodRow("damp", "damp", error="it stopped"),
    ]
    record = SimpleNamespace(methods=rows)
    ranked = page.ranked([SimpleNamespace(name="a", record=record, audit=None)])
    assert [one.method for one in ranked] == [
        "class_pruning",
        "not",
        "ssd",
        "fine_tune_only",
    ]
    assert ranked[1].seeds == 2 and ranked[1].images == 200
    assert [one.slimmer for one in ranked] == [True, False, False, False]
    table = page.leaderboard(ranked).splitlines()
    assert table[4].startswith("| a | `class_pruning` | 1 | 0.0% | 88.0% | 100 | 12 |")
    assert page.leaderboard([]) == "Not run."
    page.draw_leaderboard(ranked, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
