"""What a run records of the server's step is what the config makes the server do."""

import pytest

from fuprune import config as config_lib
from fuprune.run.assembly import server_step


def step_of(**options):
    config = config_lib.default()
    config_lib.update(config, {f"train.{name}": options[name] for name in options})
    config_lib.validate(config)
    return server_step(config)


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        ({}, ""),
        ({"aggregation": "clipped_mean"}, ""),
        ({"aggregation": "median"}, "train.aggregation=median"),
        ({"aggregation": "trimmed_mean"}, "train.aggregation=trimmed_mean"),
        (
            {"algorithm": "fed_avg", "server_optimizer": "adam"},
            "train.server_optimizer=adam",
        ),
        ({"algorithm": "fed_sgd", "optimizer": "adam"}, "train.optimizer=adam"),
        # A FedAvg client's own optimizer is no business of the server's.
        ({"algorithm": "fed_avg", "optimizer": "adam"}, ""),
    ],
)
def test_a_step_that_is_no_sum_over_clients_is_named(options, obstacle):
    assert step_of(**options).obstacle == obstacle


def test_the_step_of_fed_sgd_is_that_of_its_optimizer():
    step = step_of(
        algorithm="fed_sgd",
        schedule="cosine",
        rounds=4,
        learning_rate=0.2,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-3,
        aggregation="clipped_mean",
        clip_norm=3.0,
    )
    assert step.scale(0) == pytest.approx(-0.2)
    assert step.scale(2) == pytest.approx(-0.1)
    assert (step.momentum, step.nesterov, step.weight_decay) == (0.9, True, 1e-3)
    assert step.clip_norm == 3.0


def test_fed_avg_adds_the_mean_times_the_servers_rate():
    step = step_of(algorithm="fed_avg", server_learning_rate=0.5, momentum=0.9)
    assert step == (0.5, 0.0, False, 0.0, float("inf"), "")
