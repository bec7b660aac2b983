"""Other people's networks through the whole house: methods, and the audit."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import fuprune
from fuprune.data.federated import federate
from fuprune.models.adapt import adapt
from fuprune.surgery import SlimNetwork
from fuprune.unlearning.methods import METHODS, options_of
from tests.surgery import networks


class Plain(nn.Module):
    """Two convolutions and a head, with no argument but the images."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (3, 3))(x))
        x = nn.swish(nn.Conv(5, (3, 3), feature_group_count=1)(x))
        return nn.Dense(4, name="head")(jnp.mean(x, axis=(1, 2)))


def make_fit(rounds=1):
    def fit(model, variables, data, key):
        trainer = fuprune.fed_avg(model, client_optimizer=optax.sgd(0.05), batch_size=8)
        return fuprune.fit(
            trainer,
            trainer.init(variables),
            data,
            key=key,
            cohort_size=2,
            rounds=rounds,
        )

    return fit


def run(name, model, variables, data, num_classes):
    given = {"num_classes": num_classes, "rate": 0.3, "batch_size": 8}
    options = {k: v for k, v in given.items() if k in options_of(name)}
    return METHODS[name](
        model,
        variables,
        data,
        (1,),
        key=jax.random.key(0),
        fine_tune=make_fit(),
        **options,
    )


def small_federation(shape=(6, 6, 1), classes=4, number=24):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (number, *shape), dtype=np.uint8)
    labels = np.arange(number, dtype=np.int32) % classes
    parts = np.array_split(np.arange(number), 2)
    return federate(fuprune.Dataset(images, labels), parts)


def test_class_pruning_cuts_a_network_of_somebody_else_and_trains_it():
    network, data = adapt(Plain()), small_federation()
    variables = networks.variables_of(network, (6, 6, 1))
    result = run("class_pruning", network, variables, data, 4)
    assert isinstance(result.model, SlimNetwork)
    logits = result.model.apply(result.variables, jnp.zeros((2, 6, 6, 1)), train=False)
    assert logits.shape == (2, 4)
    assert np.isfinite(logits).all()


@pytest.mark.slow
@pytest.mark.parametrize("surgery", ["mask", "compact"])
def test_both_surgeries_fine_tune_alike(surgery):
    network, data = adapt(Plain()), small_federation()
    variables = networks.variables_of(network, (6, 6, 1))
    result = METHODS["class_pruning"](
        network, variables, data, (1,), key=jax.random.key(0), fine_tune=make_fit(),
        num_classes=4, rate=0.3, batch_size=8, surgery=surgery,
    )  # fmt: skip
    images = jnp.ones((2, 6, 6, 1))
    logits = result.model.apply(result.variables, images, train=False)
    assert np.isfinite(logits).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(networks.NETWORKS))
def test_class_pruning_runs_on_every_network(name):
    made = networks.NETWORKS[name].make()
    if isinstance(made, nnx.Module):
        made = functools.partial(_make, type(made))
    network = adapt(made)
    data = small_federation(networks.INPUT_SHAPE, networks.CLASSES, 20)
    variables = networks.variables_of(network)
    result = run("class_pruning", network, variables, data, networks.CLASSES)
    assert isinstance(result.model, SlimNetwork)


def _make(kind, rngs):
    return kind(rngs=rngs)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "amnesiac"])
def test_every_method_runs_on_a_network_of_somebody_else(method):
    network, data = adapt(Plain()), small_federation()
    variables = networks.variables_of(network, (6, 6, 1))
    result = run(method, network, variables, data, 4)
    images = jnp.zeros((2, 6, 6, 1))
    logits = result.model.apply(result.variables, images, train=False)
    assert np.isfinite(logits).all()


@pytest.mark.slow
def test_the_example_takes_a_network_from_training_to_audit(repository, capsys):
    path = repository / "docs" / "own_network.py"
    spec = importlib.util.spec_from_file_location("own_network", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report = module.main(rounds=2)
    assert "Conv_0 16 ->" in capsys.readouterr().out
    assert report.candidates == ["class_pruning"]
