"""The layers that tracing finds in any network, and what it captures of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fuprune import surgery
from fuprune.models.adapt import adapt
from fuprune.surgery import PrunePlan
from tests.surgery import networks
from tests.surgery.networks import IMAGES, bring, small_network


class TwoKernels(nn.Module):
    """One module that holds the kernels of two convolutions."""

    @nn.compact
    def __call__(self, x):
        for name, width in (("narrow", 4), ("wide", 6)):
            shape = (3, 3, x.shape[-1], width)
            kernel = self.param(name, nn.initializers.lecun_normal(), shape)
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = nn.relu(x)
        return x


def test_every_kernel_of_a_module_is_a_layer():
    model = TwoKernels()
    params = {"block": model.init(jax.random.key(0), IMAGES)["params"]}
    params["head"] = {"kernel": jnp.ones((6, 5))}

    def network(variables, images):
        params = variables["params"]
        x = model.apply({"params": params["block"]}, images)
        return jnp.mean(x, axis=(1, 2)) @ params["head"]["kernel"]

    variables = {"params": params}
    layers = surgery.trace_layers(network, variables, IMAGES)
    assert list(layers) == ["block/narrow", "block/wide"]
    seen = surgery.observe(network, variables, IMAGES)
    assert [x.shape[-1] for x in seen.outputs.values()] == [4, 6]
    plan = PrunePlan({"block/narrow": np.array([0, 3])})
    rows = surgery.plan_report(network, plan, (8, 8, 3), variables=variables)
    assert [row.channels_after for row in rows] == [2, 6, 5, 8]


def test_capture_of_a_slim_network_has_its_channels():
    network, variables = small_network()
    plan = PrunePlan({"first": np.array([1, 4]), "second": np.array([0, 3])})
    small, cut = surgery.compact(network, variables, plan, example=IMAGES)
    masked = surgery.mask(network, variables, plan, example=IMAGES)
    whole = surgery.capture(network, masked, IMAGES)
    captured = surgery.capture(small, cut, IMAGES)
    for name, keep in plan.keep.items():
        np.testing.assert_allclose(captured[name], whole[name][..., keep], atol=1e-5)


class SummedColumns(nn.Module):
    """Each logit is the sum of two channels: one may go, not both."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (3, 3), name="first")(x))
        x = jnp.mean(nn.Conv(10, (1, 1), name="pairs")(x), axis=(1, 2))
        return x.reshape(-1, 5, 2).sum(-1)


def test_a_layer_that_some_plan_would_cut_from_the_output_is_not_offered():
    network = adapt(SummedColumns())
    variables = networks.variables_of(network, (8, 8, 3))
    assert list(surgery.trace_layers(network, variables, IMAGES)) == ["first"]
    plan = PrunePlan({"pairs": np.array([0, 2, 3, 5, 6, 8])})
    small, cut = surgery.compact(network, variables, plan, example=IMAGES)
    masked = surgery.mask(network, variables, plan, example=IMAGES)
    expected = network.apply(masked, IMAGES)
    np.testing.assert_allclose(small.apply(cut, IMAGES), expected, atol=1e-6)


def test_hidden_units_are_offered_and_what_writes_to_a_stream_is_not():
    network, variables, images = bring("vit")
    layers = surgery.trace_layers(network, variables, images, dense=True)
    assert list(layers) == ["Conv_0", "Dense_0", "Dense_2"]
    network, variables, images = bring("convnext")
    layers = surgery.trace_layers(network, variables, images, dense=True)
    dense = [name for name, layer in layers.items() if layer.kind == "dense"]
    assert dense == ["Dense_0", "Dense_2"]


def test_a_last_kernel_of_any_name_is_observed_as_the_head():
    def flat(variables, images):
        x = jnp.tanh(images.reshape(images.shape[0], -1) @ variables["params"]["a"])
        return x @ variables["params"]["b"]

    variables = {"params": {"a": jnp.ones((12, 4)), "b": jnp.ones((4, 5))}}
    seen = surgery.observe(flat, variables, jnp.ones((2, 2, 2, 3)))
    assert list(seen.outputs) == ["a"] and seen.features.shape == (2, 4)


class Reused(nn.Module):
    """One dense layer for vectors and maps, and one that is applied to its own result.

    Its last result is a map's for the first, and the logits for the second.
    """

    use_bias: bool

    @nn.compact
    def __call__(self, x):
        shared = nn.Dense(3, self.use_bias, name="shared")
        tied = nn.Dense(5, self.use_bias, name="tied")
        x = nn.relu(shared(jnp.mean(x, axis=(1, 2))))[:, None, None] + nn.relu(x)
        x = jnp.mean(nn.relu(shared(x)), axis=(1, 2))
        return tied(nn.relu(tied(nn.relu(nn.Dense(5, name="before")(x)))))


@pytest.mark.parametrize("use_bias", [True, False])
def test_the_last_use_of_a_layer_is_what_is_seen_of_it(use_bias):
    network = adapt(Reused(use_bias))
    variables = networks.variables_of(network, (8, 8, 3))
    captured = surgery.capture(network, variables, IMAGES, dense=True)
    seen = surgery.observe(network, variables, IMAGES)
    assert captured["shared"].shape == seen.outputs["shared"].shape == (3, 8, 8, 3)
    tied = nn.Dense(5, use_bias)
    head = {"params": variables["params"]["tied"]}
    logits = tied.apply(head, seen.features)
    np.testing.assert_allclose(logits, seen.logits, atol=1e-6)
