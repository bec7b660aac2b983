"""Masked and compacted, a network of the zoo is the same function."""

import collections
import functools

import chex
import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune import surgery
from fuprune.kernels import library
from fuprune.models import zoo
from fuprune.models.resnet import ResNet
from fuprune.surgery import PrunePlan
from fuprune.surgery.arrays import by_path, names
from tests.models import drawing
from tests.models.drawing import make_model, small_model

MIDDLE = ("resnet32", "resnet44", "vgg13", "vgg16")  # of their families


def assert_same_logits(actual, expected):
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, atol=1e-5 * scale)


def lift(first, second):
    """The plan on the uncut model that `first` and then `second` amount to."""
    return PrunePlan(
        {layer: np.asarray(k)[second.keep[layer]] for layer, k in first.keep.items()}
    )


def check_evaluation(model, seed, share):
    variables = drawing.variables_of(model, seed)
    images = drawing.images_for(model, 3, seed)
    plan = drawing.plan_for(model, seed, share)
    masked = surgery.mask(model, variables, plan)
    small, compacted = surgery.compact(model, variables, plan)
    chex.assert_trees_all_equal_shapes(compacted, drawing.shapes_of(small))
    expected = drawing.evaluate(model, masked, images)
    assert_same_logits(drawing.evaluate(small, compacted, images), expected)
    # It is a real cut: the logits are not those of the whole model.
    whole = drawing.evaluate(model, variables, images)
    assert np.abs(whole - expected).max() > 1e-3
    return small, compacted, plan, expected


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in MIDDLE else [])
        for name in zoo.MODELS
    ],
)
def test_compacted_model_equals_masked_model(name):
    shape = (40, 33, 1) if name == "vgg11" else (8, 8, 1)  # one flattens to 1x1x512
    check_evaluation(make_model(name, shape=shape), zoo.MODELS.index(name), 0.5)


@hypothesis.settings(max_examples=4)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.05, 0.4, 0.9]),
    norm=st.sampled_from(["batch", "group"]),
)
def test_compacted_small_resnet_equals_masked_for_any_plan(seed, share, norm):
    check_evaluation(small_model(norm), seed, share)


def test_flattened_map_of_several_pixels_is_cut_in_every_pixel():
    model = make_model("vgg11", shape=(64, 64, 1))
    assert drawing.shapes_of(model)["params"]["hidden"]["kernel"].shape[0] == 4 * 512
    small, variables, plan, _ = check_evaluation(model, 4, 0.3)
    kept = plan.keep["conv8"].size
    assert variables["params"]["hidden"]["kernel"].shape == (4 * kept, 512)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["resnet8", "vgg11"])
def test_compacting_twice_equals_masking_twice(name, norm):
    model = small_model(norm) if name == "resnet8" else make_model(name, norm)
    variables = drawing.variables_of(model)
    images = drawing.images_for(model, 3)
    first = drawing.plan_for(model, 1, 0.7)
    small, compacted = surgery.compact(model, variables, first)
    second = drawing.plan_for(small, 2, 0.6)
    smaller, compacted = surgery.compact(small, compacted, second)

    both = lift(first, second)
    masked = surgery.mask(model, surgery.mask(model, variables, first), both)
    expected = drawing.evaluate(model, masked, images)
    assert_same_logits(drawing.evaluate(smaller, compacted, images), expected)
    at_once, compacted_at_once = surgery.compact(model, variables, both)
    assert smaller == at_once
    chex.assert_trees_all_equal(compacted, compacted_at_once)
    assert dict(smaller.channels) == {
        layer: tuple(keep.tolist())
        for layer, keep in both.keep.items()
        if keep.size < len(surgery.kept_channels(model)[layer])
    }


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    name=st.sampled_from(["resnet8", "resnet20", "vgg11"]),
    seed=st.integers(0, 10**6),
    share=st.floats(0.0, 1.0),
)
def test_compacted_arrays_are_the_live_part_of_the_masked_ones(name, seed, share):
    model = make_model(name)
    numbered = _numbered(model)
    plan = drawing.plan_for(model, seed, share)
    masked = surgery.mask(model, numbered, plan)
    small, compacted = surgery.compact(model, numbered, plan)
    kept = by_path(getattr(small, "cuts", ()))
    for path, before in jax.tree_util.tree_leaves_with_path(numbered):
        path, after = names(path), before
        for cut in kept.get(path, ()):
            after = np.take(after, cut.kept, cut.axis)
        np.testing.assert_array_equal(_at(compacted, path), after)
        if path[0] == "params":
            assert np.count_nonzero(_at(masked, path)) == after.size
        if path[-1] == "kernel" and path[1] in plan.keep:
            assert after.shape[-1] == plan.keep[path[1]].size


def _at(tree, path):
    return _at(tree[path[0]], path[1:]) if path else tree


@functools.cache
def _numbered(model):
    # On the host: every entry is another number and none is zero.
    return jax.tree.map(
        lambda x: np.arange(1, x.size + 1, dtype=np.float32).reshape(x.shape),
        drawing.shapes_of(model),
    )


def test_stream_channel_that_nothing_writes_is_not_read():
    model = ResNet(14, 5, (8, 8, 1))

    def read(layer, keep):
        cut = surgery.compact(model, _numbered(model), PrunePlan(keep))[0]
        kernel = ("params", layer, "conv", "kernel")
        axes = {found.axis: found.kept for found in by_path(cut.cuts).get(kernel, ())}
        width = drawing.shapes_of(model)["params"][layer]["conv"]["kernel"].shape[2]
        return axes.get(-2, tuple(range(width)))

    writers = ["stem", "stage1_block1_conv2", "stage1_block2_conv2"]
    keep = {layer: np.arange(1, 16) for layer in writers}
    assert read("stage1_block2_conv1", keep) == tuple(range(1, 16))
    assert read("stage2_block1_conv1", keep) == tuple(range(1, 16))
    # Option A moves channel c to c + 8 in a stream that block 1 writes whole.
    assert read("stage2_block2_conv1", keep) == tuple(range(32))
    keep["stage2_block1_conv2"] = np.arange(4)
    assert read("stage2_block2_conv1", keep) == (*range(4), *range(9, 24))


@pytest.mark.skipif(not library.available(), reason="oneDNN is not here")
@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_the_kernels_are_cut_as_xla_is_and_move_channels_themselves(name):
    model = make_model(name)
    variables = _numbered(model)
    plan = drawing.plan_for(model, 1)
    plain = surgery.compact(model, variables, plan)[0]
    fast = surgery.compact(model.clone(conv="onednn"), variables, plan)[0]
    assert (fast.cuts, fast.channels) == (plain.cuts, plain.channels)
    images = jnp.zeros((2, *model.input_shape))
    cut = drawing.shapes_of(fast)
    jaxpr = jax.make_jaxpr(
        lambda v: fast.apply(v, images, train=True, mutable=["batch_stats"])
    )(cut)
    found = collections.Counter(eqn.primitive.name for eqn in jaxpr.eqns)
    assert found["fuprune_conv_forward"] == len(plan.keep)
    assert found["fuprune_batch_norm_forward"] == len(plan.keep)
    # Nothing moves channels of maps but the kernels, and no convolution runs whole.
    moved = [e for e in jaxpr.eqns if e.primitive.name == "pick"]
    assert not any(e.outvars[0].aval.ndim >= 4 for e in moved)
    assert not found["conv_general_dilated"]


def test_a_slim_network_is_a_linen_module():
    model = small_model()
    variables = drawing.variables_of(model)
    slim, cut = surgery.compact(model, variables, drawing.plan_for(model, 1))
    images = drawing.images_for(model, 3)
    assert isinstance(slim, nn.Module)
    assert slim.clone() == slim and hash(slim.clone()) == hash(slim)
    expected, new = slim.apply(cut, images, train=True, mutable=["batch_stats"])
    chex.assert_trees_all_equal_shapes(new["batch_stats"], cut["batch_stats"])

    class Outer(nn.Module):
        inner: nn.Module

        def __call__(self, images, train):
            return self.inner(images, train=train)

    fresh = Outer(slim).init(jax.random.key(0), images, train=False)
    chex.assert_trees_all_equal_shapes(fresh["params"]["inner"], cut["params"])
    inner = {collection: {"inner": tree} for collection, tree in cut.items()}
    logits, update = Outer(slim).apply(
        inner, images, train=True, mutable=["batch_stats"]
    )
    np.testing.assert_allclose(logits, expected, rtol=1e-5)
    chex.assert_trees_all_close(update["batch_stats"]["inner"], new["batch_stats"])


@pytest.mark.parametrize("cut", ["mask", "compact"])
def test_plan_that_cuts_nothing_is_the_identity(cut):
    model = small_model()
    variables = drawing.variables_of(model)
    everything = {k: np.arange(len(v)) for k, v in surgery.kept_channels(model).items()}
    for keep in ({}, everything, {"stem": np.arange(16)}):
        result = getattr(surgery, cut)(model, variables, PrunePlan(keep))
        if cut == "compact":
            assert result[0] == model
            result = result[1]
        chex.assert_trees_all_equal(result, variables)
