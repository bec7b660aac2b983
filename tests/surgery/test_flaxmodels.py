"""Networks of PyPI's `flaxmodels`, unmodified; skipped where it is not installed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune import surgery
from fuprune.models.adapt import adapt
from fuprune.surgery import PrunePlan
from tests.surgery import networks

with warnings.catch_warnings():  # what it does to import is its own affair
    warnings.simplefilter("ignore")
    flaxmodels = pytest.importorskip("flaxmodels")

SHAPE = (32, 32, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ResNet18", "ResNet50"])
def test_networks_of_flaxmodels_are_cut(name):
    module = getattr(flaxmodels, name)(
        output="logits", pretrained=None, normalize=False, num_classes=10
    )
    network = adapt(module)
    variables = networks.variables_of(network, SHAPE)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, *SHAPE)), jnp.float32)
    layers = surgery.trace_layers(network, variables, images)
    assert len(layers) >= 18
    plan = PrunePlan(
        {name: np.arange(0, layer.channels, 2) for name, layer in layers.items()}
    )
    small, cut = surgery.compact(network, variables, plan, example=images)
    masked = surgery.mask(network, variables, plan, example=images)
    expected = jax.jit(lambda v, x: network.apply(v, x, train=False))(masked, images)
    logits = jax.jit(lambda v, x: small.apply(v, x, train=False))(cut, images)
    scale = max(1.0, float(jnp.abs(expected).max()))
    np.testing.assert_allclose(logits, expected, atol=1e-5 * scale)
    convolutions = [
        sum(x.size for x in jax.tree.leaves(tree["params"]) if x.ndim == 4)
        for tree in (cut, variables)
    ]
    assert convolutions[0] < 0.4 * convolutions[1]
