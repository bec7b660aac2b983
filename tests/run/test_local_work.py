"""What a config says about local work is what clients are made to do."""

import numpy as np
import pytest

from fuprune import config as config_lib
from fuprune.run import build
from fuprune.run.data import load_data
from fuprune.run.machine import Runtime
from tests.settings import quickstart

RUNTIME = Runtime(backend="loop")


@pytest.fixture
def made(monkeypatch):
    """Keyword arguments that `fed_avg` was called with."""
    calls = []
    monkeypatch.setattr(build, "fed_avg", lambda model, **o: calls.append(o) or o)
    return calls


def setting(**values):
    config = quickstart()
    config_lib.update(config, {f"train.{name}": values[name] for name in values})
    config_lib.validate(config)
    return build.Setup(config, load_data(config, RUNTIME), "loop")


@pytest.mark.parametrize(
    "epochs, steps, rate, expected",
    [
        (2, 0, 1.0, (2, 0)),
        (2, 5, 1.0, (2, 5)),
        # Both are shares: of whichever of the two a client comes to first.
        (3, 5, 0.5, (2, 3)),
        (1, 1, 0.1, (1, 1)),
        (4, 0, 0.5, (2, 0)),
    ],
)
def test_a_replay_does_its_share_of_epochs_and_steps(
    made, epochs, steps, rate, expected
):
    setup = setting(algorithm="fed_avg", local_epochs=epochs, local_steps=steps)
    setup.config.fed_eraser.rate = rate
    build.make_replay(setup, None)
    assert [(o["local_epochs"], o["local_steps"]) for o in made] == [expected]


@pytest.mark.parametrize("server, follows", [("adam", True), ("sgd", False)])
def test_adam_at_the_server_follows_the_schedule(made, server, follows):
    """The size of the clients' updates means nothing to it; to SGD it is everything."""
    setup = setting(
        algorithm="fed_avg",
        learning_rate=0.2,
        server_optimizer=server,
        server_learning_rate=0.5,
    )
    # Fine-tuning from a quarter of training's rate, along a cosine of four rounds.
    build.make_algorithm(setup, None, build.Schedule(4, 0.05, "cosine"))
    optimizer = made[0]["server_optimizer"]
    gradient = {"a": np.ones(3, np.float32)}
    state, lengths = optimizer.init(gradient), []
    for _ in range(4):
        update, state = optimizer.update(gradient, state, gradient)
        lengths.append(-float(update["a"][0]))
    cosine = (1 + np.cos(np.pi * np.arange(4) / 4)) / 2
    expected = 0.5 * cosine / 4 if follows else np.full(4, 0.5)
    np.testing.assert_allclose(lengths, expected, rtol=1e-4)
