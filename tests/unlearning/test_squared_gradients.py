"""Sums of squared per-example gradients against their definition."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.unlearning import squared_gradients
from fuprune.unlearning.squared_gradients import sum_of_squared_gradients
from tests.unlearning.small import SmallNet, initial

SHAPE = (6, 6, 1)


def vectors(logits):
    """Three cotangents per example that depend on its logits."""
    turned = jnp.stack([jnp.roll(logits, j, axis=1) for j in range(3)], axis=1)
    return jnp.sin(turned) + 0.5


def by_definition(model, variables, images):
    """One gradient at a time."""
    rest = {k: v for k, v in variables.items() if k != "params"}

    def logits_of(params, image):
        return model.apply({"params": params, **rest}, image[None], train=False)[0]

    @jax.jit
    def squares(image):
        chosen = vectors(logits_of(variables["params"], image)[None])[0]
        jacobian = jax.jacrev(logits_of)(variables["params"], image)
        return jax.tree.map(
            lambda j: jnp.sum(jnp.tensordot(chosen, j, axes=1) ** 2, axis=0), jacobian
        )

    total = None
    for image in images:
        one = jax.tree.map(np.asarray, squares(image))
        total = one if total is None else jax.tree.map(np.add, total, one)
    return total


class Mixed(nn.Module):
    """Strides, biases, string padding, groups, several kinds of norm, two dense."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        x = nn.Conv(4, (3, 3), strides=2, padding="SAME")(images)
        x = nn.GroupNorm(num_groups=2)(nn.relu(x))
        x = nn.Conv(4, (2, 3), padding="VALID", use_bias=False)(x)
        x = nn.Conv(4, (1, 1), padding=((0, 1), (1, 0)), strides=(1, 2))(nn.tanh(x))
        x = nn.Conv(4, (3, 3), feature_group_count=2)(x)
        x = nn.LayerNorm()(nn.relu(x))
        x = nn.Dense(5)(x)
        return nn.Dense(4)(x.reshape(x.shape[0], -1))


class Shared(nn.Module):
    """The same layer twice, and a parameter that no layer owns."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        layer = nn.Dense(36)
        x = jnp.tanh(layer(images.reshape(images.shape[0], -1)))
        scale = self.param("scale", nn.initializers.ones, (36,))
        return nn.Dense(4)(jnp.tanh(layer(x)) * scale)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(SmallNet(), id="batch"),
        pytest.param(SmallNet(norm="group", width=8), id="group"),
        pytest.param(Mixed(), id="mixed", marks=pytest.mark.slow),
        pytest.param(Shared(), id="shared"),
    ],
)
def test_equals_gradients_squared_one_by_one(model):
    variables = initial(model)
    images = jax.random.normal(jax.random.key(5), (3, *SHAPE))
    squares = jax.jit(lambda v, x: sum_of_squared_gradients(model, v, x, vectors))(
        variables, images
    )
    expected = by_definition(model, variables, images)
    chex.assert_trees_all_equal_structs(squares, expected)
    chex.assert_trees_all_close(squares, expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("model", [SmallNet(), Shared()], ids=["layers", "whole"])
def test_masked_examples_do_not_count_whatever_they_hold(model):
    variables = initial(model)
    images = jax.random.normal(jax.random.key(5), (4, *SHAPE))
    run = jax.jit(
        lambda x, m: sum_of_squared_gradients(model, variables, x, vectors, m)
    )
    some = run(images.at[2].set(50.0), jnp.array([1.0, 1.0, 0.0, 1.0]))
    none = run(images.at[2].set(0.0), jnp.array([1.0, 1.0, 0.0, 1.0]))
    every = run(images, jnp.ones(4))
    chex.assert_trees_all_close(some, none, rtol=1e-6)
    assert all(
        bool(jnp.any(a < b))
        for a, b in zip(jax.tree.leaves(some), jax.tree.leaves(every), strict=True)
    )


def test_three_ways_to_square_a_convolution_agree():
    """By pairs of positions, one example at a time, and all at once."""
    window = ((3, 3), (2, 1), ((1, 1), (0, 2)))
    keys = jax.random.split(jax.random.key(0), 2)
    inputs = jax.random.normal(keys[0], (3, 5, 4, 2))
    cotangents = jax.random.normal(keys[1], (6, 3, 3 * 4, 5))
    ways = (
        squared_gradients._squares_by_pairs,
        squared_gradients._squares_one_by_one,
        squared_gradients._squares_at_once,
    )
    first, *others = [way(window, inputs, cotangents) for way in ways]
    assert first.shape == (18, 5)
    for other in others:
        np.testing.assert_allclose(first, other, rtol=1e-4, atol=1e-4)


def test_memory_does_not_grow_with_examples_but_with_the_chunk():
    """A layer's gradients are never held for a whole batch on a CPU."""
    model = SmallNet(width=32, input_shape=(16, 16, 1))
    variables = initial(model, (16, 16, 1))

    def temporary_bytes(batch):
        images = jax.ShapeDtypeStruct((batch, 16, 16, 1), jnp.float32)
        run = jax.jit(lambda v, x: sum_of_squared_gradients(model, v, x, vectors))
        return run.lower(variables, images).compile().memory_analysis()

    small, large = (temporary_bytes(n).temp_size_in_bytes for n in (4, 16))
    gradients_of_a_batch = 16 * 3 * 9 * 32 * 32 * 4
    assert small < large
    assert large < 4.5 * small
    # Activations and cotangents of 16 images, but not their gradients on top.
    activations = 16 * (1 + 3) * (16 * 16 + 8 * 8) * 32 * 4
    assert large < 3 * activations + gradients_of_a_batch
