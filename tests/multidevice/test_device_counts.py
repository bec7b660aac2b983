"""One result, whatever the number of devices: rounds, statistics, evaluation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fuprune.data.federated import federate, sample_cohort
from fuprune.federated import sharded
from fuprune.federated.aggregate import coordinate_median
from fuprune.federated.sharded import AXIS, make_client_mesh
from tests.multidevice import rounds

# Sums over devices are taken in another order; everything else is the same.
CLOSE = dict(rtol=2e-4, atol=2e-5)


def mesh_of(number):
    return make_client_mesh(jax.devices()[:number])


@pytest.fixture(scope="module")
def data():
    return federate(rounds.train_set(), rounds.parts())


# What is computed, and how close sums in another order stay.
COMPUTED = {
    "fed_avg": (
        lambda data, **on: rounds.train(rounds.averaging(**on), data),
        CLOSE,
    ),
    "fed_sgd": (
        lambda data, **on: rounds.train(rounds.gradients(**on), data),
        CLOSE,
    ),
    "statistics": (rounds.statistics, dict(rtol=1e-5, atol=1e-6)),
    "fisher": (rounds.fisher, dict(rtol=1e-4, atol=1e-7)),
    "evaluation": (
        lambda data, backend=None, mesh=None: rounds.evaluation(mesh),
        dict(rtol=1e-6),
    ),
}


@pytest.fixture(scope="module")
def expected(data):
    """By `lax.map` on one device, without any mesh."""
    return {
        name: compute(data, backend="map") for name, (compute, _) in COMPUTED.items()
    }


def on(data, mesh, spec):
    """The same clients with the images placed on a mesh; rows padded to divide it."""
    extra = -data.images.shape[0] % mesh.size
    pad = lambda x: jnp.pad(x, ((0, extra),) + ((0, 0),) * (x.ndim - 1))  # noqa: E731
    return data._replace(
        images=jax.device_put(pad(data.images), NamedSharding(mesh, spec)),
        labels=jax.device_put(pad(data.labels), NamedSharding(mesh, P())),
    )


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, 4) for name in COMPUTED),
        *(("fed_avg", n) for n in (1, 2, 8)),
    ],
)
def test_the_result_is_the_same_on_any_number_of_devices(name, number, data, expected):
    compute, close = COMPUTED[name]
    found = compute(data, backend="shard_map", mesh=mesh_of(number))
    chex.assert_trees_all_close(found, expected[name], **close)


def test_a_rule_that_needs_all_updates_is_the_same_on_four_devices(data):
    ends = [
        rounds.train(rounds.averaging(aggregate=coordinate_median, **where), data)
        for where in (
            dict(backend="map"),
            dict(backend="shard_map", mesh=mesh_of(4)),
        )
    ]
    chex.assert_trees_all_close(*ends, **CLOSE)


@pytest.mark.parametrize("number", (2, 8))
def test_images_split_over_devices_train_the_same(number, data, expected):
    """Every device holds its part of the pool; a cohort's images are exchanged."""
    mesh = mesh_of(number)
    split = on(data, mesh, P(AXIS))
    shards = split.images.addressable_shards
    assert {shard.data.shape[0] for shard in shards} == {
        split.images.shape[0] // number
    }
    algorithm = rounds.averaging(backend="shard_map", mesh=mesh)
    chex.assert_trees_all_close(
        rounds.train(algorithm, split), expected["fed_avg"], **CLOSE
    )


def test_a_small_exchange_takes_several_turns_and_changes_nothing(
    data, expected, monkeypatch
):
    """Room for two clients a device: seven clients come in two blocks of four."""
    row_bytes = data.max_length * int(np.prod(data.images.shape[1:]))
    monkeypatch.setattr(sharded, "EXCHANGE_BYTES", 4 * row_bytes)
    mesh = mesh_of(2)
    split = on(data, mesh, P(AXIS))
    algorithm = rounds.averaging(backend="shard_map", mesh=mesh)
    chex.assert_trees_all_close(
        rounds.train(algorithm, split), expected["fed_avg"], **CLOSE
    )


def test_a_state_that_lives_on_one_device_moves_to_the_mesh(data, expected):
    """A model cut on the host is committed to a device; a round takes it anyway."""
    mesh = mesh_of(4)
    algorithm = rounds.averaging(backend="shard_map", mesh=mesh)
    init = algorithm.init
    elsewhere = algorithm._replace(
        init=lambda variables: jax.device_put(init(variables), jax.devices()[3])
    )
    chex.assert_trees_all_close(
        rounds.train(elsewhere, data), expected["fed_avg"], **CLOSE
    )


def test_the_same_clients_are_drawn_on_any_number_of_devices():
    """Of so many clients that they are not permuted but drawn one by one."""
    data = federate(rounds.train_set(), [np.arange(k, k + 3) for k in range(80)])
    expected = sample_cohort(jax.random.key(0), data, 5)
    for number in (1, 2, 4, 8):
        spread = jax.device_put(data, NamedSharding(mesh_of(number), P()))
        chosen = sample_cohort(jax.random.key(0), spread, 5)
        np.testing.assert_array_equal(chosen.clients, expected.clients)
        np.testing.assert_array_equal(chosen.rows, expected.rows)
