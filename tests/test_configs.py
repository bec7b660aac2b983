import ast

import jax
import jax.numpy as jnp
import pytest

from fuprune import config as config_lib
from fuprune.data.known_sets import KNOWN_SETS
from tests.loading import load_module

FAMILIES = {
    "cifar10_resnet": ("resnet", ["20", "32", "44", "56"]),
    "cifar10_resnet_cpu": ("resnet", ["20", "32", "44", "56"]),
    "cifar10_vgg_cpu": ("vgg", ["11", "13", "16", "19"]),
    "cifar100_resnet_cpu": ("resnet", ["20", "32", "44", "56"]),
    "cifar10_vgg": ("vgg", ["11", "13", "16", "19"]),
    "cifar100_resnet": ("resnet", ["20", "32", "44", "56"]),
    "cifar100_vgg": ("vgg", ["11", "13", "16", "19"]),
}
SHAPES = {"digits": (8, 8, 1)}


def load(repository, name):
    return load_module(repository / "configs" / f"{name}.py")


def names(repository):
    return sorted(path.stem for path in (repository / "configs").glob("*.py"))


def test_every_config_validates_and_builds_its_model(repository):
    zoo = pytest.importorskip("fuprune.models.zoo")
    assert set(names(repository)) >= {"quickstart", *FAMILIES}
    for name in names(repository):
        config = load(repository, name).get_config()
        config_lib.validate(config)
        shape = SHAPES.get(config.data.name, (32, 32, 3))
        classes = len(KNOWN_SETS[config.data.name].class_names)
        model = zoo.create(
            config.model.name,
            num_classes=classes,
            input_shape=shape,
            norm=config.model.norm,
        )
        images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
        logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), images)
        assert logits.shape == (2, classes)


@pytest.mark.parametrize("name", FAMILIES)
def test_depth_is_an_argument_of_the_file(repository, name):
    module = load(repository, name)
    family, depths = FAMILIES[name]
    for depth in depths:
        config = module.get_config(depth)
        config_lib.validate(config)
        assert config.model.name == f"{family}{depth}"
    with pytest.raises(config_lib.ConfigError, match=f"model.name is '{family}57'"):
        config_lib.validate(module.get_config("57"))


@pytest.mark.parametrize("name", [*FAMILIES, "quickstart"])
def test_config_is_a_record_of_its_experiment(repository, name):
    source = (repository / "configs" / f"{name}.py").read_text()
    record = ast.get_docstring(ast.parse(source))
    for heading in ("Paper:", "Command:", "Cost:", "Expected"):
        assert heading in record, heading
    assert f"configs/{name}.py" in record


@pytest.mark.parametrize(
    ("name", "classes", "bias", "rates"),
    [
        ("cifar10_resnet", 9, 0.1, [0.05, 0.05, 0.06, 0.04]),
        ("cifar10_vgg", 9, 0.1, [0.10, 0.17, 0.11, 0.11]),
        ("cifar100_resnet", 99, 0.01, [0.1] * 4),
        ("cifar100_vgg", 99, 0.01, [0.15] * 4),
    ],
)
def test_settings_of_the_paper_are_in_its_configs(
    repository, name, classes, bias, rates
):
    for depth, rate in zip(FAMILIES[name][1], rates, strict=True):
        config = load(repository, name).get_config(depth)
        assert config_lib.classes(config) == (classes,)
        assert (config.partition.clients, config.train.cohort) == (100, 25)
        assert config.train.algorithm == "fed_sgd"
        assert (config.train.learning_rate, config.partition.bias) == (0.1, bias)
        assert config.prune.rate == rate
        assert (config.prune.order, config.prune.idf) == ("highest", "paper")


@pytest.mark.parametrize("bias", ["0.1", "0.45", "1.0"])
def test_bias_is_an_argument_of_the_file(repository, bias):
    config = load(repository, "cifar10_bias_cpu").get_config(bias)
    config_lib.validate(config)
    assert config.partition.bias == float(bias)
