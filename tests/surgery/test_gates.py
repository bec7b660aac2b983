"""A gate whose own layer is whole multiplies channels of which some are dead."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune import surgery
from fuprune.models.adapt import adapt
from fuprune.surgery import PrunePlan

CHANNELS = 8


class Gated(nn.Module):
    """Squeeze and excite: the bias of the gate meets dead channels."""

    @nn.compact
    def __call__(self, x):
        """Maps images [B, 5, 5, 3] to logits [B, 4]."""
        x = nn.relu(nn.Conv(CHANNELS, (3, 3), name="features")(x))
        squeezed = jnp.mean(x, axis=(1, 2), keepdims=True)
        gate = nn.sigmoid(nn.Conv(CHANNELS, (1, 1), name="gate")(squeezed))
        return nn.Dense(4)(jnp.mean(x * gate, axis=(1, 2)))


@settings(max_examples=10, deadline=None)
@given(
    features=st.sets(st.integers(0, CHANNELS - 1), min_size=1),
    gate=st.sets(st.integers(0, CHANNELS - 1), min_size=1),
)
def test_cuts_settle_whichever_side_of_a_gate_is_cut(features, gate):
    network = adapt(Gated())
    images = jax.random.normal(jax.random.key(0), (2, 5, 5, 3))
    variables = network.init(jax.random.key(1), images)
    # Biases of 0 would hide which of them are read.
    variables = jax.tree.map(lambda x: x + 0.1, variables)
    kept = {"features": features, "gate": gate}
    # A layer that keeps everything is not in the plan.
    plan = PrunePlan(
        {
            name: np.array(sorted(channels))
            for name, channels in kept.items()
            if len(channels) < CHANNELS
        }
    )
    slim, fewer = surgery.compact(network, variables, plan, example=images)
    dead = surgery.mask(network, variables, plan, example=images)
    found = slim.apply(fewer, images)
    expected = network.apply(dead, images)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_bias_of_a_whole_gate_stays_whole():
    network = adapt(Gated())
    images = jnp.ones((2, 5, 5, 3))
    variables = network.init(jax.random.key(1), images)
    plan = PrunePlan({"features": np.arange(3)})
    _, fewer = surgery.compact(network, variables, plan, example=images)
    assert fewer["params"]["gate"]["kernel"].shape == (1, 1, 3, CHANNELS)
    assert fewer["params"]["gate"]["bias"].shape == (CHANNELS,)


class Scaled(nn.Module):
    """A dead channel has half the value of a parameter, and axes come and move."""

    @nn.compact
    def __call__(self, x):
        """Maps images [B, 5, 5, 3] to logits [B, 4]."""
        scale = self.param("scale", nn.initializers.ones, ())
        x = nn.relu(nn.sigmoid(nn.Conv(CHANNELS, (3, 3), name="features")(x)) * scale)
        x = jnp.moveaxis(x[:, None], -1, 1)
        return nn.Dense(4)(jnp.mean(x, axis=(2, 3, 4)))


def test_a_dead_channel_may_have_the_value_of_a_parameter():
    network = adapt(Scaled())
    images = jax.random.normal(jax.random.key(0), (2, 5, 5, 3))
    variables = network.init(jax.random.key(1), images)
    plan = PrunePlan({"features": np.arange(3)})
    slim, fewer = surgery.compact(network, variables, plan, example=images)
    dead = surgery.mask(network, variables, plan, example=images)

    def answer(net, variables):
        def squares(variables):
            return jnp.sum(net.apply(variables, images) ** 2)

        value, gradient = jax.value_and_grad(squares)(variables)
        return value, gradient["params"]["scale"]

    np.testing.assert_allclose(answer(slim, fewer), answer(network, dead), rtol=1e-5)
