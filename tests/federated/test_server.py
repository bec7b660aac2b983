"""The algorithms against NumPy twins, and what the server does with bad clients."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import federate, take_clients, whole_cohort
from fuprune.errors import InputError, TooFewClientsError
from fuprune.federated.aggregate import (
    clipped_mean,
    coordinate_median,
    trimmed_mean,
    weighted_mean,
)
from fuprune.federated.batch_norm import LocalBatchNorm
from fuprune.federated.client import shuffled_positions
from fuprune.federated.server import fed_avg, fed_sgd
from fuprune.federated.train import drop_clients, fit, iterate
from tests import reference
from tests.federated.faults import faulty
from tests.tiny import TinyNet, tiny_dataset, tiny_variables


class Linear(nn.Module):
    """Logistic regression behind the zoo's interface."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        """[B, H, W, 1] -> [B, 4]."""
        return nn.Dense(4)(images.reshape(len(images), -1))


@pytest.fixture(scope="module")
def small():
    """Three clients, one of them empty, and the linear model's start."""
    dataset = tiny_dataset(40)
    parts = [np.arange(0, 23), np.array([], int), np.arange(23, 40)]
    variables = Linear().init(jax.random.key(0), jnp.zeros((1, 6, 6, 1)))
    return dataset, parts, federate(dataset, parts), variables


def flat(dataset, part):
    """A client's data for the twins."""
    images = dataset.images[part].reshape(len(part), 36).astype(np.float64) / 255.0
    return images, dataset.labels[part]


def as_arrays(state):
    """The linear model's parameters."""
    dense = state.variables["params"]["Dense_0"]
    return np.asarray(dense["kernel"]), np.asarray(dense["bias"])


@pytest.mark.parametrize("backend", ["loop", "map", "vmap"])
@pytest.mark.parametrize("local_steps", [0, 1, 7, 9])
def test_fed_avg_equals_its_twin(small, backend, local_steps):
    """Two epochs of shuffled mini-batches with momentum, weighted by images.

    The clients have 10 and 8 batches: a bound of 7 ends in the second epoch, and one of
    9 is not reached by the smaller client.
    """
    dataset, parts, data, variables = small
    algorithm = fed_avg(
        Linear(),
        client_optimizer=optax.sgd(0.3, momentum=0.9),
        local_epochs=2,
        local_steps=local_steps,
        batch_size=5,
        backend=backend,
    )
    key = jax.random.key(7)
    state, info = algorithm.round(algorithm.init(variables), whole_cohort(data), key)
    batches, clients = [], []
    for client in (0, 2):
        size = len(parts[client])
        keys = jax.random.split(jax.random.fold_in(key, client), 2)
        order = []
        for epoch_key in keys:
            positions = np.asarray(shuffled_positions(epoch_key, size, 25))[:size]
            order += [positions[i : i + 5] for i in range(0, size, 5)]
        batches.append(order)
        clients.append(flat(dataset, parts[client]))
    expected = reference.fed_avg_round(
        *as_arrays(algorithm.init(variables)),
        clients,
        rate=0.3,
        momentum=0.9,
        batches=batches,
        local_steps=local_steps,
    )
    np.testing.assert_allclose(as_arrays(state)[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(as_arrays(state)[1], expected[1], atol=2e-5)
    assert int(info.participants) == 2
    np.testing.assert_array_equal(info.weights, [23, 0, 17])
    assert float(info.examples) == 40
    assert int(info.seen) == sum(
        len(chosen) for order in batches for chosen in order[: local_steps or None]
    )


@pytest.mark.parametrize("backend", ["loop", "map", "vmap"])
def test_fed_sgd_equals_its_twin(small, backend):
    """The mean over all images of all clients, in pieces of seven."""
    dataset, parts, data, variables = small
    algorithm = fed_sgd(
        Linear(), server_optimizer=optax.sgd(0.5), microbatch=7, backend=backend
    )
    state, _ = algorithm.round(
        algorithm.init(variables), whole_cohort(data), jax.random.key(0)
    )
    expected = reference.fed_sgd_round(
        *as_arrays(algorithm.init(variables)),
        [flat(dataset, part) for part in parts],
        rate=0.5,
    )
    np.testing.assert_allclose(as_arrays(state)[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(as_arrays(state)[1], expected[1], atol=1e-5)


def poisoned(change):
    """An update with every array changed."""
    return lambda sent: sent._replace(update=jax.tree.map(change, sent.update))


def miscounted(count, value):
    return lambda sent: sent._replace(**{count: getattr(sent, count) + value})


FAULTS = {
    "nan": poisoned(lambda x: x * jnp.nan),
    "inf": poisoned(lambda x: x + jnp.inf),
    "huge": poisoned(lambda x: x * 0 + 1e6),
    # Weights are claims, and the server knows the sizes. A count that is no number
    # would spoil the round's own.
    "boast": miscounted("num_examples", 1000),
    **{
        f"{count} nan": miscounted(count, np.nan)
        for count in ("num_examples", "loss_sum", "correct", "seen")
    },
}


def by_client(fault, client=0):
    """The fault of one client only."""

    def spoil(sent, client_id):
        return jax.tree.map(
            lambda x, y: jnp.where(client_id == client, x, y), fault(sent), sent
        )

    return spoil


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "map") for name in FAULTS)]
    + [("nan", backend) for backend in ("loop", "vmap", "shard_map")],
)
def test_a_faulty_client_is_turned_away_and_the_round_goes_on(small, name, backend):
    """The result is that of a round without the client."""
    _, _, data, variables = small
    options = dict(client_optimizer=optax.sgd(0.3), batch_size=5, max_update_norm=1e3)
    spoil = by_client(FAULTS[name])
    with_bad = fed_avg(Linear(), backend=faulty(spoil, backend), **options)
    without = fed_avg(Linear(), backend=backend, **options)
    cohort = whole_cohort(data)
    state, info = with_bad.round(with_bad.init(variables), cohort, jax.random.key(1))
    assert info.rejected.tolist() == [True, False, False]
    assert int(info.participants) == 1
    alone = cohort._replace(lengths=cohort.lengths.at[0].set(0))
    expected, other = without.round(without.init(variables), alone, jax.random.key(1))
    chex.assert_trees_all_close(state, expected, rtol=1e-6)
    sums = "loss accuracy examples seen".split()
    for each in sums:
        np.testing.assert_allclose(getattr(info, each), getattr(other, each), rtol=1e-6)


def test_too_few_usable_clients_stop_the_run_with_a_reason(small):
    """After several cohorts the message says how many and who."""
    _, _, data, variables = small
    algorithm = fed_avg(
        Linear(),
        client_optimizer=optax.sgd(0.1),
        batch_size=5,
        backend=faulty(by_client(FAULTS["nan"])),
    )
    steps = iterate(
        algorithm,
        algorithm.init(variables),
        data,
        key=jax.random.key(0),
        cohort_size=3,
        rounds=2,
        min_participants=2,
    )
    with pytest.raises(TooFewClientsError, match=r"round 1 had 1 usable .*ids \[0\]"):
        next(steps)


def test_dropout_is_the_clients_own_draw():
    """Whether a client drops out does not depend on who else is in the cohort."""
    data = federate(tiny_dataset(100), np.array_split(np.arange(100), 50))
    key = jax.random.key(3)
    both = drop_clients(key, whole_cohort(data), 0.9)
    alone = drop_clients(key, take_clients(data, range(20, 50)), 0.9)
    np.testing.assert_array_equal(both.lengths[20:], alone.lengths)
    assert 0 < np.sum(both.lengths > 0) < 15


@pytest.mark.parametrize(
    "rule", [coordinate_median, trimmed_mean(0.2), clipped_mean(0.5)]
)
def test_robust_rules_hold_where_the_mean_breaks(rule):
    """A fifth of the clients send the opposite of their update, ten times over."""
    dataset = tiny_dataset(400)
    data = federate(dataset, np.array_split(np.arange(400), 10))

    def reversal(sent, client_id):
        factor = jnp.where(client_id < 2, -10.0, 1.0)
        return sent._replace(update=jax.tree.map(lambda x: factor * x, sent.update))

    def final_loss(rule):
        algorithm = fed_avg(
            Linear(),
            client_optimizer=optax.sgd(0.5),
            batch_size=8,
            aggregate=rule,
            backend=faulty(reversal),
        )
        variables = Linear().init(jax.random.key(0), jnp.zeros((1, 6, 6, 1)))
        options = dict(key=jax.random.key(0), cohort_size=10, rounds=8)
        result = fit(algorithm, algorithm.init(variables), data, **options)
        return result.history[-1].metrics["loss"]

    assert final_loss(weighted_mean) > 2.0
    assert final_loss(rule) < 0.7


def test_batch_norm_statistics_are_aggregated_not_forgotten():
    """After a round, the server's are the mean of its clients' own."""
    data = federate(tiny_dataset(64), [np.arange(0, 20), np.arange(20, 64)])
    algorithm = fed_avg(TinyNet(), client_optimizer=optax.sgd(0.0), batch_size=16)
    state, cohort = algorithm.init(tiny_variables()), whole_cohort(data)

    def statistics(*lengths):
        chosen = cohort._replace(lengths=jnp.array(lengths))
        end, _ = algorithm.round(state, chosen, jax.random.key(0))
        return end.variables["batch_stats"]

    expected = jax.tree.map(
        lambda a, b: (20 * a + 44 * b) / 64, statistics(20, 0), statistics(0, 44)
    )
    chex.assert_trees_all_close(statistics(20, 44), expected, rtol=1e-5)


def test_recalibrated_statistics_are_the_datas_own():
    """With frozen weights, they are the mean and variance over all images."""
    dataset = tiny_dataset(64)
    data = federate(dataset, [np.arange(0, 20), np.arange(20, 64)])
    model = TinyNet()
    variables = tiny_variables(model)
    algorithm = fed_avg(
        model, client_optimizer=optax.sgd(0.0), batch_size=16, bn="recalibrate"
    )
    state, _ = algorithm.round(
        algorithm.init(variables), whole_cohort(data), jax.random.key(0)
    )
    kernel = variables["params"]["conv1"]["conv"]["kernel"]
    images = jnp.asarray(dataset.images, jnp.float32) / 255.0
    outputs = jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    stats = state.variables["batch_stats"]["conv1"]["norm"]
    np.testing.assert_allclose(stats["mean"], outputs.mean((0, 1, 2)), atol=1e-5)
    np.testing.assert_allclose(stats["var"], outputs.var((0, 1, 2)), rtol=1e-4)


def test_recalibration_takes_nothing_from_clients_that_were_turned_away():
    """Nor does a round in which all were change the statistics."""
    data = federate(tiny_dataset(64), [np.arange(0, 20), np.arange(20, 64)])
    model, cohort = TinyNet(deep=False), whole_cohort(data)
    options = dict(client_optimizer=optax.sgd(0.0), batch_size=16, bn="recalibrate")
    plain = fed_avg(model, **options)
    start = plain.init(tiny_variables(model))
    alone = cohort._replace(lengths=cohort.lengths.at[0].set(0))
    expected, _ = plain.round(start, alone, jax.random.key(0))
    for fault, end in (
        (by_client(FAULTS["nan"]), expected),
        (lambda sent, client_id: FAULTS["loss_sum nan"](sent), start),
    ):
        strict = fed_avg(model, backend=faulty(fault, "loop"), **options)
        state, _ = strict.round(start, cohort, jax.random.key(0))
        chex.assert_trees_all_close(state, end, rtol=1e-6)


def test_statistics_of_more_clients_than_are_kept_are_refused(small):
    _, _, data, variables = small
    algorithm = fed_avg(Linear(), client_optimizer=optax.sgd(0.1), bn=LocalBatchNorm(2))
    with pytest.raises(ValueError, match="Client 2 .* num_clients=3 or more"):
        algorithm.round(
            algorithm.init(variables), whole_cohort(data), jax.random.key(0)
        )


@pytest.mark.parametrize(
    ("every", "target", "evaluated"),
    [
        (0, None, [4]),
        (3, None, [3, 4]),
        (lambda number: number == 1, None, [1, 4]),
        (1, 0.8, [1, 2, 3]),
    ],
)
def test_fit_evaluates_as_asked_and_stops_at_its_target(
    small, every, target, evaluated
):
    _, _, data, variables = small
    algorithm = fed_avg(Linear(), client_optimizer=optax.sgd(0.1), batch_size=5)
    values = iter([0.1, 0.4, 0.8, 0.9])
    result = fit(
        algorithm,
        algorithm.init(variables),
        data,
        key=jax.random.key(0),
        cohort_size=2,
        rounds=4,
        target_accuracy=target,
        evaluate=lambda variables: {"accuracy": next(values)},
        evaluate_every=every,
    )
    seen = [r.round_number for r in result.history if "accuracy" in r.metrics]
    assert seen == evaluated
    assert result.rounds_to_target == (3 if target else None)
    assert {record.metrics["images"] for record in result.history} <= {23, 17, 40}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(bn="local"), r"bn is 'local', .*LocalBatchNorm\(num_clients"),
        (dict(aggregate="mode"), "aggregate is 'mode', but must be a rule"),
        (dict(local_steps=-1), "local_steps -1, but they must be whole numbers"),
        (dict(local_steps=1.5), "local_steps 1.5, but they must be whole numbers"),
        (dict(local_epochs=0), "local_epochs is 0 .*must be whole numbers, from 1"),
    ],
)
def test_wrong_options_are_refused_with_what_is_allowed(wrong, message):
    with pytest.raises(InputError, match=message):
        fed_avg(Linear(), client_optimizer=optax.sgd(0.1), **wrong)
