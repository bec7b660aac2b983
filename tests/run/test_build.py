"""What a run says of its length before it has begun."""

import pytest

from fuprune import config as config_lib
from fuprune import results
from fuprune.results import MethodRow, RunRecord, StageRow
from fuprune.run import build
from fuprune.run.build import Schedule
from fuprune.run.store import Store


def planned(workdir, methods, **values):
    config = config_lib.default()
    config.phases = "pretrain,unlearn"
    config.train.rounds, config.fine_tune.rounds = 100, 7
    config.unlearn.retrain_seeds = 2
    config.unlearn.methods = methods
    config_lib.update(config, values)
    return build.rounds_left(config, build.unlearn_units(config), Store(workdir))


def test_retraining_counts_as_training_and_a_loaded_model_does_not(tmp_path):
    assert planned(tmp_path, "class_pruning") == 100 + 7
    assert planned(tmp_path, "class_pruning,retrain") == 100 + 7 + 2 * 100
    assert planned(tmp_path, "class_pruning", **{"model.load": "models/raw"}) == 7


def names(methods, **values):
    config = config_lib.default()
    config.unlearn.methods = methods
    config_lib.update(config, values)
    return [(unit.name, unit.seed) for unit in build.unlearn_units(config)]


def test_several_runs_can_share_the_retraining(tmp_path):
    first = names("retrain", **{"unlearn.retrain_seeds": 3})
    rest = {"unlearn.retrain_first": 4, "unlearn.retrain_seeds": 2}
    assert first + names("retrain", **rest) == [
        ("retrain", 0),
        ("retrain_seed2", 1),
        ("retrain_seed3", 2),
        ("retrain_seed4", 3),
        ("retrain_seed5", 4),
    ]


def test_the_methods_that_are_named_have_several_seeds(tmp_path):
    twice = {"fine_tune.seeds": 2}
    methods = "class_pruning,relabel"
    pruned = [("class_pruning", 0), ("class_pruning_seed2", 1)]
    relabelled = [("relabel", 0), ("relabel_seed2", 1)]
    assert names(methods, **twice) == [*pruned, relabelled[0]]
    twice["fine_tune.seeded"] = "relabel"
    assert names(methods, **twice) == [pruned[0], *relabelled]


def test_what_is_finished_counts_no_more(tmp_path):
    done = RunRecord(stages=[StageRow("raw", "raw")], methods=[MethodRow("retrain")])
    (tmp_path / "results.json").write_text(results.dumps(done))
    assert planned(tmp_path, "class_pruning,retrain") == 7 + 100
    assert planned(tmp_path, "retrain", **{"unlearn.retrain_seeds": 1}) == 0


def learning_rates(rounds, kind, warmup):
    rate = Schedule(rounds, 0.1, kind, warmup).by_round()
    return [float(rate(number)) for number in range(rounds)]


@pytest.mark.parametrize(("rounds", "warmup"), [(1, 1), (2, 2), (3, 20)])
def test_a_warm_up_longer_than_the_rounds_ends_with_them(rounds, warmup):
    """Budgets are cut after the config was checked, by a short retraining for one."""
    expected = [0.1 * (n + 1) / rounds for n in range(rounds)]
    assert learning_rates(rounds, "warmup_cosine", warmup) == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [0, 1, 3, 6])
def test_warm_up_never_starts_at_rate_zero(warmup):
    """A first round at rate 0 would be a round for nothing."""
    ramp = learning_rates(7, "warmup_cosine", warmup)[: warmup + 1]
    expected = [0.1 * (n + 1) / (warmup + 1) for n in range(warmup + 1)]
    assert ramp == pytest.approx(expected)
