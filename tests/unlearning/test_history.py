"""The store of updates: complete, bounded, and itself again after a checkpoint."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import take_clients, whole_cohort
from fuprune.federated.server import fed_avg, fed_sgd
from fuprune.unlearning import history
from fuprune.unlearning.protocol import tree_bytes
from tests.unlearning.small import SoftmaxRegression, initial, small_data

MODEL = SoftmaxRegression(num_classes=4)
BYTES = 4 * (36 * 4 + 4)


def run(algorithm, data, variables, rounds, max_bytes=10**7, **options):
    """Train, recording every round; (final state, history)."""
    state, store = algorithm.init(variables), history.empty(max_bytes)
    for number in range(rounds):
        cohort = take_clients(data, [number % 4, (number + 1) % 4, (number + 2) % 4])
        state, info = algorithm.round(state, cohort, jax.random.key(number))
        store = history.record(store, info, cohort, **options)
    return state, store


@pytest.fixture(scope="module")
def federation():
    return small_data(), initial(MODEL)


def averaging(**options):
    return fed_avg(
        MODEL,
        client_optimizer=optax.sgd(0.1),
        batch_size=4,
        keep_updates=True,
        **options,
    )


@pytest.mark.parametrize(
    "algorithm, scale",
    [
        (averaging(), 1.0),
        (averaging(server_optimizer=optax.sgd(0.5)), 0.5),
        (
            fed_sgd(
                MODEL,
                server_optimizer=optax.sgd(0.2),
                keep_updates=True,
            ),
            -0.2,
        ),
    ],
    ids=["fed_avg", "server_rate", "fed_sgd"],
)
def test_contributions_add_up_to_the_whole_training(federation, algorithm, scale):
    data, variables = federation
    server = history.ServerStep(scale)
    state, store = run(algorithm, data, variables, 3, server=server)
    assert len(store.entries) == 9 and store.dropped == 0 and store.steps == 3
    total = jax.tree.map(
        lambda *x: scale * sum(x), *(e.contribution for e in store.entries)
    )
    change = jax.tree.map(jnp.subtract, state.variables["params"], variables["params"])
    chex.assert_trees_all_close(total, change, atol=1e-5)


def test_entries_say_who_held_what_and_when(federation):
    data, variables = federation
    _, store = run(averaging(), data, variables, 2)
    assert [(e.round_number, e.client) for e in store.entries] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    labels = np.asarray(data.labels)
    for entry in store.entries:
        row = np.asarray(data.rows[entry.client, : data.lengths[entry.client]])
        assert entry.classes == tuple(sorted(set(labels[row].tolist())))
    for number in (1, 2):
        shares = [e.share for e in store.entries if e.round_number == number]
        assert sum(shares) == pytest.approx(1.0)


def test_bytes_are_bounded_and_whole_rounds_go_first(federation):
    data, variables = federation
    _, store = run(averaging(), data, variables, 4, max_bytes=7 * BYTES)
    assert store.used_bytes == 6 * BYTES <= store.max_bytes
    assert store.used_bytes == sum(tree_bytes(e.contribution) for e in store.entries)
    assert {e.round_number for e in store.entries} == {3, 4}
    assert store.dropped == 6


def test_a_bound_below_one_round_keeps_nothing(federation):
    data, variables = federation
    _, store = run(averaging(), data, variables, 2, max_bytes=BYTES)
    assert store.entries == () and store.used_bytes == 0 and store.dropped == 6


def test_clients_without_weight_leave_no_entry(federation):
    data, variables = federation
    algorithm = averaging()
    cohort = whole_cohort(data)
    cohort = cohort._replace(lengths=cohort.lengths.at[1].set(0))
    _, info = algorithm.round(algorithm.init(variables), cohort, jax.random.key(0))
    store = history.record(history.empty(10**7), info, cohort)
    assert [e.client for e in store.entries] == [0, 2, 3]
    idle = info._replace(weights=jnp.zeros(4))
    nobody = history.record(history.empty(10**7), idle, cohort)
    assert nobody.entries == () and nobody.steps == 0
    few = info._replace(weights=jnp.array([1.0, 0.0, 0.0, 3.0]))
    store = history.record(history.empty(10**7), few, cohort)
    assert [(e.client, e.share) for e in store.entries] == [(0, 0.25), (3, 0.75)]


def test_a_clipped_update_of_length_zero_is_no_division(federation):
    """A client without data sends zeros; warnings are errors here."""
    data, variables = federation
    algorithm = averaging()
    cohort = whole_cohort(data)
    cohort = cohort._replace(lengths=cohort.lengths.at[1].set(0))
    _, info = algorithm.round(algorithm.init(variables), cohort, jax.random.key(0))
    server = history.ServerStep(clip_norm=1e-3)
    store = history.record(history.empty(10**7), info, cohort, server=server)
    for entry in store.entries:
        norm = float(optax.tree.norm(entry.contribution))
        assert norm == pytest.approx(1e-3 * entry.share, rel=1e-4)


def test_arrays_give_the_same_history_back(federation):
    data, variables = federation
    server = history.ServerStep(lambda number: -float(number), 0.9, True, 1e-3)
    server = server._replace(obstacle="adam")
    _, store = run(averaging(), data, variables, 3, max_bytes=7 * BYTES, server=server)
    arrays = history.as_arrays(store)
    assert all(isinstance(a, np.ndarray) and a.dtype != object for a in arrays.values())
    back = history.from_arrays(arrays, variables["params"])
    step = back.server
    assert step.momentum == 0.9 and step.nesterov and step.obstacle == "adam"
    assert [e.scale for e in back.entries] == [-1.0] * 3 + [-2.0] * 3
    assert back._replace(entries=()) == store._replace(entries=())
    for old, new in zip(store.entries, back.entries, strict=True):
        assert old._replace(contribution=0) == new._replace(contribution=0)
        chex.assert_trees_all_equal(old.contribution, new.contribution)
    nothing = history.empty(5)
    arrays = history.as_arrays(nothing)
    assert history.from_arrays(arrays, variables["params"]) == nothing


def test_arrays_of_another_model_are_refused(federation):
    data, variables = federation
    _, store = run(averaging(), data, variables, 1)
    other = initial(SoftmaxRegression(num_classes=3))["params"]
    with pytest.raises(ValueError, match="another model or damaged"):
        history.from_arrays(history.as_arrays(store), other)
    with pytest.raises(ValueError, match="say nothing of themselves"):
        history.from_arrays({"rounds": np.zeros(3)}, variables["params"])


def test_a_round_without_updates_is_refused(federation):
    data, variables = federation
    algorithm = fed_avg(MODEL, client_optimizer=optax.sgd(0.1), batch_size=4)
    cohort = whole_cohort(data)
    _, info = algorithm.round(algorithm.init(variables), cohort, jax.random.key(0))
    with pytest.raises(ValueError, match="keep_updates=True"):
        history.record(history.empty(100), info, cohort)
    with pytest.raises(ValueError, match="max_bytes is 0"):
        history.empty(0)
