import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.audit import outputs
from fuprune.models.fresh import init_variables
from tests.audit.conftest import Perceptron


class Convolutional(nn.Module):
    """A net with batch norm, its layers named like the zoo's."""

    channels: int = 4

    def setup(self):
        self.stem = Layer(self.channels)
        self.body = Layer(2 * self.channels)
        self.head = nn.Dense(3)

    def features(self, images, train=False):
        return self.body(self.stem(images, train), train).mean(axis=(1, 2))

    def __call__(self, images, train=False):
        return self.head(self.features(images, train))


class Layer(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, images, train):
        images = nn.Conv(self.channels, (3, 3), name="conv")(images)
        images = nn.BatchNorm(use_running_average=not train, name="norm")(images)
        return nn.relu(images)


class Hiding(nn.Module):
    """Masks a logit after the fact, as a wrapper might."""

    @nn.compact
    def __call__(self, images):
        logits = Perceptron(width=8, name="inner")(images)
        return jnp.where(jnp.arange(4) == 3, -jnp.inf, logits)


class Headless(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.Conv(3, (1, 1))(images).mean(axis=(1, 2))


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, images, train=False):
        x = nn.Dense(8)(images.reshape(len(images), -1))
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))


def images_of(count, channels=1):
    return np.random.default_rng(0).random((count, 6, 6, channels), np.float32)


def identity(images):
    return images


def variables_of(model, seed=0):
    return init_variables(model, jax.random.key(seed), images_of(1))


def test_batched_outputs_equal_a_single_pass():
    model, images = Convolutional(), images_of(11)
    variables = variables_of(model)
    found = outputs.compute_outputs(
        model, variables, images, identity, batch_size=4, activations=True
    )
    np.testing.assert_allclose(
        found.logits, model.apply(variables, images), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        found.features,
        model.apply(variables, images, method="features"),
        rtol=1e-5,
        atol=1e-6,
    )
    assert set(found.activations) == {"stem", "body"}
    convolved = nn.Conv(4, (3, 3)).apply(
        {"params": variables["params"]["stem"]["conv"]}, images
    )
    np.testing.assert_allclose(
        found.activations["stem"], convolved.mean(axis=(1, 2)), rtol=1e-4, atol=1e-6
    )


def test_features_default_to_the_input_of_the_last_dense_layer():
    model, images = Perceptron(), images_of(5)
    variables = variables_of(model)
    found = outputs.compute_outputs(
        model, variables, images, identity, batch_size=5, activations=True
    )
    head = variables["params"]["head"]
    np.testing.assert_allclose(
        found.features @ head["kernel"] + head["bias"], found.logits, atol=1e-5
    )
    assert set(found.activations) == {"first", "second"}


def test_own_features_method_is_used_even_if_the_call_does_not_go_through_it():
    class Own(nn.Module):
        def setup(self):
            self.head = nn.Dense(2)

        def features(self, images):
            return 7.0 + images.reshape(len(images), -1)

        def __call__(self, images):
            return self.head(images.reshape(len(images), -1))

    model, images = Own(), images_of(3)
    found = outputs.compute_outputs(model, variables_of(model), images, identity)
    np.testing.assert_allclose(found.features, 7.0 + images.reshape(3, -1), rtol=1e-6)


def test_head_is_found_and_seen_through_a_masking_wrapper():
    model, images = Hiding(), images_of(4)
    variables = variables_of(model)
    assert outputs.find_head(model, variables, images) == ("inner", "head")
    found = outputs.compute_outputs(model, variables, images, identity)
    assert np.isneginf(found.logits[:, 3]).all()
    head = ("inner", "head")
    seen = outputs.evaluation_logits(model, head, variables, images)
    assert np.isfinite(seen).all()
    logits, _ = outputs.training_logits(
        model, head, variables, images, jax.random.key(0)
    )
    np.testing.assert_allclose(logits, seen, rtol=1e-5, atol=1e-6)


class Squeezing(nn.Module):
    """Loses the axis of a batch of one, and puts it back for its answer."""

    @nn.compact
    def __call__(self, x, train: bool):
        x = jnp.squeeze(nn.avg_pool(x, x.shape[1:3]))
        return nn.Dense(3, name="last")(x).reshape(-1, 3)


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_head_does_not_depend_on_the_size_of_the_batch(batch):
    model = Squeezing()
    variables = init_variables(model, jax.random.key(0), jnp.ones((2, 4, 4, 5)))
    images = np.ones((batch, 4, 4, 5), np.float32)
    assert outputs.find_head(model, variables, images) == ("last",)


def test_resetting_the_head_touches_only_the_forgotten_columns():
    model = Perceptron()
    variables = variables_of(model)
    reset = outputs.with_forgotten_columns_reset(variables, ("head",), (1, 3))
    kernel, old = (
        reset["params"]["head"]["kernel"],
        variables["params"]["head"]["kernel"],
    )
    assert not kernel[:, [1, 3]].any()
    np.testing.assert_array_equal(kernel[:, [0, 2]], old[:, [0, 2]])
    assert reset["params"]["first"] is variables["params"]["first"] or np.array_equal(
        reset["params"]["first"]["kernel"], variables["params"]["first"]["kernel"]
    )
    assert outputs.with_forgotten_columns_reset(variables, None, (1,)) is variables


def test_model_without_features_says_what_to_add():
    model = Headless()
    with pytest.raises(ValueError, match="method `features"):
        outputs.compute_outputs(model, variables_of(model), images_of(2), identity)


def test_training_pass_updates_batch_statistics_and_feeds_dropout():
    model = Convolutional()
    variables = variables_of(model)
    _, state = outputs.training_logits(
        model, ("head",), variables, images_of(4), jax.random.key(0)
    )
    old = variables["batch_stats"]["stem"]["norm"]["mean"]
    assert not np.allclose(state["batch_stats"]["stem"]["norm"]["mean"], old)
    dropping = Dropping()
    one, two = (
        outputs.training_logits(
            dropping, None, variables_of(dropping), images_of(4), jax.random.key(seed)
        )[0]
        for seed in (0, 1)
    )
    assert not np.allclose(one, two)


def test_models_of_one_architecture_share_a_compilation():
    images = images_of(3)
    one, two = (
        variables_of(Perceptron(width=5), 1),
        variables_of(Perceptron(width=5), 2),
    )
    outputs.compute_outputs(Perceptron(width=5), one, images, identity, batch_size=2)
    before = outputs.forward._cache_size()
    outputs.compute_outputs(Perceptron(width=5), two, images, identity, batch_size=2)
    assert outputs.forward._cache_size() == before
