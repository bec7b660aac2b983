"""Channels that start afresh: what is drawn anew, and what is not touched."""

import jax
import numpy as np
import pytest

from fuprune.models import zoo
from fuprune.models.fresh import init_variables
from fuprune.surgery import PrunePlan, kept_channels, layer_names, reset
from tests.surgery.networks import CLASSES, INPUT_SHAPE, NETWORKS, bring

IMAGES = np.zeros((2, *INPUT_SHAPE), np.float32)
NAMES = ("resnet8", "densenet", "mobilenet", "nnx")


def network(name):
    """A network, and variables of it in which all entries differ."""
    if name in NETWORKS:
        model, variables, _ = bring(name)
    else:
        model = zoo.create(name, num_classes=CLASSES, input_shape=INPUT_SHAPE)
        variables = init_variables(model, jax.random.key(0), IMAGES)
    generator = np.random.default_rng(0)
    different = jax.tree.map(
        lambda x: (generator.normal(size=np.shape(x)) + 2).astype(np.float32), variables
    )
    return model, different


def changes(before, after):
    """Entries that differ, by path: boolean arrays; leaves as they were are absent."""
    old = dict(jax.tree_util.tree_leaves_with_path(before))
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(after):
        differs = np.asarray(leaf) != np.asarray(old[path])
        if differs.any():
            found[path] = differs
    return found


@pytest.mark.parametrize("name", NAMES)
def test_only_what_writes_the_cut_channels_changes(name):
    """A whole filter, entries of vectors that follow it, and no reader's side."""
    model, variables = network(name)
    width = {k: len(v) for k, v in kept_channels(model, variables).items()}
    layer = layer_names(model, variables, example=IMAGES)[-1]
    plan = PrunePlan({layer: np.arange(1, width[layer] - 1)})
    after, again, other = (
        reset(model, variables, plan, key=jax.random.key(seed), example=IMAGES)
        for seed in (3, 3, 4)
    )
    assert not changes(after, again) and changes(after, other)
    found = changes(variables, after)
    (filters,) = (x for x in found.values() if x.ndim > 1)
    channels = filters.reshape(-1, width[layer])
    assert channels[:, [0, -1]].all() and not channels[:, 1:-1].any()
    # A norm behind a concatenation has them elsewhere, but two as well.
    assert all(x.sum() == 2 for x in found.values() if x.ndim == 1)


def test_fresh_entries_have_the_scale_of_the_kept_ones():
    model, variables = network("resnet8")
    layer = "stage3_block1_conv2"
    plan = PrunePlan({layer: np.arange(16)})
    after = reset(model, variables, plan, key=jax.random.key(0))
    kernel = np.asarray(after["params"][layer]["conv"]["kernel"])
    kept, fresh = kernel[..., :16], kernel[..., 16:]
    assert fresh.std() == pytest.approx(kept.std(), rel=0.1)
    assert fresh.mean() == pytest.approx(kept.mean(), abs=0.1)
    scale = np.asarray(after["params"][layer]["norm"]["scale"])
    np.testing.assert_allclose(scale[16:], scale[:16].mean(), rtol=1e-5)
