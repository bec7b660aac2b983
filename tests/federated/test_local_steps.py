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
from fuprune.federated.client import TrainContext, local_sgd, shuffled_positions
from fuprune.federated.cohort import clients_of, for_each_client
from fuprune.federated.local_work import count_images, count_steps
from fuprune.federated.objective import classification
from fuprune.federated.program import Shared
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


@pytest.mark.parametrize("backend", ["loop", "map", "vmap", "shard_map"])
def test_a_bound_that_is_not_reached_changes_no_bit(data, backend):
    """The largest client takes six steps in two epochs; the next bound is reached."""
    whole = one_round(data, backend, local_epochs=2)
    for local_steps in (6, 7, 2**31 - 1):
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


@pytest.mark.parametrize("local_steps", [0, 2, 4])
def test_sums_count_what_was_seen_and_the_weight_all_images(data, local_steps):
    """At a learning rate of zero, every step sees the loss of the server's model."""
    program = local_sgd(
        adapt(MODEL),
        optax.sgd(0.0),
        local_epochs=2,
        local_steps=local_steps,
        batch_size=8,
        max_length=23,
        preprocess=to_float,
        objective=classification(),
    )
    cohort, key = whole_cohort(data), jax.random.key(4)
    variables = tiny_variables(MODEL)
    context = TrainContext(variables, key, jnp.ones(()), None)
    shared = Shared(cohort.images, cohort.labels, context)
    _, sent = for_each_client(program, backend="map")(shared, clients_of(cohort))
    np.testing.assert_array_equal(sent.num_examples, LENGTHS)
    logits = MODEL.apply(variables, to_float(None, cohort.images))
    losses = np.asarray(
        optax.softmax_cross_entropy_with_integer_labels(logits, cohort.labels)
    )
    hits = np.asarray(jnp.argmax(logits, -1) == cohort.labels)
    for client, length in enumerate(LENGTHS):
        rows = np.asarray(cohort.rows)[client]
        batches = []
        for epoch in jax.random.split(jax.random.fold_in(key, client), 2):
            order = np.asarray(shuffled_positions(epoch, length, 24))[:length]
            batches += [rows[order[i : i + 8]] for i in range(0, length, 8)]
        seen = np.array(
            [k for rows in batches[: local_steps or None] for k in rows], int
        )
        assert int(sent.seen[client]) == len(seen)
        assert int(sent.correct[client]) == hits[seen].sum()
        np.testing.assert_allclose(
            sent.loss_sum[client], losses[seen].sum(), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    "work, expected",
    [
        ({}, {"local_epochs": 2, "batch_size": 8}),
        # Also a bound that nobody here reaches: the server of a federation holds
        # stand-ins, and its clients more images than those.
        (
            {"local_steps": 9},
            {"local_epochs": 2, "batch_size": 8, "local_steps": 9},
        ),
    ],
)
def test_a_bound_is_a_part_of_the_task_that_travels(work, expected):
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
    assert program.task is not None and program.task.arguments == expected


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 4), st.integers(0, 30))
def test_counts_agree_with_a_walk_over_the_batches(length, batch, epochs, bound):
    sizes = [
        min(batch, length - start)
        for _ in range(epochs)
        for start in range(0, length, batch)
    ][: bound or None]
    work = dict(batch_size=batch, local_epochs=epochs, local_steps=bound)
    assert count_steps(length, **work) == len(sizes)
    assert count_images(length, **work) == sum(sizes)
    both = count_images(np.array([length, 0]), **work)
    np.testing.assert_array_equal(both, [sum(sizes), 0])
