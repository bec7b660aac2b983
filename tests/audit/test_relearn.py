import jax
import numpy as np
import pytest

from fuprune.audit.relearn import relearn_time
from fuprune.audit.training import batch_rows, sgd_step
from tests.audit.conftest import FORGOTTEN


@pytest.fixture(scope="module")
def relearned(world):
    train, test, preprocess = world.data
    rows = batch_rows(np.random.default_rng(0), np.arange(len(train.labels)), 60, 32)
    chosen = test.labels == FORGOTTEN

    def run(variables, **options):
        options = {"level": 0.9, "every": 1, "learning_rate": 0.002, **options}
        return relearn_time(
            world.model,
            variables,
            train.images,
            train.labels,
            rows,
            test.images[chosen],
            test.labels[chosen],
            preprocess,
            classes=(FORGOTTEN,),
            batch_size=64,
            **options,
        )

    return run


def test_masked_logit_is_back_as_fast_as_the_raw_model(world, relearned):
    raw, masked = relearned(world.raw), relearned(world.masked)
    assert raw.reached and masked == raw


def test_retrained_models_need_longer_than_the_raw_one(world, relearned):
    raw = relearned(world.raw)
    assert all(relearned(v).steps > 1.5 * raw.steps for v in world.retrained[:3])


def test_level_out_of_reach_stops_at_the_cap(world, relearned):
    found = relearned(world.raw, level=2.0, every=25)
    assert (found.steps, found.reached) == (60, False)
    assert [step for step, _ in found.curve] == [0, 25, 50, 60]


def test_level_already_met_takes_no_step(world, relearned):
    found = relearned(world.raw, level=0.0)
    assert (found.steps, found.reached) == (0, True)


def test_model_under_test_is_left_as_it_was(world, relearned):
    before = jax.tree.map(np.array, world.raw)
    relearned(world.raw)
    jax.tree.map(np.testing.assert_array_equal, before, world.raw)


def test_step_is_compiled_once_for_all_models_of_an_architecture(world, relearned):
    relearned(world.raw)
    before = sgd_step._cache_size()
    relearned(world.masked, learning_rate=0.01)
    relearned(world.honest)
    assert sgd_step._cache_size() == before


def test_batches_are_passes_over_all_rows():
    rows = batch_rows(np.random.default_rng(0), np.arange(10, 18), 4, 4)
    assert rows.shape == (4, 4)
    for half in (rows[:2], rows[2:]):
        np.testing.assert_array_equal(np.sort(half.reshape(-1)), np.arange(10, 18))
    assert batch_rows(np.random.default_rng(0), np.arange(3), 2, 8).shape == (2, 8)
