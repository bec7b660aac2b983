"""Every backend is the same round; nothing depends on who else is in the cohort."""

import gc

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import federate, take_clients, whole_cohort
from fuprune.federated import cohort as iteration
from fuprune.federated.aggregate import coordinate_median
from fuprune.federated.batch_norm import LocalBatchNorm
from fuprune.federated.cohort import resolve_backend
from fuprune.federated.objective import distillation
from fuprune.federated.server import fed_avg, fed_sgd
from tests.tiny import TinyNet, tiny_dataset, tiny_variables

BACKENDS = ("loop", "map", "vmap", "shard_map")
MODEL = TinyNet(deep=False)


@pytest.fixture(scope="module")
def data():
    """Five clients of very different sizes, one of them empty."""
    dataset = tiny_dataset(60)
    cuts = [0, 7, 7, 30, 41, 60]
    order = np.random.default_rng(1).permutation(60)
    return federate(dataset, [order[a:b] for a, b in zip(cuts, cuts[1:], strict=False)])


def average(backend, **options):
    """FedAvg with two local epochs."""
    return fed_avg(
        MODEL,
        client_optimizer=optax.sgd(0.05, momentum=0.9, nesterov=True),
        local_epochs=2,
        batch_size=8,
        backend=backend,
        **options,
    )


def taught():
    """The objective with another initialisation as its teacher."""
    options = dict(temperature=2.0, weight=0.7, masked_classes=(2,))
    return distillation(MODEL, tiny_variables(MODEL, seed=7), **options)


ALGORITHMS = {
    "fed_avg": average,
    "fed_sgd": lambda backend: fed_sgd(
        MODEL,
        server_optimizer=optax.sgd(0.1, momentum=0.9),
        batch_size=10,
        microbatch=8,
        backend=backend,
    ),
    "local_steps": lambda backend: average(backend, local_steps=3),
    "local_bn": lambda backend: average(backend, bn=LocalBatchNorm(5)),
    "recalibrate": lambda backend: average(backend, bn="recalibrate"),
    # Rules that need all updates at once take another way through a round.
    "median": lambda backend: average(backend, aggregate=coordinate_median),
    "taught": lambda backend: average(backend, objective=taught()),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_backend_gives_the_same_rounds(name, data):
    """Two rounds by each backend end in the same state and the same diagnostics."""
    ends = {}
    for backend in BACKENDS:
        algorithm = ALGORITHMS[name](backend)
        state = algorithm.init(tiny_variables(MODEL))
        for number in range(2):
            key = jax.random.fold_in(jax.random.key(3), number)
            state, info = algorithm.round(state, whole_cohort(data), key)
        ends[backend] = (state, info._replace(updates=None))
    for backend in BACKENDS[1:]:
        chex.assert_trees_all_close(ends["loop"], ends[backend], rtol=2e-4, atol=2e-5)


def test_a_clients_update_does_not_depend_on_its_cohort(data):
    """Client 3 alone and client 3 among others send the same update."""
    algorithm = average("map", keep_updates=True)
    state = algorithm.init(tiny_variables(MODEL))
    key = jax.random.key(5)
    _, among = algorithm.round(state, take_clients(data, [0, 3, 4]), key)
    _, alone = algorithm.round(state, take_clients(data, [3]), key)
    chex.assert_trees_all_close(
        jax.tree.map(lambda x: x[1], among.updates),
        jax.tree.map(lambda x: x[0], alone.updates),
        rtol=1e-5,
        atol=1e-6,
    )


def test_padding_never_trains(data):
    """What lies behind a client's length does not matter."""
    cohort = whole_cohort(data)
    column = jnp.arange(cohort.rows.shape[1])
    junk = jnp.where(column < cohort.lengths[:, None], cohort.rows, 17)
    algorithm = average("map")
    state = algorithm.init(tiny_variables(MODEL))
    ends = [
        algorithm.round(state, c, jax.random.key(0))
        for c in (cohort, cohort._replace(rows=junk))
    ]
    chex.assert_trees_all_equal(*ends)


def test_copies_of_a_pool_are_freed_with_it(data):
    """Rounds of several algorithms share them."""
    pool = jnp.array(data.images)
    name = id(pool)
    cohort = whole_cohort(data)._replace(images=pool)
    for _ in range(2):
        algorithm = average("loop")
        state = algorithm.init(tiny_variables(MODEL))
        algorithm.round(state, cohort, jax.random.key(0))
    copies = [place for place in iteration._COPIES if place[0] == name]
    assert len(copies) == min(5, jax.local_device_count())
    del pool, cohort
    gc.collect()
    assert not set(copies) & set(iteration._COPIES)


def test_a_round_of_nobody_leaves_the_state(data):
    """Every client empty: nothing changes, not even momentum."""
    cohort = whole_cohort(data)
    nobody = cohort._replace(lengths=jnp.zeros_like(cohort.lengths))
    for backend in BACKENDS:
        algorithm = average(backend)
        state = algorithm.init(tiny_variables(MODEL))
        after, info = algorithm.round(state, nobody, jax.random.key(0))
        chex.assert_trees_all_equal(state, after)
        assert int(info.participants) == 0


def test_one_compilation_for_all_rounds(data):
    """Rounds of one shape trace the client program once."""
    traces = []

    def preprocess(key, images):
        traces.append(images.shape)
        return images.astype(jnp.float32) / 255.0

    for backend in BACKENDS:
        algorithm = average(backend, preprocess=preprocess)
        state = algorithm.init(tiny_variables(MODEL))
        state, _ = algorithm.round(state, whole_cohort(data), jax.random.key(0))
        traced = len(traces)
        for number in range(3):
            cohort = take_clients(data, np.roll(np.arange(5), number))
            state, _ = algorithm.round(state, cohort, jax.random.key(number))
        assert len(traces) == traced, backend


def test_auto_names_a_backend_and_unknown_names_are_refused():
    """`auto` is never passed on; a typo says what is allowed."""
    assert resolve_backend("auto")[0] in BACKENDS
    assert resolve_backend("auto", loops_are_fast=True, device_count=1)[0] == "map"
    for count, expected in ((1, "map"), (4, "shard_map")):
        found = resolve_backend("auto", platform="tpu", device_count=count)
        assert found == (expected, "map")
    assert resolve_backend("auto", platform="gpu", device_count=1)[0] == "vmap"
    with pytest.raises(ValueError, match="'pmap', but must be one of auto, loop"):
        resolve_backend("pmap")
