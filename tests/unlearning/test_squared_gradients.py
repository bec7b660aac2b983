"""Sums of squared per-example gradients against their definition."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune.models import zoo
from fuprune.models.fresh import init_variables
from fuprune.surgery import make_plan, mask
from fuprune.unlearning import squared_gradients
from fuprune.unlearning.squared_gradients import sum_of_squared_gradients
from tests.unlearning.small import SmallNet, initial
from tests.unlearning.user_networks import NETWORKS

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


def assert_batched_is_one_by_one(model, variables, images, chunk):
    """Chunks of any size against the definition, an image at a time."""
    run = jax.jit(lambda v, x, m: sum_of_squared_gradients(model, v, x, vectors, m))
    parts = []
    for first in range(0, len(images), chunk):
        part = images[first : first + chunk]
        real = jnp.arange(chunk) < len(part)
        part = jnp.pad(part, ((0, chunk - len(part)), (0, 0), (0, 0), (0, 0)))
        parts.append(run(variables, part, real))
    batched = jax.tree.map(lambda *x: np.sum(np.stack(x), axis=0), *parts)
    expected = by_definition(model, variables, images)
    chex.assert_trees_all_equal_structs(batched, expected)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(batched),
        jax.tree.leaves(expected),
        strict=True,
    ):
        # Squares of gradients that cancel are all rounding; the layer's size tells.
        size = np.max(b) if b.size else 0.0
        np.testing.assert_allclose(
            a, b, rtol=1e-3, atol=1e-5 * size + 1e-12, err_msg=str(path)
        )


@pytest.mark.parametrize(
    ("name", "norm", "masked"),
    [
        ("resnet8", "batch", True),
        ("resnet8", "group", False),
        pytest.param("resnet8", "batch", False, marks=pytest.mark.slow),
        pytest.param("resnet8", "group", True, marks=pytest.mark.slow),
        pytest.param("resnet20", "batch", True, marks=pytest.mark.slow),
        pytest.param("resnet20", "group", False, marks=pytest.mark.slow),
        pytest.param("vgg11", "batch", True, marks=pytest.mark.slow),
        pytest.param("vgg11", "group", False, marks=pytest.mark.slow),
    ],
)
def test_batched_is_one_by_one_for_the_zoo(name, norm, masked):
    """Every image has its own shortcut, whatever the others of its batch are."""
    shape = (32, 32, 3) if name.startswith("vgg") else (8, 8, 3)
    model = zoo.create(name, num_classes=4, input_shape=shape, norm=norm)
    # Unmoved kernels keep the logits small, so that their sines can be compared.
    variables = init_variables(model, jax.random.key(0), jnp.zeros((1, *shape)))
    if masked:
        generator = np.random.default_rng(0)
        wiring = model.wiring()
        scores = {
            layer: generator.random(len(wiring[layer].outputs))
            for layer in zoo.layer_names(model)
        }
        variables = mask(model, variables, make_plan(scores, 0.2))
    images = jax.random.normal(jax.random.key(7), (3, *shape))
    assert_batched_is_one_by_one(model, variables, images, 3)


@settings(max_examples=4, deadline=None)
@given(name=st.sampled_from(sorted(NETWORKS)), chunk=st.integers(1, 5))
def test_batched_is_one_by_one_for_any_network(name, chunk):
    model = NETWORKS[name]()
    images = jax.random.normal(jax.random.key(chunk), (5, *SHAPE))
    assert_batched_is_one_by_one(model, initial(model), images, chunk)


@pytest.mark.parametrize("name", NETWORKS)
def test_batched_is_one_by_one_for_networks_of_users(name):
    """Chunks as long as another axis of the network: it is not taken for the batch."""
    model, chunk = NETWORKS[name](), 3 if name == "Tokens" else 4
    images = jax.random.normal(jax.random.key(chunk), (4, *SHAPE))
    assert_batched_is_one_by_one(model, initial(model), images, chunk)


def test_layers_of_the_zoo_take_the_fast_way():
    model = zoo.create("resnet8", num_classes=4, input_shape=(8, 8, 3))
    images = jnp.zeros((4, 8, 8, 3))
    variables = initial(model, (8, 8, 3))
    layers = squared_gradients._find_layers(model, variables, images)
    assert layers is not None
    kinds = [layer.kind for layer in layers.values()]
    convolutions = len(zoo.layer_names(model))
    assert kinds.count("conv") == kinds.count("copied") == convolutions
    assert kinds.count("dense") == 1
