import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.models.layers import NUM_GROUPS, Norm
from tests.models.drawing import apply_in_training

WIDTH = 16


def make_norm(kind, seed=0):
    norm = Norm(kind)
    generator = np.random.default_rng(seed)
    scale = generator.uniform(0.5, 1.5, WIDTH)
    bias = generator.normal(size=WIDTH)
    variables = {"params": {"scale": jnp.float32(scale), "bias": jnp.float32(bias)}}
    if kind == "batch":
        variables["batch_stats"] = {
            "mean": jnp.full(WIDTH, 0.5),
            "var": jnp.full(WIDTH, 2.0),
        }
    return norm, variables


def draw_inputs(batch=4, channels=WIDTH, seed=1):
    generator = np.random.default_rng(seed)
    return jnp.float32(generator.normal(1.0, 2.0, size=(batch, 3, 2, channels)))


def kill(variables, channels):
    params = jax.tree.map(
        lambda x: x.at[jnp.array(channels)].set(0.0), variables["params"]
    )
    return {**variables, "params": params}


def test_batch_norm_follows_its_definition_and_records_statistics():
    norm, variables = make_norm("batch")
    inputs = draw_inputs()
    outputs, update = norm.apply(variables, inputs, train=True, mutable=["batch_stats"])
    values = np.asarray(inputs, np.float64)
    mean, variance = values.mean((0, 1, 2)), values.var((0, 1, 2))
    params = jax.tree.map(np.asarray, variables["params"])
    expected = (values - mean) / np.sqrt(variance + 1e-5) * params["scale"]
    np.testing.assert_allclose(outputs, expected + params["bias"], atol=1e-5)
    stats = update["batch_stats"]
    np.testing.assert_allclose(stats["mean"], 0.9 * 0.5 + 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(stats["var"], 0.9 * 2.0 + 0.1 * variance, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, jnp.bfloat16])
def test_outputs_have_the_type_of_inputs_and_statistics_keep_theirs(dtype):
    """Local steps are a loop, which carries them from one batch to the next."""
    norm, variables = make_norm("batch")
    with jax.enable_x64(True):
        inputs = np.asarray(draw_inputs(), dtype)
        outputs, update = norm.apply(
            variables, inputs, train=True, mutable=["batch_stats"]
        )
    assert outputs.dtype == dtype
    chex.assert_trees_all_equal_dtypes(update["batch_stats"], variables["batch_stats"])


def test_batch_norm_evaluates_with_running_statistics():
    norm, variables = make_norm("batch")
    inputs = draw_inputs()
    outputs = norm.apply(variables, inputs, train=False)
    params = variables["params"]
    expected = (inputs - 0.5) / np.sqrt(2.0 + 1e-5) * params["scale"] + params["bias"]
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("padding", [0.0, 1e30, np.inf, np.nan])
def test_padded_examples_never_enter_statistics(padding):
    norm, variables = make_norm("batch")
    real = draw_inputs(batch=3)
    padded = jnp.concatenate([real, jnp.full((2, 3, 2, WIDTH), padding)])
    mask = jnp.array([1, 1, 1, 0, 0])

    def loss(params, inputs, mask):
        outputs, update = apply_in_training(norm, variables, params, inputs, mask)
        return jnp.sum(jnp.sin(outputs[:3])), (outputs[:3], update)

    gradient, (outputs, update) = jax.jit(jax.grad(loss, has_aux=True))(
        variables["params"], real, None
    )
    gradient_padded, (outputs_padded, update_padded) = jax.jit(
        jax.grad(loss, has_aux=True)
    )(variables["params"], padded, mask)
    chex.assert_trees_all_close(update, update_padded, rtol=1e-5)
    np.testing.assert_allclose(outputs, outputs_padded, atol=1e-5)
    if np.isfinite(padding):
        chex.assert_trees_all_close(gradient, gradient_padded, atol=1e-4)


def test_batch_of_padding_only_leaves_statistics_and_gives_no_nan():
    norm, variables = make_norm("batch")

    def loss(params, inputs):
        outputs, update = apply_in_training(
            norm, variables, params, inputs, jnp.zeros(4)
        )
        return jnp.sum(outputs**2), update

    gradients, update = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(
        variables["params"], draw_inputs()
    )
    chex.assert_trees_all_equal(update["batch_stats"], variables["batch_stats"])
    chex.assert_tree_all_finite(gradients)


def test_group_norm_follows_its_definition():
    norm, variables = make_norm("group")
    inputs = draw_inputs()
    outputs = norm.apply(variables, inputs, train=True)
    values = np.asarray(inputs, np.float64).reshape(4, 3, 2, NUM_GROUPS, -1)
    mean = values.mean((1, 2, 4), keepdims=True)
    variance = values.var((1, 2, 4), keepdims=True)
    values = ((values - mean) / np.sqrt(variance + 1e-5)).reshape(inputs.shape)
    params = variables["params"]
    expected = values * params["scale"] + params["bias"]
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("kind", ["batch", "group"])
def test_dead_channel_emits_zero_and_passes_no_gradient(kind, train):
    norm, variables = make_norm(kind)
    variables = kill(variables, [2, 3, 7])

    def loss(params, inputs):
        outputs = norm.apply(
            {**variables, "params": params},
            inputs,
            train=train,
            mutable=["batch_stats"],
        )[0]
        return jnp.sum(jnp.cos(outputs + 0.3)), outputs

    gradients, outputs = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(
        variables["params"], draw_inputs()
    )
    dead = np.array([2, 3, 7])
    live = np.setdiff1d(np.arange(WIDTH), dead)
    assert not np.any(outputs[..., dead])
    for leaf in jax.tree.leaves(gradients):
        assert not np.any(leaf[..., dead])
        assert np.all(np.any(leaf[..., live].reshape(-1, live.size) != 0, axis=0))


def test_group_norm_has_the_moments_of_live_channels_alone():
    dead = [0, 1, 4, 9]  # a whole group, and one of two in two others
    norm, variables = make_norm("group")
    inputs = np.asarray(draw_inputs(), np.float64)
    outputs = norm.apply(kill(variables, dead), jnp.float32(inputs), train=True)
    live = np.setdiff1d(np.arange(WIDTH), dead).reshape(-1)
    for group in np.unique(live // 2):
        channels = live[live // 2 == group]
        values = inputs[..., channels]
        mean = values.mean((1, 2, 3), keepdims=True)
        deviation = np.sqrt(values.var((1, 2, 3), keepdims=True) + 1e-5)
        params = {k: np.asarray(v)[channels] for k, v in variables["params"].items()}
        expected = (values - mean) / deviation * params["scale"] + params["bias"]
        np.testing.assert_allclose(outputs[..., channels], expected, atol=1e-4)
