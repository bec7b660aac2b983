"""Sums of squared per-example gradients against their definition."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.models import zoo
from fuprune.models.fresh import init_variables
from fuprune.surgery import make_plan, mask
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


@pytest.mark.parametrize("model", [SmallNet(), Shared()], ids=["plain", "shared"])
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


def test_memory_grows_with_the_chunk():
    model = SmallNet(width=32, input_shape=(16, 16, 1))
    variables = initial(model, (16, 16, 1))

    def temporary_bytes(batch):
        images = jax.ShapeDtypeStruct((batch, 16, 16, 1), jnp.float32)
        run = jax.jit(lambda v, x: sum_of_squared_gradients(model, v, x, vectors))
        return run.lower(variables, images).compile().memory_analysis()

    small, large = (temporary_bytes(n).temp_size_in_bytes for n in (4, 16))
    assert small < large < 4.5 * small


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
    ("name", "norm", "conv", "masked"),
    [
        ("resnet8", "batch", "xla", True),
        ("resnet8", "batch", "onednn", True),
        ("resnet8", "group", "xla", False),
        pytest.param("resnet20", "batch", "xla", True, marks=pytest.mark.slow),
        pytest.param("vgg11", "batch", "xla", True, marks=pytest.mark.slow),
        pytest.param("vgg11", "group", "xla", False, marks=pytest.mark.slow),
    ],
)
def test_batched_is_one_by_one_for_the_zoo(name, norm, conv, masked):
    """Every image has its own shortcut, whatever the others of its batch are."""
    shape = (32, 32, 3) if name.startswith("vgg") else (8, 8, 3)
    model = zoo.create(name, num_classes=4, input_shape=shape, norm=norm, conv=conv)
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


@pytest.mark.parametrize("name", NETWORKS)
def test_batched_is_one_by_one_for_networks_of_users(name):
    model, images = NETWORKS[name](), jax.random.normal(jax.random.key(3), (4, *SHAPE))
    assert_batched_is_one_by_one(model, initial(model), images, 3)
