"""Clients side by side in one wide network compute what they do apart."""

import chex
import jax
import jax.numpy as jnp
import pytest

from fuprune.models import zoo
from fuprune.models.resnet import ResNet
from fuprune.models.wide import apply_together, clients_together
from tests.models import drawing
from tests.tiny import TinyNet

SMALL = dict(depth=8, num_classes=5, input_shape=(8, 8, 3))
# A stream with holes, and layers of odd widths.
CUT = (
    ("stem", (0, 2, 5, 6)),
    ("stage1_block1_conv2", (1, 2, 9)),
    ("stage2_block1_conv1", (3, 30)),
    ("stage3_block1_conv2", tuple(range(0, 64, 3))),
)


def stacked_variables(model, number):
    """Variables [N, ...] of clients that share nothing, one with a dead channel."""
    drawn = [drawing.variables_of(model, seed) for seed in range(number)]
    norm = drawn[1]["params"]["stage1_block1_conv1"]["norm"]
    for name in ("scale", "bias"):
        norm[name] = norm[name].at[1].set(0.0)
    return jax.tree.map(lambda *x: jnp.stack(x), *drawn)


@pytest.mark.parametrize("channels", [(), CUT], ids=["whole", "cut"])
def test_wide_pass_and_gradients_equal_separate_ones(channels):
    """Full, ragged and empty batches: logits, statistics and gradients are the same."""
    model, number = ResNet(channels=channels, **SMALL), 3
    variables = stacked_variables(model, number)
    images = jax.random.normal(jax.random.key(1), (number, 4, 8, 8, 3))
    mask = jnp.ones((number, 4)).at[1, 3:].set(0.0).at[2].set(0.0)
    weights = jax.random.normal(jax.random.key(2), (number, 4, 5)) * mask[..., None]

    def apart(variables, images, mask):
        logits, new = model.apply(
            variables, images, train=True, mask=mask, mutable=["batch_stats"]
        )
        return logits, new["batch_stats"]

    def wide(variables, images, mask):
        return apply_together(model, variables, images, mask)

    def outcome(run):
        def loss(params):
            logits, stats = run({**variables, "params": params}, images, mask)
            return jnp.sum(logits * weights), (logits, stats)

        return drawing.run_quick(jax.grad(loss, has_aux=True), variables["params"])

    gradient, (logits, stats) = outcome(wide)
    expected, (expected_logits, expected_stats) = outcome(jax.vmap(apart))
    real = mask[..., None] > 0
    chex.assert_trees_all_close(logits * real, expected_logits * real, atol=1e-4)
    assert bool(jnp.all(jnp.isfinite(logits)))
    chex.assert_trees_all_close(stats, expected_stats, rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(gradient, expected, rtol=1e-3, atol=1e-4)
    dead = gradient["stage1_block1_conv1"]["norm"]
    assert float(jnp.abs(dead["scale"][1, 1]) + jnp.abs(dead["bias"][1, 1])) == 0.0


def test_wide_pass_computes_in_the_models_type():
    """bfloat16 convolutions give float32 logits and statistics near float32's."""
    variables = stacked_variables(ResNet(**SMALL), 2)
    images = jax.random.normal(jax.random.key(1), (2, 4, 8, 8, 3))
    full, half = (
        drawing.run_quick(
            lambda v, model=model: apply_together(model, v, images, jnp.ones((2, 4))),
            variables,
        )
        for model in (ResNet(**SMALL), ResNet(dtype=jnp.bfloat16, **SMALL))
    )
    assert half[0].dtype == jnp.float32
    chex.assert_trees_all_equal_dtypes(full, half)
    chex.assert_trees_all_close(half[1]["stem"], full[1]["stem"], atol=0.02)
    assert float(jnp.max(jnp.abs(half[0] - full[0]))) > 0.0


def test_as_many_clients_merge_as_fill_the_lanes():
    """By the channels of the first stage; networks that cannot merge stay alone."""
    shape = dict(num_classes=10)
    assert clients_together(zoo.create("resnet20", **shape)) == 8
    narrow = tuple((f"stage1_block1_conv{i}", tuple(range(10))) for i in (1, 2))
    assert clients_together(ResNet(channels=narrow, **SMALL)) == 12
    assert clients_together(zoo.create("resnet20", norm="group", **shape)) == 1
    assert clients_together(zoo.create("vgg11", **shape)) == 1
    assert clients_together(ResNet(conv="onednn", **SMALL)) == 1
    assert clients_together(TinyNet()) == 1
