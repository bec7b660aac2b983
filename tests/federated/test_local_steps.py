"""FedAvg with a bound on local steps: what it changes, and what it does not."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuprune.data.federated import federate, whole_cohort
from fuprune.data.preprocess import to_float
from fuprune.federated.client import local_sgd
from fuprune.federated.local_work import count_steps
from fuprune.federated.objective import classification
from fuprune.federated.server import fed_avg
from fuprune.models.adapt import adapt
from tests.tiny import TinyNet, tiny_dataset, tiny_variables

MODEL = TinyNet(deep=False, norm="group", width=8)
LENGTHS = (7, 0, 23)


@pytest.fixture(scope="module")
def data():
    """Three clients of one, no and three batches of eight."""
    cuts = np.cumsum([0, *LENGTHS])
    parts = [np.arange(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    return federate(tiny_dataset(cuts[-1]), parts)


def one_round(data, backend="map", **work):
    algorithm = fed_avg(
        MODEL,
        client_optimizer=optax.sgd(0.05, momentum=0.9),
        batch_size=8,
        backend=backend,
        keep_updates=True,
        **work,
    )
    state = algorithm.init(tiny_variables(MODEL))
    return algorithm.round(state, whole_cohort(data), jax.random.key(4))


@pytest.mark.parametrize("backend", ["loop", "map", "vmap"])
def test_a_bound_that_is_not_reached_changes_no_bit(data, backend):
    """The largest client takes six steps in two epochs; the next bound is reached."""
    whole = one_round(data, backend, local_epochs=2)
    for local_steps in (6, 2**31 - 1):
        bounded = one_round(data, backend, local_epochs=2, local_steps=local_steps)
        chex.assert_trees_all_equal(whole, bounded)
    _, fewer = one_round(data, backend, local_epochs=2, local_steps=5)
    assert int(fewer.seen) == 2 * 7 + 23 + 16
    moved = jax.tree.map(
        lambda a, b: jnp.max(jnp.abs(a - b).reshape(3, -1), axis=1),
        whole[1].updates,
        fewer.updates,
    )
    moved = np.max(jax.tree.leaves(moved), axis=0)
    # Client 0 has two batches in all, client 2 one more than the bound. A program with
    # another loop may round differently.
    assert moved[:2].max() < 1e-6 and moved[2] > 1e-4


@pytest.mark.parametrize("work", [{}, {"local_steps": 9}])
def test_a_bound_is_a_part_of_the_task_that_travels(work):
    """Also one that nobody reaches here: the real clients have more images."""
    program = local_sgd(
        adapt(MODEL),
        optax.sgd(0.1),
        local_epochs=2,
        batch_size=8,
        max_length=4,
        preprocess=to_float,
        objective=classification(),
        **work,
    )
    assert program.task is not None
    assert program.task.arguments == {"local_epochs": 2, "batch_size": 8, **work}


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 4), st.integers(0, 30))
def test_counts_agree_with_a_walk_over_the_batches(length, batch, epochs, bound):
    sizes = [
        min(batch, length - start)
        for _ in range(epochs)
        for start in range(0, length, batch)
    ][: bound or None]
    work = dict(batch_size=batch, local_epochs=epochs, local_steps=bound)
    assert count_steps(length, **work) == len(sizes)
