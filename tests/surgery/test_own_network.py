"""Other people's networks through the whole house: methods, and the audit."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fuprune
from fuprune.audit import AuditData, AuditOptions
from fuprune.audit.audit import audit
from fuprune.data.federated import federate
from fuprune.data.preprocess import to_float
from fuprune.errors import UnlearnError
from fuprune.models.adapt import adapt
from fuprune.surgery import SlimNetwork
from fuprune.unlearning.fed_eraser import Replay
from fuprune.unlearning.head import head_name
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.rounds import keep_round
from tests.loading import load_module
from tests.surgery import networks

KEY = jax.random.key(3)


class Plain(nn.Module):
    """Two convolutions and a head, with no argument but the images."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (3, 3))(x))
        x = nn.swish(nn.Conv(5, (3, 3), feature_group_count=1)(x))
        return nn.Dense(4, name="head")(jnp.mean(x, axis=(1, 2)))


@functools.lru_cache(maxsize=32)
def trainer_of(model, **options):
    """One trainer for each network, so that methods share what is compiled."""
    optimizer = optax.sgd(0.05)
    return fuprune.fed_avg(model, client_optimizer=optimizer, batch_size=8, **options)


def fit(model, variables, data, key, objective=None, rounds=1):
    trainer = trainer_of(model)
    if objective is not None:
        trainer = trainer_of.__wrapped__(model, objective=objective)
    state = trainer.init(variables)
    return fuprune.fit(trainer, state, data, key=key, cohort_size=2, rounds=rounds)


def run(name, model, variables, data, num_classes, **more):
    image = jax.ShapeDtypeStruct((2, *data.images.shape[1:]), np.float32)
    given = {
        "num_classes": num_classes,
        "rate": 0.3,
        "head": head_name(model, variables, image),
        "preprocess": to_float,
        **more,
    }
    if METHODS[name].needs:
        trainer = trainer_of(model, keep_updates=True)
        state = trainer.init(variables)
        after, info = trainer.round(state, fuprune.whole_cohort(data), KEY)
        given["kept_rounds"] = [keep_round(0, variables, info)]
        given["replay"] = Replay(trainer)
        variables = after.variables
    if name == "sisa":
        given |= {"train": train_slice, "train_rounds": 2, "shards": 2, "slices": 2}
    taken = inspect.signature(METHODS[name]).parameters
    options = {k: v for k, v in given.items() if k in taken}
    return METHODS[name](
        model,
        variables,
        data,
        (1,),
        key=jax.random.key(0),
        fine_tune=fit,
        **options,
    )


def train_slice(model, variables, data, key, rounds):
    return fit(model, variables, data, key, rounds=rounds)


def small_federation(shape=(6, 6, 1), classes=4, number=24):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (number, *shape), dtype=np.uint8)
    labels = np.arange(number, dtype=np.int32) % classes
    parts = np.array_split(np.arange(number), 2)
    return federate(fuprune.Dataset(images, labels), parts)


def check_result(result, shape, classes):
    logits = result.model.apply(result.variables, jnp.zeros((2, *shape)), train=False)
    assert logits.shape == (2, classes)
    assert np.isfinite(logits).all()


# Another method with other options: their own tests are enough by default.
VARIANTS = ("prune_random", "prune_lowest", "prune_relabel", "retrain_short")


SERVE_CLASSES = [name for name, one in METHODS.items() if "classes" in one.serves]


def prepared(name):
    """A network, its variables, its data, and its number of classes."""
    if name == "plain":
        network, shape, classes = adapt(Plain()), (6, 6, 1), 4
    else:
        network, classes = networks.adapted(name, shallow=True), networks.CLASSES
        shape = networks.INPUT_SHAPE
    data = small_federation(shape, classes)
    return network, networks.variables_of(network, shape), data, classes


@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(
            name,
            method,
            marks=[pytest.mark.slow] if name != "plain" or method in VARIANTS else [],
        )
        for name in ("plain", "mobilenet", "vit", "nnx")
        for method in SERVE_CLASSES
    ],
)
def test_every_method_runs_on_a_network_of_somebody_else(name, method):
    network, variables, data, classes = prepared(name)
    result = run(method, network, variables, data, classes, dense=name == "vit")
    check_result(result, data.images.shape[1:], classes)
    cuts = "prune" in METHODS[method].sections
    assert isinstance(result.model, SlimNetwork) == cuts


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("plain", "accuracy,probe"),
        *(
            pytest.param(name, "all", marks=pytest.mark.slow)
            for name in ("mobilenet", "vit", "nnx")
        ),
    ],
)
def test_a_cut_network_of_somebody_else_is_audited(name, kinds):
    """With others in place of the retrained ones."""
    network, variables, data, classes = prepared(name)
    shape = data.images.shape[1:]
    result = run("class_pruning", network, variables, data, classes, dense=True)
    generator = np.random.default_rng(1)
    labels = np.arange(40, dtype=np.int32) % classes
    images = generator.integers(0, 256, (40, *shape), dtype=np.uint8)
    sets = AuditData(
        fuprune.Dataset(images, labels),
        fuprune.Dataset(images[::-1].copy(), labels[::-1].copy()),
        lambda batch: to_float(None, batch),
    )
    others = [
        (network, networks.variables_of(network, shape, seed=s)) for s in (1, 2, 3)
    ]
    options = AuditOptions(
        tests=kinds, batch_size=8, shadows=2, shadow_steps=2, relearn_steps=2
    )
    report = audit(
        {"cut": (result.model, result.variables)},
        others,
        (network, variables),
        sets,
        (1,),
        jax.random.key(0),
        options=options,
    )
    assert report.candidates == ["cut"]


class Mixer(nn.Module):
    """No convolution: patches by reshaping, hidden layers over tokens and channels."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], 9, -1)
        x = nn.Dense(6, name="embed")(x)
        y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
        y = nn.Dense(9, name="tokens_out")(nn.gelu(nn.Dense(8, name="tokens")(y)))
        x = x + jnp.swapaxes(y, 1, 2)
        y = nn.gelu(nn.Dense(10, name="hidden")(nn.LayerNorm()(x)))
        x = x + nn.Dense(6, name="out")(y)
        return nn.Dense(4, name="head")(x.mean(1))


def test_units_of_dense_layers_are_cut_if_asked_for():
    network, data = adapt(Mixer()), small_federation()
    variables = networks.variables_of(network, (6, 6, 1))
    with pytest.raises(UnlearnError, match="set prune.dense"):
        run("class_pruning", network, variables, data, 4)
    result = run(
        "class_pruning", network, variables, data, 4, dense=True, scope="layer"
    )
    counts = {
        row["layer"]: (row["channels_before"], row["channels_after"])
        for row in result.notes["cuts"][0]["plan"]
    }
    assert counts["hidden"] == (10, 7)
    cut = [pair for layer, pair in counts.items() if layer not in ("total", "head")]
    assert 0 < counts["total"][1] < counts["total"][0] <= sum(n for n, _ in cut)
    assert "head" not in result.notes["cuts"][0]["cut"]
    check_result(result, (6, 6, 1), 4)
    kernel = result.variables["params"]["hidden"]["kernel"]
    assert kernel.shape[1] == result.variables["params"]["out"]["kernel"].shape[0] == 7


@pytest.mark.slow
def test_the_example_takes_a_network_from_training_to_audit(repository, capsys):
    report = load_module(repository / "docs" / "own_network.py").main()
    said = capsys.readouterr().out
    assert "Conv_0 16 ->" in said and "class_pruning" in said
    assert report.candidates == ["class_pruning"]
    tests = {test.name: test for test in report.tests}
    forgotten, others = (tests[name].values for name in ("u_accuracy", "r_accuracy"))
    assert forgotten["raw"] > 0.9 and forgotten["class_pruning"] < 0.1
    assert min(others["raw"], others["class_pruning"]) > 0.9
    assert max(tests["u_accuracy"].retrained) < 0.1
