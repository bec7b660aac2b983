"""Masked and compacted never differ in silence: small cases, and drawn networks.

The networks are drawn from a grammar of primitives: parameters that are used in several
places, numbers that stand for all channels, norms over channels, gates, loops.
"""

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune import surgery
from fuprune.models.adapt import adapt
from fuprune.surgery import PrunePlan
from tests import reference_jaxpr
from tests.surgery import networks

IMAGES = np.random.default_rng(1).normal(size=(2, 4, 4, 3)).astype(np.float32)
NUMBER = st.integers(0, 1)
WIDTH = st.sampled_from([4, 6])
SHAPES = st.sampled_from(["channels", "one", "number", "in front"])
OPERATIONS = st.one_of(
    st.tuples(st.just("conv"), WIDTH, st.sampled_from([1, 3])),
    st.tuples(st.just("grouped"), st.booleans()),
    st.tuples(st.sampled_from(["add", "multiply"]), NUMBER, SHAPES),
    st.tuples(st.just("read"), NUMBER, SHAPES),
    st.tuples(st.sampled_from(["relu", "sigmoid", "square"])),
    st.tuples(st.sampled_from(["batch_norm", "layer_norm", "softmax", "minus_max"])),
    st.tuples(st.sampled_from(["keep", "add_kept", "multiply_kept", "join_kept"])),
    st.tuples(st.sampled_from(["gate", "squeeze", "scan", "pad", "slice", "pool"])),
)


class Drawn(nn.Module):
    """What a list of operations says; those that do not fit are left out."""

    operations: tuple

    @nn.compact
    def __call__(self, x, train: bool = False):
        kept, extra = x, 0.0

        def parameter(number, kind):
            width = x.shape[-1]
            shape = {
                "channels": (width,),
                "one": (1,),
                "number": (),
                "in front": (1, 1, width),
            }[kind]
            name = f"shared{number}_{kind.replace(' ', '_')}_{width}"
            if self.has_variable("params", name):
                return self.get_variable("params", name)
            return self.param(name, nn.initializers.normal(1.0), shape)

        for operation, *about in self.operations:
            match operation:
                case "conv":
                    x = nn.Conv(about[0], (about[1], about[1]))(x)
                case "grouped" if x.shape[-1] % 2 == 0:
                    groups = x.shape[-1] if about[0] else 2
                    conv = nn.Conv(x.shape[-1], (3, 3), feature_group_count=groups)
                    x = conv(x)
                case "add":
                    x = x + parameter(*about)
                case "multiply":
                    x = x * parameter(*about)
                case "read":
                    extra = extra + nn.Dense(3)(parameter(*about).reshape(1, -1))
                case "relu" | "sigmoid" | "softmax":
                    x = getattr(nn, operation)(x)
                case "square":
                    x = x * x / (1 + jnp.abs(x))
                case "batch_norm":
                    x = nn.BatchNorm(use_running_average=True)(x)
                case "layer_norm":
                    x = nn.LayerNorm()(x)
                case "minus_max":
                    x = x - jnp.max(x, axis=-1, keepdims=True)
                case "keep":
                    kept = x
                case "add_kept" if kept.shape == x.shape:
                    x = x + kept
                case "multiply_kept" if kept.shape == x.shape:
                    x = x * kept
                case "join_kept" if kept.shape[:-1] == x.shape[:-1]:
                    x = jnp.concatenate([x, kept], axis=-1)
                case "gate" if x.shape[-1] % 2 == 0:
                    a, b = jnp.split(x, 2, axis=-1)
                    x = a * nn.sigmoid(b)
                case "squeeze":
                    y = jnp.mean(x, axis=(1, 2), keepdims=True)
                    x = x * nn.sigmoid(nn.Conv(x.shape[-1], (1, 1))(y))
                case "scan":
                    shift = parameter(0, "channels")
                    x, _ = jax.lax.scan(
                        lambda y, _, by=shift: (0.5 * y + by, None), x, None, length=2
                    )
                case "pad":
                    x = jnp.pad(x, [(0, 0)] * 3 + [(1, 1)])
                case "slice" if x.shape[-1] > 1:
                    x = x[..., 1:]
                case "pool" if x.shape[1] > 1:
                    x = x[:, ::2, ::2]
        return nn.Dense(3)(jnp.mean(x, axis=(1, 2))) + extra


def difference(module, keep, dense=False):
    """|masked - compacted| over |masked|, in float64."""
    with jax.enable_x64(True):
        images, network = np.asarray(IMAGES, np.float64), adapt(module)
        variables = jax.tree.map(
            lambda x: np.asarray(x, np.float64),
            networks.variables_of(network, (4, 4, 3)),
        )
        layers = surgery.trace_layers(network, variables, images, dense=dense)
        plan = PrunePlan(keep(layers) if callable(keep) else keep)
        masked = surgery.mask(network, variables, plan, example=images)
        small, cut = surgery.compact(network, variables, plan, example=images)
        expected, found = (
            reference_jaxpr.trace(lambda v, n=n: n.apply(v, images, train=False), v)(v)
            for n, v in ((network, masked), (small, cut))
        )
    return np.abs(found - expected).max() / max(1e-3, np.abs(expected).max())


def check_drawn(operations, seed):
    generator = np.random.default_rng(seed)

    def keep(layers):
        shares = generator.uniform(0.2, 1.0, len(layers))
        return {
            name: np.sort(
                generator.permutation(layer.channels)[
                    : max(1, int(share * layer.channels))
                ]
            )
            for (name, layer), share in zip(layers.items(), shares, strict=True)
        }

    assert difference(Drawn(tuple(operations)), keep) < 1e-10


LISTS = st.lists(OPERATIONS, min_size=3, max_size=12)


@hypothesis.settings(max_examples=100)
@hypothesis.given(LISTS, st.integers(0, 1000))
def test_any_network_of_the_grammar_is_exact(operations, seed):
    check_drawn(operations, seed)


@pytest.mark.slow
@hypothesis.settings(max_examples=3000)
@hypothesis.given(LISTS, st.integers(0, 1000))
def test_thousands_of_networks_of_the_grammar_are_exact(operations, seed):
    check_drawn(operations, seed)


class Twice(nn.Module):
    """As in CaiT: a token is read by itself and added to what a layer gives."""

    after: str = "norm"

    @nn.compact
    def __call__(self, x):
        token = self.param("token", nn.initializers.normal(1.0), (1, 8))
        y = token + nn.Conv(8, (3, 3), name="a")(x).mean((1, 2))
        y = nn.LayerNorm()(y) if self.after == "norm" else nn.softmax(y)
        return nn.Dense(4)(y) + nn.Dense(4)(token)


class SharedBias(nn.Module):
    """One bias for two layers that keep different channels, then norms."""

    @nn.compact
    def __call__(self, x):
        shared = self.param("shared", nn.initializers.normal(1.0), (8,))
        x = x.mean((1, 2), keepdims=True)
        a = nn.LayerNorm()(nn.Conv(8, (1, 1), name="a")(x) + shared)
        b = nn.LayerNorm()(nn.Conv(8, (1, 1), name="b")(x) + shared)
        return nn.Dense(4)(jnp.concatenate([a, b], -1).mean((1, 2)))


class Shifted(nn.Module):
    """A learned number shifts all channels, then a norm."""

    shape: tuple

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), name="a")(x)).mean((1, 2))
        x = x + self.param("shift", nn.initializers.ones, self.shape)
        return nn.Dense(4)(nn.LayerNorm()(x))


class Gated(nn.Module):
    """Squeeze and excite: the bias of a gate that stays whole meets dead channels."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), name="a")(x))
        squeezed = jnp.mean(x, axis=(1, 2), keepdims=True)
        gate = nn.sigmoid(nn.Conv(8, (1, 1), name="gate")(squeezed))
        return nn.Dense(4)(jnp.mean(x * gate, axis=(1, 2)))


class Scaled(nn.Module):
    """A dead channel has half the value of a parameter, and axes come and move."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, ())
        x = nn.relu(nn.sigmoid(nn.Conv(8, (3, 3), name="a")(x)) * scale)
        x = jnp.moveaxis(x[:, None], -1, 1)
        return nn.Dense(4)(jnp.mean(x, axis=(2, 3, 4)))


HALF, OTHERS = np.arange(4), np.arange(2, 8)


@pytest.mark.parametrize(
    ("module", "keep"),
    [
        (Twice(), {"a": HALF}),
        (Twice("softmax"), {"a": HALF}),
        (SharedBias(), {"a": HALF, "b": OTHERS}),
        *((Shifted(shape), {"a": HALF}) for shape in ((), (1,), (1, 1))),
        *((Gated(), {"a": HALF, "gate": kept}) for kept in (np.arange(8), OTHERS)),
        (Scaled(), {"a": HALF}),
    ],
    ids=str,
)
def test_parameters_that_live_elsewhere_do_not_die_with_a_layer(module, keep):
    assert difference(module, keep) < 1e-10
    # They keep their values: only what the plan says is gone.
    network = adapt(module)
    variables = networks.variables_of(network, (4, 4, 3))
    masked = surgery.mask(network, variables, PrunePlan(keep), example=IMAGES)
    for name in ("token", "shared", "shift", "scale"):
        if name in variables["params"]:
            np.testing.assert_array_equal(
                masked["params"][name], variables["params"][name]
            )


def test_a_dead_channel_with_the_value_of_a_parameter_has_its_gradient():
    network, plan = adapt(Scaled()), PrunePlan({"a": HALF})
    variables = networks.variables_of(network, (4, 4, 3))
    slim, cut = surgery.compact(network, variables, plan, example=IMAGES)
    masked = surgery.mask(network, variables, plan, example=IMAGES)
    slopes = [
        jax.grad(lambda v, net=net: jnp.sum(net.apply(v, IMAGES) ** 2))(v)
        for net, v in ((slim, cut), (network, masked))
    ]
    first, second = (slope["params"]["scale"] for slope in slopes)
    np.testing.assert_allclose(first, second, rtol=1e-5)


class Table(nn.Module):
    """As in Swin V2: a position bias made by dense layers from a constant table."""

    rows: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        table = jnp.linspace(-1, 1, self.rows * 2).reshape(self.rows, 2)
        bias = nn.Dense(8)(nn.relu(nn.Dense(16, name="hidden")(table)))
        x = x.reshape(len(x), -1, 8) + bias.mean(0)
        return nn.Dense(4)(nn.relu(nn.Dense(24, name="mlp")(x)).mean(1))


class LowRank(nn.Module):
    """A kernel that is a product of two, and reads the images as one."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        a = self.param("a", nn.initializers.lecun_normal(), (8, 2))
        b = self.param("b", nn.initializers.lecun_normal(), (2, 16))
        return nn.Dense(4)(nn.relu(x @ (a @ b)).mean((1, 2)))


class Merged(nn.Module):
    """Patches are merged into the batch, then comes a convolution."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (1, 1))(x))
        n = len(x)
        x = x.reshape(n, 2, 2, 2, 2, 8).swapaxes(2, 3).reshape(4 * n, 2, 2, 8)
        x = nn.relu(nn.Conv(8, (1, 1), name="merged")(x)).mean((1, 2))
        return nn.Dense(4)(x.reshape(n, 32))


@pytest.mark.parametrize(
    ("module", "offered", "left_out"),
    [
        (Table(9), {"Conv_0", "mlp"}, "hidden"),
        (Table(1), {"Conv_0", "mlp"}, "hidden"),
        (Table(2), {"Conv_0", "mlp"}, "hidden"),
        (LowRank(), {"Conv_0"}, "b"),
        (Merged(), {"Conv_0"}, "merged"),
    ],
    ids=["table of 9", "table of 1", "table of 2", "low rank", "merged"],
)
def test_layers_without_an_entry_per_image_are_not_offered(module, offered, left_out):
    network = adapt(module)
    variables = networks.variables_of(network, (4, 4, 3))
    captured = surgery.capture(network, variables, jnp.asarray(IMAGES), dense=True)
    assert set(captured) == offered
    assert all(len(outputs) == 2 for outputs in captured.values())
    text = surgery.explain(network, variables, PrunePlan({}), example=IMAGES)
    assert f"{left_out} has no entry per image" in text


class Scanned(nn.Module):
    """Four blocks in a loop."""

    @nn.compact
    def __call__(self, x):
        class Block(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return x + nn.Conv(8, (3, 3))(x), None

        scan = nn.scan(
            Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
        )
        x, _ = scan()(nn.Conv(8, (3, 3))(x), None)
        return nn.Dense(4)(x.mean((1, 2)))


def total(module, keep):
    network = adapt(module)
    variables = networks.variables_of(network, (4, 4, 3))
    plan = PrunePlan(keep)
    return surgery.plan_report(network, plan, (4, 4, 3), variables=variables)[-1]


def test_flops_inside_a_loop_are_counted():
    found = total(Scanned(), {})
    convolutions = 2 * 16 * 9 * (3 * 8 + 4 * 8 * 8)
    assert found.flops_before == found.flops_after == convolutions + 2 * 8 * 4
    network = adapt(Scanned())
    variables = networks.variables_of(network, (4, 4, 3))
    text = surgery.explain(network, variables, PrunePlan({}), example=IMAGES)
    inside = 2 * 16 * 9 * 4 * 8 * 8
    assert f"about {inside:,} FLOPs per image are inside loops" in text


class Grouped(nn.Module):
    """A convolution in four groups."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(16, (1, 1), name="a")(x))
        x = nn.relu(nn.Conv(16, (3, 3), feature_group_count=4, name="b")(x))
        return nn.Dense(4)(x.mean((1, 2)))


def test_flops_of_groups_are_those_that_are_computed():
    # Groups must be equally wide: one that keeps all of its channels makes all do so.
    keep = {"b": np.array([0, 1, 2, 3, 4, 8, 12])}
    head = 2 * 16 * 4
    first, second = 2 * 16 * 3 * 16, 2 * 16 * 9 * 4 * 16
    found = total(Grouped(), keep)
    assert found.flops_before == first + second + head
    assert found.flops_after == first + second + 2 * 7 * 4
    # Of groups that keep as many each, only those are computed.
    found = total(Grouped(), {"b": np.arange(0, 16, 4)})
    assert found.flops_after == first + second // 4 + 2 * 4 * 4
