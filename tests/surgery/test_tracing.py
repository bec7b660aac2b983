"""Tracing cuts networks that we did not write."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from fuprune import surgery
from fuprune.errors import InputError
from fuprune.models import brought
from fuprune.models.adapt import adapt
from fuprune.surgery import PrunePlan, cutting, rebuild
from fuprune.surgery.arithmetic import static_value
from fuprune.surgery.arrays import cut_tree
from tests.surgery import networks
from tests.surgery.networks import IMAGES, Small, bring, small_network

FAST = ("mobilenet", "vit")


def plan_for(layers, seed=0, share=0.6):
    generator = np.random.default_rng(seed)
    return PrunePlan(
        {
            name: np.sort(
                generator.permutation(layer.channels)[
                    : max(1, int(share * layer.channels))
                ]
            )
            for name, layer in layers.items()
        }
    )


def loss_and_gradients(network, images):
    """A jitted training step's loss, new statistics and gradients."""

    def loss(params, rest):
        logits, new = network.apply(
            {"params": params, **rest},
            images,
            train=True,
            mask=jnp.ones(len(images)),
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.key(3)},
        )
        labels = jnp.arange(len(images)) % networks.CLASSES
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses), dict(new)

    def step(variables):
        rest = {k: v for k, v in variables.items() if k != "params"}
        grad = jax.value_and_grad(loss, has_aux=True)
        (value, new), gradients = grad(variables["params"], rest)
        return value, new, gradients

    return jax.jit(step)


def assert_close(actual, expected, tolerance=2e-6):
    scale = max(
        [1.0, *(float(np.abs(x).max()) for x in jax.tree.leaves(expected) if x.size)]
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance * scale),
        actual,
        expected,
    )


def check(name, tolerance=2e-6, dtype=jnp.float32):
    case = networks.NETWORKS[name]
    network, variables, images = bring(name)
    variables, images = jax.tree.map(lambda x: x.astype(dtype), (variables, images))
    layers = surgery.trace_layers(network, variables, images, dense=case.dense)
    plan = plan_for(layers)
    small, cut = surgery.compact(network, variables, plan, example=images)
    masked = surgery.mask(network, variables, plan, example=images)

    evaluate = jax.jit(lambda v, x: network.apply(v, x, train=False))
    slim = jax.jit(lambda v, x: small.apply(v, x, train=False))
    close = functools.partial(assert_close, tolerance=tolerance)
    close(slim(cut, images), evaluate(masked, images))
    value, new, gradients = loss_and_gradients(network, images)(masked)
    slim_value, slim_new, slim_gradients = loss_and_gradients(small, images)(cut)
    close(slim_value, value)
    close(slim_new, cut_tree(small.cuts, new))
    close(slim_gradients, cut_tree(small.cuts, {"params": gradients})["params"])

    sizes = [
        sum(x.size for x in jax.tree.leaves(v["params"])) for v in (cut, variables)
    ]
    assert sizes[0] < case.share * sizes[1]
    program = cutting.trace_network(small, cut, images).program
    assert len(program.examine()[1].whole) <= case.whole
    assert hash(small) == hash(
        surgery.compact(network, variables, plan, example=images)[0]
    )


@pytest.mark.parametrize("name", FAST)
def test_slim_network_equals_masked_network_and_trains_like_it(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in networks.NETWORKS if n not in FAST])
def test_every_slim_network_equals_masked_network_and_trains_like_it(name):
    """In double precision: norms of four numbers blow up what rounding does."""
    with jax.enable_x64(True):
        check(name, 1e-12, jnp.float64)


def test_pinned_network_has_no_gradient_where_it_is_dead():
    network, variables = small_network()
    plan = PrunePlan({"first": np.array([1, 4])})
    masked = surgery.mask(network, variables, plan, example=IMAGES)
    pinned = surgery.pin(network, variables, plan, example=IMAGES)
    _, _, gradients = loss_and_gradients(pinned, jnp.asarray(IMAGES))(masked)
    again = surgery.mask(network, {**masked, "params": gradients}, plan, example=IMAGES)
    jax.tree.map(np.testing.assert_array_equal, again["params"], gradients)


def test_a_kernel_used_along_two_axes_is_not_offered():
    def tied(variables, images):
        images = images.reshape(images.shape[0], -1)
        return images @ variables["params"]["w"] @ variables["params"]["w"].T

    variables, images = {"params": {"w": jnp.ones((12, 4))}}, np.zeros((2, 2, 2, 3))
    assert not surgery.trace_layers(tied, variables, images, dense=True)


@jax.custom_vjp
def rounded(x):
    """Rounding whose gradient passes straight through."""
    return jnp.round(x)


rounded.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (cotangent,))


class Quantised(nn.Module):
    """Kernels and maps of few bits."""

    @nn.compact
    def __call__(self, x):
        for width in (8, 6):
            shape = (3, 3, x.shape[-1], width)
            kernel = self.param(f"kernel_{width}", nn.initializers.normal(), shape)
            kernel = rounded(kernel * 16) / 16
            x = jax.lax.conv_general_dilated(
                x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = rounded(nn.relu(x) * 8) / 8
        return nn.Dense(5)(jnp.mean(x, axis=(1, 2)))


def test_straight_through_rounding_stays_slim():
    network = adapt(Quantised())
    variables = networks.variables_of(network, (8, 8, 3))
    plan = PrunePlan({"kernel_8": np.array([1, 4, 7]), "kernel_6": np.array([0, 3])})
    small, cut = surgery.compact(network, variables, plan, example=IMAGES)
    masked = surgery.mask(network, variables, plan, example=IMAGES)
    steps = [
        loss_and_gradients(net, jnp.asarray(IMAGES))(values)
        for net, values in ((small, cut), (network, masked))
    ]
    assert_close(steps[0][0], steps[1][0])
    gradients = cut_tree(small.cuts, {"params": steps[1][2]})["params"]
    assert_close(steps[0][2], gradients)
    assert np.abs(gradients["kernel_8"]).max() > 1e-4
    assert cut["params"]["kernel_6"].shape == (3, 3, 3, 2)
    text = surgery.explain(network, variables, plan, example=IMAGES)
    assert "its backward pass is its own" in text


def test_explain_names_what_runs_whole_and_why():
    network, variables, images = bring("group_norm")
    plan = PrunePlan({"Conv_0": np.array([0, 3, 5, 9])})
    text = surgery.explain(network, variables, plan, example=images)
    assert "Conv_0" in text and "channels 16 -> 4" in text
    assert "reshape runs whole" in text and "split into groups" in text


def test_explain_names_a_primitive_without_a_rule():
    class Summed(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = jax.lax.cumsum(nn.Conv(8, (3, 3))(x), axis=1)
            return jnp.mean(nn.Conv(5, (3, 3), name="last")(x), axis=(1, 2))

    network = adapt(Summed())
    variables = networks.variables_of(network, (6, 6, 3))
    plan = PrunePlan({"Conv_0": np.arange(4)})
    example = jnp.zeros((2, 6, 6, 3))
    *_, line = surgery.explain(network, variables, plan, example=example).splitlines()
    assert "cumsum runs whole at" in line and "there is no rule for it" in line
    assert "Summed.__call__" in line and "test_tracing.py" in line
    assert f"{6 * 6 * 4:,} entries per image" in line


@pytest.mark.parametrize("train", [False, True])
def test_no_gradient_of_a_slim_network_scatters(train):
    network, variables = small_network()
    plan = PrunePlan({"first": np.array([0, 2, 5]), "second": np.array([1, 3])})
    small, cut = surgery.compact(network, variables, plan, example=IMAGES)

    def squares(variables):
        if not train:
            return jnp.sum(small.apply(variables, IMAGES, train=False) ** 2)
        logits, _ = small.apply(variables, IMAGES, train=True, mutable=["batch_stats"])
        return jnp.sum(logits**2)

    assert "scatter" not in jax.jit(jax.grad(squares)).lower(cut).as_text()


def make_small(num_classes, input_shape):
    return Small()


def test_spec_rebuilds_a_slim_network_on_its_base():
    network = brought.bring(make_small, num_classes=5, input_shape=(8, 8, 3))
    plan = PrunePlan({"first": np.array([0, 2, 5])})
    small, _ = surgery.compact(network, small_network()[1], plan, example=IMAGES)
    record = json.loads(json.dumps(rebuild.spec(small)))
    assert rebuild.from_spec(record, factory=make_small) == small
    record["channels"]["first"] = [99]
    with pytest.raises(InputError, match="99"):
        rebuild.from_spec(record, factory=make_small)


def test_what_is_computed_in_advance_has_the_type_and_sign_of_its_equation():
    """1 is 1 in every type to Python, and 0 is -0; to a network they are not."""
    for dtype in (jnp.float32, jnp.float16):
        (eqn,) = jax.make_jaxpr(jax.lax.sqrt)(jnp.ones((), dtype)).eqns
        assert static_value(eqn, [np.float32(1)]).dtype == dtype
    (eqn,) = jax.make_jaxpr(jax.lax.div)(1.0, 1.0).eqns
    zeros = np.float32(0.0), np.float32(-0.0)
    found = [static_value(eqn, [np.float32(1), zero]) for zero in zeros]
    assert found == [np.inf, -np.inf]
