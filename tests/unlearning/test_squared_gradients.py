"""Sums of squared per-example gradients against their definition."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.models import zoo
from fuprune.models.fresh import init_variables
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
        pytest.param(
            zoo.create("resnet8", num_classes=4, input_shape=SHAPE, conv="onednn"),
            id="onednn",
        ),
        pytest.param(Shared(), id="shared"),
    ],
)
def test_equals_gradients_squared_one_by_one_and_padding_does_not_count(model):
    images = jax.random.normal(jax.random.key(5), (4, *SHAPE))
    variables = initial(model)
    if hasattr(model, "depth"):
        # Unmoved kernels keep the logits small, so that their sines can be compared.
        variables = init_variables(model, jax.random.key(0), images[:1])
    expected = by_definition(model, variables, images[jnp.array([0, 1, 3])])
    padded, mask = images.at[2].set(50.0), jnp.array([1.0, 1.0, 0.0, 1.0])
    run = jax.jit(lambda *seen: sum_of_squared_gradients(model, *seen, vectors, mask))
    squares = run(variables, padded)
    chex.assert_trees_all_equal_structs(squares, expected)
    for found, known in zip(*map(jax.tree.leaves, (squares, expected)), strict=True):
        # Squares of gradients that cancel are all rounding; the layer's size tells.
        bound = 1e-5 * np.max(known) + 1e-6
        np.testing.assert_allclose(found, known, rtol=1e-3, atol=bound)
