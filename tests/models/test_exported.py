"""Networks saved as programs: evaluated and trained without their code."""

import functools
import json

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors
import safetensors.numpy

import fuprune
from fuprune import export, surgery
from fuprune.errors import InputError
from fuprune.models import exported
from fuprune.models.adapt import adapt
from fuprune.models.exported import ExportedNetwork
from tests.surgery import networks

SHAPE = (6, 6, 1)


class Net(nn.Module):
    """A convolution, its norm, dropout and a head: made by no factory."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Conv(5, (3, 3))(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x.mean((1, 2)))
        return nn.Dense(4, name="head")(x)


@functools.cache
def slim():
    network = adapt(Net())
    variables = networks.variables_of(network, SHAPE)
    plan = surgery.PrunePlan({"Conv_0": np.array([0, 2, 3])})
    return surgery.compact(network, variables, plan, example=jnp.zeros((2, *SHAPE)))


class Tempered(nn.Module):
    """A network with a parameter that is one number."""

    num_classes: int = 4

    @nn.compact
    def __call__(self, x, train: bool = False):
        temperature = self.param("temperature", nn.initializers.ones, ())
        return nn.Dense(self.num_classes)(x.mean((1, 2))) / temperature


def make_tempered(num_classes, input_shape):
    return Tempered(num_classes)


@pytest.mark.parametrize("factory", [None, make_tempered])
def test_a_parameter_that_is_one_number_is_saved(tmp_path, factory):
    network = adapt(Tempered())
    if factory is not None:
        network = fuprune.bring(factory, num_classes=4, input_shape=SHAPE)
    variables = networks.variables_of(network, SHAPE)
    path = tmp_path / "model.safetensors"
    export.save_safetensors(path, network, variables, input_shape=SHAPE)
    loaded, found = export.load_safetensors(path, factory=factory)
    chex.assert_trees_all_equal(found, dict(variables))
    images = jnp.ones((3, *SHAPE))
    np.testing.assert_allclose(
        loaded.apply(found, images), network.apply(variables, images), rtol=1e-6
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    fuprune.save_model(path, *slim())
    return path


def test_a_slim_network_without_a_factory_is_saved_and_evaluated(folder):
    network, variables = slim()
    loaded, read = fuprune.load(folder)
    assert isinstance(loaded, ExportedNetwork)
    assert (loaded.input_shape, loaded.num_classes) == (SHAPE, 4)
    assert loaded == fuprune.load(folder)[0]
    chex.assert_trees_all_equal(read, dict(variables))
    with safetensors.safe_open(folder / "model.safetensors", framework="numpy") as file:
        spec = json.loads(file.metadata()["spec"])
    assert spec == {"program": {"input_shape": [6, 6, 1], "num_classes": 4,
                                "trains": True}}  # fmt: skip
    for number in (1, 3):
        images = jax.random.normal(jax.random.key(number), (number, *SHAPE))
        np.testing.assert_allclose(
            loaded.apply(read, images), network.apply(variables, images), atol=1e-5
        )


def test_the_programs_are_trained_like_the_network(folder):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (16, *SHAPE), dtype=np.uint8)
    dataset = fuprune.Dataset(images, np.arange(16, dtype=np.int32) % 4)
    data = fuprune.federate(dataset, np.array_split(np.arange(16), 2))

    def trained(network, variables):
        trainer = fuprune.fed_avg(
            network, client_optimizer=optax.sgd(0.1), batch_size=4, backend="loop"
        )
        cohort = fuprune.whole_cohort(data)
        state = trainer.init(variables)
        return trainer.round(state, cohort, jax.random.key(1))[0].variables

    after = [trained(*slim()), trained(*fuprune.load(folder))]
    chex.assert_trees_all_close(dict(after[0]), dict(after[1]), atol=1e-5)
    assert not np.allclose(
        after[1]["batch_stats"]["BatchNorm_0"]["mean"],
        slim()[1]["batch_stats"]["BatchNorm_0"]["mean"],
    )


def test_a_program_says_what_it_cannot_do(folder, tmp_path):
    loaded, variables = fuprune.load(folder)
    images = jnp.zeros((2, *SHAPE))
    with pytest.raises(InputError, match="cannot be initialised afresh"):
        loaded.init(jax.random.key(0), images)
    only = ExportedNetwork(loaded.evaluation, None)
    fuprune.save_model(tmp_path, only, variables)
    again, _ = fuprune.load(tmp_path)
    with pytest.raises(InputError, match="saved for evaluation only"):
        again.apply(variables, images, train=True)
    network = adapt(Net())
    with pytest.raises(InputError, match="pass their shape"):
        fuprune.save_model(tmp_path, network, networks.variables_of(network, SHAPE))


def drop_evaluation(arrays, spec):
    del arrays["program/evaluation"]


def swap(arrays, spec):
    arrays["program/evaluation"] = arrays["program/training"]


def scramble(arrays, spec):
    arrays["program/training"] = arrays["program/training"][::-1].copy()


def lie(arrays, spec):
    spec["program"]["num_classes"] = 5


def narrow(arrays, spec):
    arrays["params/head/bias"] = arrays["params/head/bias"][:2].copy()


def call_out(arrays, spec):
    def function(variables, images):
        sort = jnp.linalg.eigh(jnp.eye(4) * images.mean())[0]
        return images.mean((1, 2)) + sort

    network = exported.export_network(adapt(function), {"params": {}}, SHAPE)
    arrays["program/evaluation"] = np.frombuffer(network.evaluation, np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_evaluation, "lacks program/evaluation"),
        (swap, "of another form"),
        (scramble, "not a StableHLO export"),
        (lie, "but its programs are"),
        (narrow, r"but the model has float32\[4\]"),
        (call_out, "calls out of itself"),
    ],
)
def test_a_crafted_file_of_programs_is_one_error(folder, tmp_path, change, message):
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    with safetensors.safe_open(folder / "model.safetensors", framework="numpy") as file:
        metadata = file.metadata()
    spec = json.loads(metadata["spec"])
    change(arrays, spec)
    metadata["spec"] = json.dumps(spec)
    safetensors.numpy.save_file(arrays, tmp_path / "crafted", metadata=metadata)
    with pytest.raises(InputError, match=message) as caught:
        export.load_safetensors(tmp_path / "crafted")
    assert "\n" not in str(caught.value)
