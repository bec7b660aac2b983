"""SISA: the schedule, what is trained again, and the ensemble as a network."""

import hashlib
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.errors import UnlearnError
from fuprune.models.ensemble import Ensemble, member_of
from fuprune.models.zoo import create
from fuprune.surgery.rebuild import from_spec, spec
from fuprune.unlearning.request import ForgetRequest, remaining
from fuprune.unlearning.sisa import deal_clients, slice_rounds, train_shards
from tests import reference_requests as reference
from tests.unlearning.small import (
    SoftmaxRegression,
    forget_by,
    initial,
    make_train,
    small_data,
)

LINEAR = SoftmaxRegression(num_classes=4)
SEED = 5
KEY = jax.random.key(SEED)
CLIENTS, SHARDS, SLICES, ROUNDS = 8, 2, 2, 3
train = make_train(optax.sgd(0.2))  # by the engine of every other training


@pytest.fixture(scope="module")
def data():
    return small_data(48, CLIENTS)


@pytest.fixture(scope="module")
def groups():
    return deal_clients(jax.random.split(KEY)[0], CLIENTS, SHARDS)


def forget(data, request, **options):
    given = (
        dict(train=train, train_rounds=ROUNDS, shards=SHARDS, slices=SLICES) | options
    )
    return forget_by("sisa", LINEAR, initial(LINEAR), data, request, seed=SEED, **given)


@pytest.mark.parametrize("rounds, slices", [(20, 1), (20, 4), (10, 3), (3, 2), (1, 5)])
def test_slices_follow_the_papers_schedule(rounds, slices):
    found = slice_rounds(rounds, slices)
    assert list(found) == reference.slice_epochs(rounds, slices)
    # With as many points in each slice, the cost is that of E epochs on the shard.
    cost = sum(n * (i + 1) / slices for i, n in enumerate(found))
    assert abs(cost - rounds) <= slices


@pytest.mark.parametrize("place", [0, -1])
def test_only_slices_from_the_request_on_are_trained_again(data, groups, place):
    """A client of the first slice costs its shard two slices, one of the last one."""
    client = groups[0][place]
    kept = {}
    result = forget(data, ForgetRequest(clients=(client,)), checkpoints=kept)
    retrained = SLICES if place == 0 else 1
    assert result.notes["shards_retrained"] == 1
    assert result.notes["slices_retrained"] == retrained
    assert len(kept) == SHARDS * SLICES + retrained
    assert all(len(name) == hashlib.sha256().digest_size * 2 for name in kept)
    before, after = (stage.variables for stage in result.stages)
    chex.assert_trees_all_equal(member_of(before, 1), member_of(after, 1))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(member_of(before, 0), member_of(after, 0))


def test_forgetting_is_exactly_training_on_what_remains(data, groups):
    request = ForgetRequest(examples=(3, 17))
    result = forget(data, request)
    left, schedule = remaining(data, request), slice_rounds(ROUNDS, SLICES)
    key = jax.random.split(KEY)[1]
    scratch, _ = train_shards(LINEAR, left, groups, schedule, train, {}, key)
    chex.assert_trees_all_equal(result.variables, scratch)


def test_kept_checkpoints_are_found_again_and_change_nothing(data):
    kept, request = {}, ForgetRequest(clients=(2,))
    first = forget(data, request, checkpoints=kept)

    def never(*arguments):
        raise AssertionError("trained again")

    again = forget(data, request, checkpoints=kept, train=never)
    chex.assert_trees_all_equal(first.variables, again.variables)
    assert first.notes == again.notes


def test_for_a_class_nothing_is_saved(data):
    result = forget(data, (1,))
    assert result.notes["slices_retrained"] == SHARDS * SLICES
    assert 0 < result.notes["share_of_training"] < 1  # there are fewer images


def test_ensemble_averages_probabilities_or_counts_votes():
    answers = jnp.log(
        jnp.asarray([[[0.6, 0.4, 0.0]], [[0.6, 0.4, 0.0]], [[0.0, 1.0, 0.0]]]) + 1e-9
    )
    mean = jnp.exp(Ensemble(LINEAR, 3).combine(answers))
    np.testing.assert_allclose(mean, [[0.4, 0.6, 0.0]], atol=1e-5)
    votes = jnp.exp(Ensemble(LINEAR, 3, "votes").combine(answers))
    np.testing.assert_allclose(votes, [[0.6, 0.4, 0.0]], atol=1e-5)


def test_ensemble_is_rebuilt_from_plain_data():
    member = create("resnet8", num_classes=4, input_shape=(8, 8, 1))
    model = Ensemble(member, 3, "votes")
    found = json.loads(json.dumps(spec(model)))
    assert from_spec(found) == model
    for change in ({"size": 0}, {"size": 10**9}, {"vote": 3}, {"vote": "king"}):
        with pytest.raises(ValueError):
            from_spec({**found, **change})


def test_bad_input_is_refused_in_one_line(data):
    with pytest.raises(ValueError, match="sisa.shards is 9, but must be 1 to 8"):
        forget(data, ForgetRequest(clients=(0,)), shards=9)
    with pytest.raises(UnlearnError, match="own ensemble"):
        forget(data, ForgetRequest(clients=(0,)), train=None)
