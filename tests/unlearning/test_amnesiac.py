"""Amnesiac unlearning: exact where updates do not depend on those taken out."""

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.dataset import Dataset
from fuprune.data.federated import drop_classes, federate, take_clients, whole_cohort
from fuprune.federated.aggregate import clipped_mean, weighted_mean
from fuprune.federated.server import fed_avg, fed_sgd
from fuprune.unlearning import history
from fuprune.unlearning.protocol import UnlearnError
from tests import reference_unlearning as reference
from tests.unlearning.small import SoftmaxRegression, forget_by, initial

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


def train(data, variables, keys, server_rate=1.0):
    algorithm = fed_avg(
        LINEAR,
        client_optimizer=optax.sgd(0.5),
        local_epochs=2,
        batch_size=4,
        server_optimizer=optax.sgd(server_rate),
        keep_updates=True,
    )
    state, store = algorithm.init(variables), history.empty(10**6)
    for key in keys:
        cohort = whole_cohort(data)
        state, info = algorithm.round(state, cohort, key)
        store = history.record(
            store, info, cohort, server=history.ServerStep(server_rate)
        )
    return state.variables, store


def forget(variables, data, store, **options):
    options |= {"history": store}
    return forget_by("amnesiac", LINEAR, variables, data, (2,), **options)


def test_full_history_of_a_linear_model_restores_the_never_seen_model(federation):
    """Its clients share no pixel, so that none feels what the others did.

    The mean over two clients instead of three is a step of 2/3 in the server's eyes.
    """
    data, start = federation
    trained, store = train(data, start, KEYS)
    result = forget(trained, data, store)
    never_seen, _ = train(drop_classes(data, (2,)), start, KEYS, server_rate=2 / 3)
    chex.assert_trees_all_close(result.variables, never_seen, atol=1e-5)
    moved = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), trained, never_seen)
    assert all(float(x) > 0.05 for x in jax.tree.leaves(moved))
    assert result.notes["updates_subtracted"] == 5
    assert result.notes["rounds_affected"] == 5
    assert result.upload_bytes == 0


def test_one_renormalised_round_is_the_round_without_the_client(federation):
    """For any model: the others' updates of one round start from the same point."""
    data, start = federation
    trained, store = train(data, start, KEYS[:1])
    never_seen, _ = train(drop_classes(data, (2,)), start, KEYS[:1])
    result = forget(trained, data, store, renormalise=True)
    chex.assert_trees_all_close(result.variables, never_seen, atol=1e-6)
    plain = forget(trained, data, store)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(plain.variables, never_seen, atol=1e-3)


def test_a_class_that_everybody_holds_takes_the_model_back_to_its_start(federation):
    data, start = federation
    mixed = data._replace(labels=jnp.arange(24, dtype=jnp.int32) % 3)
    trained, store = train(mixed, start, KEYS[:3])
    for renormalise in (False, True):
        result = forget(trained, mixed, store, renormalise=renormalise)
        chex.assert_trees_all_close(result.variables, start, atol=1e-5)
        assert result.notes["updates_subtracted"] == 9


@hypothesis.settings(max_examples=2, deadline=None)
@hypothesis.example(
    momentum=0.9,
    nesterov=True,
    weight_decay=0.05,
    scheduled=True,
    renormalise=False,
    rule="mean",
    batch_size=3,
)
@hypothesis.given(
    momentum=st.sampled_from([0.0, 0.9]),
    nesterov=st.booleans(),
    weight_decay=st.sampled_from([0.0, 0.05]),
    scheduled=st.booleans(),
    renormalise=st.booleans(),
    rule=st.sampled_from(["mean", "clipped_mean"]),
    batch_size=st.sampled_from([None, 3]),
)
def test_what_is_left_is_what_the_server_makes_of_the_others(
    federation, renormalise, rule, batch_size, scheduled, **step
):
    """FedSGD with uneven clients: momentum, decay and schedule are undone, too."""
    data, start = federation
    data = data._replace(lengths=jnp.array([8, 2, 5]))
    rate = optax.cosine_decay_schedule(0.3, 6) if scheduled else lambda number: 0.3
    algorithm = fed_sgd(
        LINEAR,
        server_optimizer=optax.chain(
            optax.add_decayed_weights(step["weight_decay"]),
            optax.sgd(rate, momentum=step["momentum"], nesterov=step["nesterov"]),
        ),
        batch_size=batch_size,
        aggregate=clipped_mean(0.2) if rule == "clipped_mean" else weighted_mean,
        keep_updates=True,
    )
    server = history.ServerStep(lambda number: -float(rate(number)), **step)
    if rule == "clipped_mean":
        server = server._replace(clip_norm=0.2)
    state, store, uploads = algorithm.init(start), history.empty(10**6), []
    for number in range(6):
        # The client with the class comes and goes, so that its traces must fade.
        cohort = take_clients(data, [0, 1, 2] if number % 3 == 0 else [0, 1])
        state, info = algorithm.round(state, cohort, jax.random.key(number))
        store = history.record(store, info, cohort, server=server)
        drawn = np.minimum(np.asarray(cohort.lengths), batch_size or 99)
        (update,) = jax.tree.leaves(jax.device_get(info.updates))
        uploads.append((update, drawn, np.asarray(cohort.clients)))
    options = dict(
        rates=[float(rate(number)) for number in range(6)],
        clip_norm=0.2 if rule == "clipped_mean" else np.inf,
        **step,
    )
    (begin,) = jax.tree.leaves(start)
    (end,) = jax.tree.leaves(state.variables)
    everyone = reference.replay_server(begin, uploads, without=(), **options)
    np.testing.assert_allclose(end, everyone, atol=1e-5)
    expected = reference.replay_server(
        begin, uploads, without=(2,), renormalise=renormalise, **options
    )
    result = forget(state.variables, data, store, renormalise=renormalise)
    (left,) = jax.tree.leaves(result.variables)
    np.testing.assert_allclose(left, expected, atol=1e-5)
    assert np.max(np.abs(left - end)) > 1e-3


@pytest.mark.parametrize(
    "obstacle", ["train.aggregation=median", "train.optimizer=adam"]
)
def test_a_server_that_does_not_add_updates_up_is_refused(federation, obstacle):
    data, start = federation
    trained, store = train(data, start, KEYS[:1])
    with pytest.raises(UnlearnError, match=f"under {obstacle}.*clipped_mean"):
        server = store.server._replace(obstacle=obstacle)
        forget(trained, data, store._replace(server=server))


def test_notes_show_what_the_history_cost_and_lost(federation):
    data, start = federation
    trained, store = train(data, start, KEYS[:2])
    notes = forget(trained, data, store._replace(dropped=4)).notes
    assert notes["history_bytes"] == 6 * 4 * 16 * 3
    assert notes["history_limit"] == 10**6
    assert notes["updates_recorded"] == 6 and notes["updates_dropped"] == 4


def test_without_a_history_the_method_stops(federation):
    data, start = federation
    # The second was too small for a single round.
    for store, limit in ((None, 0), (history.empty(10), 10)):
        with pytest.raises(UnlearnError, match=f"train.history_bytes above {limit}"):
            forget(start, data, store)
