"""FedEraser: the algorithm against its NumPy twin, its limits and its cost."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import federate, whole_cohort
from fuprune.errors import UnlearnError
from fuprune.federated.server import fed_avg, fed_sgd
from fuprune.unlearning.fed_eraser import (
    Moves,
    Replay,
    calibrated_step,
    calibration_epochs,
)
from fuprune.unlearning.request import ForgetRequest
from fuprune.unlearning.rounds import keep_round
from tests import reference_requests as reference
from tests.tiny import tiny_dataset
from tests.unlearning.small import (
    SmallNet,
    SoftmaxRegression,
    forget_by,
    initial,
    small_data,
    train_and_keep,
)

LINEAR = SoftmaxRegression(num_classes=4)
RATE, EPOCHS = 0.5, 4


@functools.cache
def averaging(epochs):
    """Full-batch local descent, which has no order of batches to agree on."""
    how = dict(client_optimizer=optax.sgd(RATE), batch_size=16, keep_updates=True)
    return fed_avg(LINEAR, local_epochs=epochs, **how)


@pytest.fixture(scope="module")
def federation():
    dataset = tiny_dataset(40)
    return dataset, federate(dataset, np.array_split(np.arange(40), 5))


COHORTS = [(0, 1, 2), (1, 3, 4), (2, 0, 3), (1, 4, 2), (0, 1, 3)]


@pytest.fixture(scope="module")
def trained(federation):
    _, data = federation
    return train_and_keep(averaging(EPOCHS), initial(LINEAR), data, COHORTS)


def erase(trained, data, request, name="fed_eraser", **options):
    variables, kept = trained
    replay = Replay(averaging(calibration_epochs(0.5, EPOCHS)))
    options = {"kept_rounds": kept, "replay": replay, **options}
    return forget_by(name, LINEAR, variables, data, request, **options)


def pair(params):
    head = params["head"]
    return np.float64(head["kernel"]), np.float64(head["bias"])


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_it_follows_the_algorithm_loop_for_loop(federation, trained, variant):
    dataset, data = federation
    variables, kept = trained
    gone, stays = (1, 4), {0, 2, 3}
    result = erase(trained, data, ForgetRequest(clients=gone), variant=variant)
    old_global = [pair(k.variables["params"]) for k in kept]
    old_clients = [
        {
            int(client): tuple(
                base + np.float64(k.updates["head"][part][i])
                for base, part in zip(now, ("kernel", "bias"), strict=True)
            )
            for i, client in enumerate(k.clients)
        }
        for k, now in zip(kept, old_global, strict=True)
    ]
    flat = dataset.images.reshape(40, -1) / 255.0
    parts = np.array_split(np.arange(40), 5)
    clients = {k: (flat[p], dataset.labels[p]) for k, p in enumerate(parts)}
    models = [*old_global, pair(variables["params"])]
    how = dict(epochs=2, rate=RATE, variant=variant)
    expected = reference.fed_eraser(models, old_clients, stays, clients, **how)
    for found, wanted in zip(pair(result.variables["params"]), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


class Killed(Exception):
    pass


class Dying(dict):
    """Checkpoints of a process that is killed after some of them."""

    def __init__(self, writes):
        self.writes, self.written = writes, []

    def __setitem__(self, name, checkpoint):
        super().__setitem__(name, checkpoint)
        self.written.append(name)
        if len(self.written) == self.writes:
            raise Killed


@pytest.mark.parametrize("writes", [1, 3])
def test_a_killed_replay_goes_on_where_it_was(federation, trained, writes):
    _, data = federation
    request = ForgetRequest(clients=(1,))
    kept = Dying(writes)
    with pytest.raises(Killed):
        erase(trained, data, request, checkpoints=kept)
    kept.writes = 0
    resumed = erase(trained, data, request, checkpoints=kept)
    whole = erase(trained, data, request)
    chex.assert_trees_all_equal(resumed.variables, whole.variables)
    assert resumed.notes == whole.notes
    # No round is replayed twice (the first kept one never is), and one model is kept.
    assert kept.written == [f"{number:08d}" for number in range(1, len(COHORTS))]
    assert list(kept) == kept.written[-1:]


def test_uncalibrated_is_the_sum_of_the_recorded_means(federation, trained):
    _, data = federation
    _, kept = trained
    result = erase(
        trained, data, ForgetRequest(clients=(1,)), name="fed_eraser_uncalibrated"
    )
    expected = np.float64(kept[0].variables["params"]["head"]["kernel"])
    for k in kept:
        stays = k.clients != 1
        expected = expected + k.updates["head"]["kernel"][stays].mean(axis=0)
    np.testing.assert_allclose(
        result.variables["params"]["head"]["kernel"], expected, rtol=1e-5, atol=1e-6
    )
    assert result.notes["images"] == 0


def test_cost_is_the_fraction_of_epochs_in_the_kept_rounds(federation):
    _, data = federation
    algorithm, cohorts = averaging(EPOCHS), [range(5)] * 6
    trained = train_and_keep(algorithm, initial(LINEAR), data, cohorts, 2)
    result = erase(trained, data, ForgetRequest(clients=(2,)))
    assert result.notes["kept_rounds"] == 3
    # Four clients stay, of 8 images each; the first kept round trains nobody.
    assert result.notes["images"] == 2 * 32 * calibration_epochs(0.5, EPOCHS)


def test_every_kind_is_replayed_without_its_data(federation, trained):
    _, data = federation
    # Pool image 3 is client 0's; class 2 is everywhere.
    of_class = np.flatnonzero(np.asarray(data.labels) == 2)
    for request, named in ((ForgetRequest(examples=(3,)), [3]), ((2,), of_class)):
        result = erase(trained, data, request)
        chex.assert_tree_all_finite(result.variables)
        images = data.images.at[np.asarray(named)].set(255)
        other = erase(trained, data._replace(images=images), request)
        chex.assert_trees_all_equal(result.variables, other.variables)


def test_a_direction_of_length_zero_moves_nothing():
    recorded, still = np.ones(3), np.zeros(3)
    np.testing.assert_array_equal(calibrated_step(recorded, still), still)
    np.testing.assert_array_equal(calibrated_step(still, recorded), still)
    np.testing.assert_allclose(
        calibrated_step(np.asarray([3.0, 4.0]), np.asarray([0.0, -0.1])), [0.0, -5.0]
    )


def test_fed_sgd_keeps_gradients_as_the_steps_that_they_make():
    """Momentum and weight decay included; statistics of BatchNorm are aggregated."""
    model, data = SmallNet(), small_data()
    rate, momentum, decay = 0.1, 0.9, 0.01
    optimizer = optax.chain(
        optax.add_decayed_weights(decay), optax.sgd(rate, momentum=momentum)
    )
    algorithm = fed_sgd(model, server_optimizer=optimizer, keep_updates=True)
    moves = Moves(lambda number: -rate, momentum, decay)
    variables, kept = train_and_keep(
        algorithm, initial(model), data, [(0, 1, 2), (1, 2, 3)]
    )
    changes = [moves.changes(k)["head"]["kernel"] for k in kept]
    # The first step has no momentum yet: a tenth of what the gradients come to add.
    first = kept[0].variables["params"]["head"]["kernel"]
    mean = changes[0].mean(axis=0)
    np.testing.assert_allclose(
        kept[1].variables["params"]["head"]["kernel"], first + mean / 10, atol=1e-6
    )
    result = forget_by(
        "fed_eraser",
        model,
        variables,
        data,
        ForgetRequest(clients=(1,)),
        kept_rounds=kept,
        replay=Replay(algorithm, moves),
    )
    chex.assert_tree_all_finite(result.variables)
    length = np.linalg.norm(changes[1][1:].mean(axis=0))
    start = first + changes[0][[0, 2]].mean(axis=0)
    moved = result.variables["params"]["head"]["kernel"] - start
    np.testing.assert_allclose(np.linalg.norm(moved), length, rtol=1e-4)
    mean = result.variables["batch_stats"]["conv1"]["norm"]["mean"]
    assert not np.array_equal(
        mean, kept[0].variables["batch_stats"]["conv1"]["norm"]["mean"]
    )


def test_epochs_are_rounded_up():
    assert [calibration_epochs(r, e) for r, e in ((0.5, 10), (0.5, 5), (0.1, 10))] == [
        5,
        3,
        1,
    ]


def test_without_kept_rounds_it_says_how_to_get_them(federation, trained):
    _, data = federation
    with pytest.raises(UnlearnError, match="train.history_interval"):
        erase(trained, data, ForgetRequest(clients=(1,)), kept_rounds=[])


START = initial(LINEAR)


def one_round(keep_updates):
    options = dict(client_optimizer=optax.sgd(0.1), batch_size=4)
    algorithm = fed_avg(LINEAR, keep_updates=keep_updates, **options)
    cohort = whole_cohort(small_data())
    cohort = cohort._replace(lengths=cohort.lengths.at[1].set(0))
    return algorithm.round(algorithm.init(START), cohort, jax.random.key(0))


def test_clients_without_weight_are_not_kept():
    state, info = one_round(True)
    kept = keep_round(7, START, info)
    assert kept.round_number == 7 and kept.clients.tolist() == [0, 2, 3]
    shares = kept.weights / kept.weights.sum()
    trees = map(jax.tree.leaves, (state.variables, kept.variables, kept.updates))
    for new, old, update in zip(*trees, strict=True):
        change = np.tensordot(shares, update, 1)
        np.testing.assert_allclose(change, new - old, atol=1e-6)
    nobody = keep_round(0, START, info._replace(weights=jnp.zeros(4)))
    assert len(nobody.clients) == len(nobody.weights) == 0


def test_a_round_without_updates_is_refused():
    with pytest.raises(ValueError, match="keep_updates=True"):
        keep_round(0, START, one_round(False)[1])
