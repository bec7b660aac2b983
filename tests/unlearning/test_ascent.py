"""Gradient ascent: it raises the loss on the class, up to the cap."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.federated import drop_classes
from fuprune.errors import UnlearnError
from fuprune.unlearning.ascent import CLIP_NORM
from tests.unlearning.small import SoftmaxRegression, forget_by, initial, small_data

MODEL = SoftmaxRegression(num_classes=4)


@pytest.fixture(scope="module")
def regression():
    return small_data(), initial(MODEL)


def forget(model, variables, data, **options):
    return forget_by("ascent", model, variables, data, (3,), **options)


def losses_on(model, variables, data, u):
    images = data.images[np.asarray(data.labels) == u] / 255.0
    return -jax.nn.log_softmax(model.apply(variables, images))[:, u]


def test_loss_on_the_class_rises_round_by_round(regression):
    data, variables = regression
    result = forget(MODEL, variables, data, rounds=4, learning_rate=0.1, loss_cap=50.0)
    losses = result.notes["forgotten_loss"]
    assert len(losses) == 5 and all(np.diff(losses) > 0)
    measured = losses_on(MODEL, result.variables, data, 3).mean()
    np.testing.assert_allclose(losses[-1], measured, rtol=1e-5)
    assert result.upload_bytes == 4 * 4 * (36 * 4 + 4)


def test_rounds_stop_at_the_cap(regression):
    data, variables = regression
    result = forget(MODEL, variables, data, rounds=500, learning_rate=0.5, loss_cap=3.0)
    assert len(result.notes["forgotten_loss"]) <= 500
    *before, last = result.notes["forgotten_loss"]
    assert max(before) < 3.0 <= last < 4.0


def test_an_example_at_the_cap_adds_no_gradient(regression):
    """All losses above the cap: nothing moves."""
    data, variables = regression
    cap = 0.9 * float(losses_on(MODEL, variables, data, 3).min())
    mean = float(losses_on(MODEL, variables, data, 3).mean())
    assert cap < mean
    result = forget(MODEL, variables, data, rounds=3, loss_cap=cap)
    assert result.notes["images"] == 0
    chex.assert_trees_all_equal(result.variables["params"], variables["params"])


def test_a_gradient_is_clipped(regression):
    """One batch a client, one round: no longer than learning rate times the norm."""
    data, variables = regression
    # Bright images, so that no client's gradient is shorter than the bound.
    bright = data._replace(images=jnp.full_like(data.images, 255))
    result = forget(MODEL, variables, bright, rounds=1, learning_rate=0.5)
    change = jax.tree.map(jnp.subtract, result.variables, variables)
    length = float(jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(change))))
    np.testing.assert_allclose(length, 0.5 * CLIP_NORM, rtol=1e-4)


def test_a_class_nobody_holds_leaves_the_model_alone(regression):
    data, variables = regression
    result = forget(MODEL, variables, drop_classes(data, (3,)))
    assert result.notes["forgotten_loss"] == []
    chex.assert_trees_all_equal(result.variables["params"], variables["params"])


def test_a_loss_that_is_not_finite_stops_the_method(regression):
    data, variables = regression
    broken = jax.tree.map(lambda x: x.at[0].set(jnp.nan), variables)
    with pytest.raises(UnlearnError, match="diverged in round 0"):
        forget(MODEL, broken, data)
