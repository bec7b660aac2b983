"""What a unit's clock counts as a method's own work."""

from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from fuprune.federated.server import fed_sgd
from fuprune.federated.train import FitResult
from fuprune.run import steps
from fuprune.unlearning import class_pruning
from fuprune.unlearning.methods import METHODS
from tests.tiny import TinyNet, tiny_variables
from tests.unlearning.small import small_data


@pytest.mark.parametrize("surgery", ["compact", "mask"])
def test_own_time_is_capture_scoring_and_surgery_and_not_training(monkeypatch, surgery):
    now = [0.0]

    def lasting(function, seconds):
        def longer(*arguments, **options):
            now[0] += seconds
            return function(*arguments, **options)

        return longer

    def train_unit(this, name, model, variables, data, budget, **options):
        now[0] += 1000
        state = fed_sgd(model, server_optimizer=optax.sgd(0.1)).init(variables)
        return FitResult(state, [], None)

    for name, seconds in {"collect": 1, "score_channels": 10, surgery: 100}.items():
        longer = lasting(getattr(class_pruning, name), seconds)
        monkeypatch.setattr(class_pruning, name, longer)
    monkeypatch.setattr(steps, "train_unit", train_unit)
    monkeypatch.setattr(steps.time, "monotonic", lambda: now[0])
    rows = []
    clock = lambda unit, **row: rows.append({"phase": unit, **row})  # noqa: E731
    run = SimpleNamespace(store=SimpleNamespace(clock=clock))
    watch = steps._Stopwatch(run, "unlearn/class_pruning")
    model = TinyNet()
    METHODS["class_pruning"](
        model,
        tiny_variables(model),
        small_data(),
        (1,),
        key=jax.random.key(0),
        fine_tune=steps._fine_tune(run, "unlearn/class_pruning", None, watch),
        num_classes=4,
        rate=0.3,
        surgery=surgery,
    )
    now[0] += 5  # after the training
    watch.log()
    assert [row["own_seconds"] for row in rows] == [111, 5]
    assert np.all([row["phase"] == "unlearn/class_pruning" for row in rows])
