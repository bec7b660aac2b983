"""The leaderboard's page: what is ranked, in which order, and what is drawn."""

import pytest

from fuprune import config as configuration
from fuprune.unlearning.methods import METHODS


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
