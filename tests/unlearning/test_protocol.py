"""One contract for every way to forget."""

import inspect
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import keep_classes
from fuprune.federated.server import fed_avg
from fuprune.unlearning.controls import mask_logit
from fuprune.unlearning.fed_eraser import Replay
from fuprune.unlearning.job import UnlearnResult, recovery_key
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.regrow import regrow
from fuprune.unlearning.request import ForgetRequest, remaining
from tests.unlearning.small import (
    SmallNet,
    forget_by,
    held_by,
    initial,
    make_fine_tune,
    make_train,
    poisoned,
    remembering,
    small_data,
    train_and_keep,
)

MODEL = SmallNet()
KEY = jax.random.key(7)
FINE_TUNE = make_fine_tune()
OPTIONS = {
    "fisher": dict(chunk=8),
    "influence": dict(iterations=5, damping=1.0),
    "ascent": dict(rounds=1),
    "class_pruning": dict(rate=0.3, num_classes=4),
    "prune_random": dict(rate=0.3),
    "prune_lowest": dict(rate=0.3),
    "prune_then_drop_row": dict(rate=0.3),
    "prune_relabel": dict(rate=0.3),
    "sisa": dict(shards=2, slices=1, train=make_train()),
    "delete": dict(rounds=1),
    "ssd": dict(alpha=0.2),
    "salun": dict(rounds=1),
    "fed_osd": dict(rounds=1),
    "unsir": dict(noise_steps=2, impair_steps=2),
}
REQUESTS = {
    "classes": ForgetRequest(classes=(1, 3)),
    "clients": ForgetRequest(clients=(1,)),
    "examples": ForgetRequest(examples=(9, 10, 22)),
}


def first_request(name) -> ForgetRequest:
    """A request of the first kind that the method serves."""
    return REQUESTS[METHODS[name].serves[0]]


@pytest.fixture(scope="module")
def trained():
    return small_data(), initial(MODEL)


@pytest.fixture(scope="module")
def updates(trained):
    """Two rounds as the trainer keeps them: options of methods that need them."""
    data, variables = trained
    algorithm = fed_avg(
        MODEL, client_optimizer=optax.sgd(0.05), batch_size=8, keep_updates=True
    )
    _, kept = train_and_keep(algorithm, variables, data, [range(4)] * 2)
    replayed = dict(kept_rounds=kept, replay=Replay(algorithm))
    return {
        "amnesiac": dict(kept_rounds=kept),
        "fed_eraser": replayed,
        "fed_eraser_uncalibrated": replayed,
    }


def forget(name, data, variables, updates, fine_tune=FINE_TUNE, request=None, **given):
    given = {**OPTIONS.get(name, {}), **updates.get(name, {}), **given}
    given |= {"seed": 7, "fine_tune": fine_tune}
    request = first_request(name) if request is None else request
    return forget_by(name, MODEL, variables, data, request, **given)


@pytest.fixture(scope="module")
def outcomes(trained, updates):
    """`outcome(name) -> (result, calls of fine_tune)`, each method run once."""
    data, variables = trained
    kept = {}

    def outcome(name):
        if name not in kept:
            calls = []

            def fine_tune(*arguments, **own):
                calls.append(arguments)
                return FINE_TUNE(*arguments, **own)

            kept[name] = forget(name, data, variables, updates, fine_tune), calls
        return kept[name]

    return outcome


@pytest.mark.parametrize("name", METHODS)
def test_result_is_a_model_of_all_classes(name, trained, outcomes):
    _, variables = trained
    before = jax.tree.map(np.array, variables)
    result, _ = outcomes(name)
    assert isinstance(result, UnlearnResult)
    chex.assert_tree_all_finite(result.variables)
    logits = result.model.apply(result.variables, jnp.zeros((2, 6, 6, 1)))
    assert logits.shape == (2, 4)
    assert (result.fit is not None) == METHODS[name].fine_tunes
    if result.fit is not None:
        assert int(result.fit.state.round_number) == 1
    assert result.upload_bytes >= 0
    json.dumps(dict(result.notes))
    assert len({stage.name for stage in result.stages}) == len(result.stages)
    chex.assert_trees_all_equal(before, jax.tree.map(np.array, variables))


@pytest.mark.parametrize("name", METHODS)
def test_same_key_gives_the_same_model(name, trained, updates, outcomes):
    data, variables = trained
    first, _ = outcomes(name)
    again = forget(name, data, variables, updates)
    assert again.model == first.model
    chex.assert_trees_all_equal(again.variables, first.variables)
    assert dict(again.notes) == dict(first.notes)


@pytest.mark.parametrize("name", METHODS)
def test_fine_tuning_gets_what_remains_under_one_key(name, trained, outcomes):
    _, calls = outcomes(name)
    if not METHODS[name].fine_tunes:
        assert not calls
        return
    ((_, _, given, key),) = calls
    left = remaining(trained[0], first_request(name))
    assert (held_by(given) == held_by(left)) == (not METHODS[name].trains_on_forgotten)
    # Relabelled images are under other labels, so no row has a forgotten class.
    if METHODS[name].serves[0] == "classes":
        labels = np.asarray(given.labels)
        assert set(labels[sorted(set().union(*held_by(given)))].tolist()) == {0, 2}
    assert jnp.array_equal(
        jax.random.key_data(key), jax.random.key_data(recovery_key(KEY))
    )


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if not method.reads_forgotten]
)
def test_forgotten_images_make_no_difference(name, trained, updates, outcomes):
    data, variables = trained
    clean, _ = outcomes(name)
    other = forget(name, poisoned(data, first_request(name)), variables, updates)
    chex.assert_trees_all_equal(clean.variables, other.variables)


@pytest.mark.parametrize(
    "name", [n for n in METHODS if METHODS[n].reads_forgotten or n == "fisher"]
)
def test_only_participants_are_read(name, trained, updates, outcomes):
    """Other images with clients that do not take part: the same model and notes."""
    data, variables = trained
    rows, lengths = np.asarray(data.rows), np.asarray(data.lengths)
    images = np.array(data.images)
    for client in (0, 3):
        images[rows[client, : lengths[client]]] = 255
    everyone, _ = outcomes(name)
    some, other = (
        forget(name, given, variables, updates, remembering([]), participants=(2, 1))
        for given in (data, data._replace(images=jnp.asarray(images)))
    )
    chex.assert_trees_all_equal(some.variables, other.variables)
    assert dict(some.notes) == dict(other.notes)
    if METHODS[name].serves[0] == "classes":
        assert dict(some.notes) != dict(everyone.notes)


def test_relabelled_images_are_the_participants_alone(trained, updates):
    data, variables = trained
    calls = []
    tune = remembering(calls)
    forget("relabel", data, variables, updates, tune, participants=(0,))
    ((_, _, taught, _),) = calls
    before = np.asarray(keep_classes(data, (1, 3)).lengths)
    left = np.asarray(data.lengths) - np.asarray(taught.lengths)
    assert left.tolist() == [0, *before[1:]]


@pytest.mark.parametrize("name", METHODS)
def test_impossible_classes_are_refused(name, trained, updates):
    for classes in ((), (4,), (-1,), (0, 1, 2, 3)):
        with pytest.raises(ValueError, match="class"):
            forget(name, *trained, updates, request=classes)


def test_a_function_is_called_without_the_table_too(trained):
    """It has the signature of all methods, and refuses the kinds it does not serve."""
    data, variables = trained
    given = dict(key=KEY, fine_tune=FINE_TUNE)
    parameters = inspect.signature(regrow).parameters
    assert list(parameters)[:4] == ["model", "variables", "data", "request"]
    assert {"share", "shrink", "head", *given} <= parameters.keys()
    with pytest.raises(ValueError, match="regrow has no option 'shar'.* share, shrink"):
        regrow(MODEL, variables, data, (1, 3), shar=0.5, **given)
    direct = regrow(MODEL, variables, data, (1, 3), share=0.5, **given)
    by_name = forget("regrow", data, variables, {}, share=0.5)
    chex.assert_trees_all_equal(direct.variables, by_name.variables)
    with pytest.raises(ValueError, match="names client 1; "):
        mask_logit(MODEL, variables, data, ForgetRequest(clients=(1,)), **given)
