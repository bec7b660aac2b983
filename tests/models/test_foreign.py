"""Networks of Equinox, haiku and Keras (`fuprune[zoo]`), as they are."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune import surgery
from fuprune.models.adapt import adapt, variables_of
from fuprune.surgery import PrunePlan
from tests.surgery.networks import IMAGES


def by_equinox():
    equinox = pytest.importorskip("equinox")
    first, second, third = jax.random.split(jax.random.key(0), 3)

    class Net(equinox.Module):
        conv: equinox.nn.Conv2d
        norm: equinox.nn.GroupNorm
        blocks: list
        drop: equinox.nn.Dropout

        def __init__(self):
            self.conv = equinox.nn.Conv2d(3, 8, 3, padding=1, key=first)
            self.norm = equinox.nn.LayerNorm(8)
            self.blocks = [
                equinox.nn.Conv2d(8, 8, 3, padding=1, key=second),
                equinox.nn.Linear(8, 4, key=third),
            ]
            self.drop = equinox.nn.Dropout(0.5)

        def __call__(self, x, key):
            x = jax.nn.relu(self.conv(x))
            x = x + jax.nn.relu(self.blocks[0](x))
            return self.blocks[1](self.drop(self.norm(x.mean((1, 2))), key=key))

    return Net(), ("conv", "blocks/0")


def by_haiku():
    haiku = pytest.importorskip("haiku")

    def net(x, is_training=False):
        x = haiku.Conv2D(8, 3)(x)
        x = haiku.BatchNorm(True, True, 0.9)(x, is_training)
        x = jax.nn.relu(haiku.Conv2D(6, 3)(jax.nn.relu(x)))
        return haiku.Linear(4)(x.mean((1, 2)))

    return haiku.transform_with_state(net), ("conv2_d", "conv2_d_1")


def by_keras():
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "jax":
        pytest.skip("Keras has another backend")
    layers = keras.layers
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", name="first")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.ReLU()(layers.Conv2D(6, 3, name="second")(x))
    x = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(4)(x)), ("first", "second")


@pytest.mark.parametrize("make", [by_equinox, by_haiku, by_keras])
def test_a_network_of_another_library_is_cut_and_trained_as_it_is(make):
    model, layers = make()
    network, images = adapt(model), jnp.asarray(IMAGES)
    variables = network.init(jax.random.key(1), images)
    generator = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda x: (
            x + 0.3 * generator.normal(size=x.shape).astype(np.float32)
            if x.dtype == jnp.float32
            else x
        ),
        variables,
    )
    assert tuple(surgery.trace_layers(network, variables, images)) == layers
    plan = PrunePlan({layers[0]: np.array([0, 2, 5])})
    masked = surgery.mask(network, variables, plan, example=images)
    slim, cut = surgery.compact(network, variables, plan, example=images)

    def loss(params, net, held, train):
        held = {**held, "params": params}
        options = dict(rngs={"dropout": jax.random.key(2)}) if train else {}
        logits, new = net.apply(
            held, images, train=train, mutable=["batch_stats"], **options
        )
        return jnp.sum(jnp.sin(logits)), (logits, new)

    for train in (False, True):
        (_, (expected, _)), slope = jax.value_and_grad(loss, has_aux=True)(
            masked["params"], network, masked, train
        )
        (_, (found, new)), small_slope = jax.value_and_grad(loss, has_aux=True)(
            cut["params"], slim, cut, train
        )
        if make is not by_keras or not train:  # whose dropout has a state of its own
            np.testing.assert_allclose(found, expected, atol=1e-4)
            assert jax.tree.all(
                jax.tree.map(lambda a, b: a.size <= b.size, small_slope, slope)
            )
        if "batch_stats" in cut:
            shapes = jax.tree.map(jnp.shape, (new["batch_stats"], cut["batch_stats"]))
            assert shapes[0] == shapes[1]


@pytest.mark.parametrize("make", [by_equinox, by_keras])
def test_a_model_that_holds_its_arrays_needs_no_variables(make):
    model, layers = make()
    images = jnp.asarray(IMAGES)
    plan = PrunePlan({layers[0]: np.array([0, 2, 5])})
    slim, cut = surgery.compact(model, None, plan, example=images)
    masked = surgery.mask(model, None, plan, example=images)
    expected = adapt(model).apply(masked, images, train=False)
    np.testing.assert_allclose(slim.apply(cut, images), expected, atol=1e-5)
    assert set(variables_of(model)) >= {"params"}


def test_a_function_of_its_parameters_is_a_network():
    def net(params, x):
        return jnp.mean(x, (1, 2)) @ params["kernel"]

    network = adapt(net, init=lambda key, images: {"params": {"kernel": jnp.eye(3)}})
    variables = network.init(jax.random.key(0), IMAGES)
    np.testing.assert_allclose(
        network.apply(variables, IMAGES), IMAGES.mean((1, 2)), rtol=1e-5
    )
