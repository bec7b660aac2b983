"""Amnesiac unlearning: exact where updates do not depend on those taken out."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.dataset import Dataset
from fuprune.data.federated import drop_classes, federate
from fuprune.errors import UnlearnError
from fuprune.federated.aggregate import clipped_mean, coordinate_median, weighted_mean
from fuprune.federated.server import fed_avg, fed_sgd, follow
from fuprune.unlearning.rounds import Server
from tests import reference_unlearning as reference
from tests.unlearning.small import SoftmaxRegression, forget_by, initial, train_and_keep

LINEAR = SoftmaxRegression(num_classes=3, use_bias=False)
KEYS = [jax.random.key(number) for number in range(5)]


@pytest.fixture(scope="module")
def federation():
    """Three clients of eight images; the last holds class 2 and pixels of its own."""
    generator = np.random.default_rng(0)
    images = generator.integers(50, 250, (24, 4, 4, 1)).astype(np.uint8)
    images[:16, 2:] = 0
    images[16:, :2] = 0
    labels = np.array([0, 1] * 8 + [2] * 8, np.int32)
    parts = [np.arange(0, 8), np.arange(8, 16), np.arange(16, 24)]
    return federate(Dataset(images, labels), parts), initial(LINEAR, (4, 4, 1))


def train(data, variables, keys, server_optimizer=None, aggregate=weighted_mean):
    """The trained variables, and options of the method."""
    server_optimizer = server_optimizer or optax.sgd(1.0)
    algorithm = fed_avg(
        LINEAR,
        client_optimizer=optax.sgd(0.5),
        local_epochs=2,
        batch_size=4,
        server_optimizer=server_optimizer,
        aggregate=aggregate,
        keep_updates=True,
    )
    cohorts = [range(data.num_clients)] * len(keys)
    trained, rounds = train_and_keep(algorithm, variables, data, cohorts, keys=keys)
    server = Server(follow(server_optimizer), aggregate)
    return trained, dict(kept_rounds=rounds, server=server)


def forget(variables, data, kept, **options):
    return forget_by("amnesiac", LINEAR, variables, data, (2,), **kept, **options)


def test_all_rounds_of_a_linear_model_restore_the_never_seen_model(federation):
    """Its clients share no pixel, so that none feels what the others did.

    The mean over two clients instead of three is a step of 2/3 in the server's eyes.
    """
    data, start = federation
    trained, kept = train(data, start, KEYS)
    result = forget(trained, data, kept)
    never_seen, _ = train(drop_classes(data, (2,)), start, KEYS, optax.sgd(2 / 3))
    chex.assert_trees_all_close(result.variables, never_seen, atol=1e-5)
    moved = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), trained, never_seen)
    assert all(float(x) > 0.05 for x in jax.tree.leaves(moved))
    assert result.notes == {
        "updates_recorded": 15,
        "updates_subtracted": 5,
        "rounds_affected": 5,
    }
    assert result.upload_bytes == 0


def test_a_robust_rule_sees_the_other_clients_alone(federation):
    data, start = federation
    optimizer = optax.sgd(1.0, momentum=0.9)
    trained, kept = train(data, start, KEYS, optimizer, coordinate_median)
    result = forget(trained, data, kept, renormalise=True)
    (weights,) = jax.tree.leaves(start)
    trace = 0.0
    for one in kept["kept_rounds"]:
        (updates,) = jax.tree.leaves(one.updates)
        trace = np.median(updates[:2], axis=0) + 0.9 * trace
        weights = weights + trace
    (left,) = jax.tree.leaves(result.variables)
    np.testing.assert_allclose(left, weights, atol=1e-5)


def test_a_training_that_nothing_was_taken_from_stays_bitwise(federation):
    data, start = federation
    trained, kept = train(data, start, KEYS[:2])
    kept["kept_rounds"] = [
        one._replace(
            clients=one.clients[:2],
            weights=one.weights[:2],
            updates=jax.tree.map(lambda x: x[:2], one.updates),
        )
        for one in kept["kept_rounds"]
    ]
    result = forget(trained, data, kept)
    chex.assert_trees_all_equal(result.variables, trained)
    assert result.notes["rounds_affected"] == 0


@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay", "scheduled", "renormalise", "clip", "batch"),
    [
        (0.9, True, 0.05, True, False, np.inf, 3),
        (0.9, False, 0.0, False, True, 0.2, None),
        (0.0, False, 0.05, True, False, 0.2, 3),
    ],
)
def test_what_is_left_is_what_the_server_makes_of_the_others(
    federation, momentum, nesterov, decay, scheduled, renormalise, clip, batch
):
    """FedSGD with uneven clients: momentum, decay and schedule are done again, too."""
    data, start = federation
    data = data._replace(lengths=jnp.array([8, 2, 5]))
    rate = optax.cosine_decay_schedule(0.3, 6) if scheduled else lambda number: 0.3
    step = dict(momentum=momentum, nesterov=nesterov)
    optimizer = optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, **step))
    rule = clipped_mean(clip) if np.isfinite(clip) else weighted_mean
    how = dict(server_optimizer=optimizer, batch_size=batch, aggregate=rule)
    algorithm = fed_sgd(LINEAR, keep_updates=True, **how)
    # The client with the class comes and goes, so that its traces must fade.
    cohorts = [[0, 1, 2], [0, 1], [0, 1]] * 2
    trained, rounds = train_and_keep(algorithm, start, data, cohorts)
    uploads = [(jax.tree.leaves(k.updates)[0], k.weights, k.clients) for k in rounds]
    options = dict(rates=[float(rate(number)) for number in range(6)], clip_norm=clip)
    options |= dict(step, weight_decay=decay)
    (begin,), (end,) = map(jax.tree.leaves, (start, trained))
    everyone = reference.replay_server(begin, uploads, without=(), **options)
    np.testing.assert_allclose(end, everyone, atol=1e-5)
    options["renormalise"] = renormalise
    expected = reference.replay_server(begin, uploads, without=(2,), **options)
    kept = dict(kept_rounds=rounds, server=Server(optimizer, rule))
    result = forget(trained, data, kept, renormalise=renormalise)
    (left,) = jax.tree.leaves(result.variables)
    np.testing.assert_allclose(left, expected, atol=1e-5)
    assert np.max(np.abs(left - end)) > 1e-3


@pytest.mark.parametrize(
    ("which", "said"), [([], "none was kept"), ([0, 2], "round 2 was not kept")]
)
def test_without_all_rounds_the_method_stops(federation, which, said):
    data, start = federation
    trained, kept = train(data, start, KEYS[:3])
    kept["kept_rounds"] = [kept["kept_rounds"][number] for number in which]
    with pytest.raises(UnlearnError, match=f"{said}; .*train.history_interval=1"):
        forget(trained, data, kept)
