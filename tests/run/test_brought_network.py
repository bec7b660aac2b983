"""A network of the user's own, named on the command line, through whole runs."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuprune
from fuprune import config as configuration
from fuprune import results, surgery
from fuprune.errors import FupruneError, InputError
from fuprune.models.brought import bring
from fuprune.models.fresh import init_variables
from fuprune.run import build, experiment
from fuprune.surgery import PrunePlan, rebuild
from tests.settings import quickstart

SHAPE, CLASSES = (6, 6, 1), 3
SOURCE = """
import flax.linen as nn
from flax import nnx


class Net(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Conv(5, (3, 3), strides=2)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = x + nn.relu(nn.Conv(5, (3, 3))(x))
        return nn.Dense(self.classes, name="last")(x.mean((1, 2)))


class Wrapped(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x, train=False):
        return Net(self.classes, name="inner")(x, train)


def make_model(num_classes, input_shape):
    return Wrapped(num_classes)


def make_other(num_classes, input_shape):
    return Net(num_classes)


def narrow(num_classes, input_shape):
    return Net(num_classes - 1)


def picky(num_classes):
    return Net(num_classes)


def deep(num_classes, input_shape):
    return nn.Sequential([nn.Dense(3), lambda x: x.reshape(7, -1)])


constant = 3
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module `own_nets` in the working directory, which is not yet on the path."""
    (tmp_path / "own_nets.py").write_text(SOURCE)
    (tmp_path / "bad_nets.py").write_text("1 +\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_nets", "bad_nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    sys.modules.pop("own_nets", None)


def make(name="own_nets:make_model"):
    return bring(name, num_classes=CLASSES, input_shape=SHAPE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent_nets:make", "failed: ModuleNotFoundError: No module named"),
        ("bad_nets:make", "bad_nets:make failed: SyntaxError"),
        ("own_nets:constant", "'own_nets:constant' is no function"),
        ("own_nets:picky", "failed: TypeError: .*input_shape"),
        ("own_nets:narrow", r"to an array \[2, 2\], but must give logits \[2, 3\]"),
        ("own_nets:deep", "given images .* failed"),
        ("own_nets", "name one as package.module:factory"),
    ],
)
def test_a_factory_that_cannot_be_used_is_one_line(package, name, message):
    with pytest.raises(InputError, match=message) as caught:
        make(name)
    assert "\n" not in str(caught.value)


def test_kernels_of_ours_are_not_promised_to_a_network_of_others():
    for key, value in (("runtime.conv", "onednn"), ("runtime.dtype", "bfloat16")):
        config = quickstart()
        configuration.update(config, {"model.name": "own:make", key: value})
        with pytest.raises(FupruneError, match=f"{key} is '{value}'"):
            build.convolutions(config)


def cut(model):
    image = jnp.zeros((1, *SHAPE))
    variables = init_variables(model, jax.random.key(0), image)
    layers = surgery.layer_names(model, variables)
    plan = PrunePlan({layer: np.array([0, 2, 3]) for layer in layers})
    slim, smaller = surgery.compact(model, variables, plan)
    pinned = surgery.pin(model, variables, plan)
    masked = surgery.mask(model, variables, plan)
    return {
        "whole": (model, variables),
        "slim": (slim, smaller),
        "pinned": (pinned, masked),
    }


@pytest.mark.parametrize("form", ["whole", "slim", "pinned"])
def test_a_saved_network_is_the_same_again(package, form):
    model, variables = cut(make())[form]
    spec = json.loads(json.dumps(rebuild.spec(model)))
    again = rebuild.from_spec(spec, factory="own_nets:make_model")
    # Equal and of equal hash: what jit compiled for one serves the other.
    assert again == model
    assert hash(again) == hash(model)
    assert (again.num_classes, again.input_shape) == (CLASSES, SHAPE)
    fuprune.save_safetensors(package / "model.safetensors", model, variables)
    loaded, values = fuprune.load(
        package / "model.safetensors", factory="own_nets:make_model"
    )
    assert loaded == model
    images = jnp.ones((2, *SHAPE))
    np.testing.assert_array_equal(
        model.apply(variables, images), loaded.apply(values, images)
    )


@pytest.mark.parametrize("form", ["whole", "slim"])
def test_a_file_imports_nothing_unless_the_caller_names_it(package, form):
    model, variables = cut(make())[form]
    path = package / "model.safetensors"
    fuprune.save_safetensors(path, model, variables)
    del sys.modules["own_nets"]
    for given in (None, "own_nets:make_other", "other_nets:make_model"):
        with pytest.raises(InputError, match="made by the factory 'own_nets:make_mod"):
            fuprune.load(path, factory=given)
    assert "own_nets" not in sys.modules
    whole = getattr(model, "base", model)
    loaded, _ = fuprune.load(path, factory=lambda num_classes, input_shape: whole)
    assert loaded.num_classes == CLASSES
    assert "own_nets" not in sys.modules


CRAFTED = {
    "deeply nested": lambda spec: [spec := {**spec, "base": spec} for _ in range(9)][8],
    "another key": lambda spec: {**spec, "code": "1"},
    "huge channels": lambda spec: {
        **spec,
        "channels": {layer: [10**30] for layer in spec["channels"]},
    },
    "too many classes": lambda spec: {
        **spec,
        "base": {**spec["base"], "num_classes": 10**12},
    },
}


@pytest.mark.parametrize("craft", CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_spec_of_a_cut_network_is_one_error(package, craft):
    spec = rebuild.spec(cut(make())["slim"][0])
    with pytest.raises(InputError) as caught:
        rebuild.from_spec(craft(spec), factory="own_nets:make_model")
    assert "\n" not in str(caught.value)


def run_and_stop(config, workdir, phase):
    """Starts a run that stops after the first round of a phase."""

    class Stop(Exception):
        pass

    def watch(row):
        if row["phase"] == phase and row["round"] >= 1:
            raise Stop

    with pytest.raises(Stop):
        experiment.run(config, workdir, on_row=[watch])


@pytest.mark.slow
def test_a_run_with_a_network_of_the_user_resumes_and_reports(package):
    config = quickstart()
    values = {
        "model.name": "own_nets:make_model",
        "phases": "pretrain,unlearn,report",
        "unlearn.methods": "class_pruning,mask_logit",
        "train.rounds": 2,
        "train.checkpoint_every": 1,
        "prune.rate": 0.3,
    }
    configuration.update(config, values)
    workdir = package / "run"
    workdir.mkdir()
    run_and_stop(config, workdir, "unlearn/class_pruning")
    record = experiment.run(config, workdir)
    assert record.model["factory"] == "own_nets:make_model"
    assert [row.error for row in record.methods] == [None, None]
    assert (workdir / "report" / "report.html").is_file()
    model, variables = fuprune.load(
        workdir / "models" / "class_pruning", factory="own_nets:make_model"
    )
    assert isinstance(model, surgery.SlimNetwork)
    assert model.apply(variables, jnp.zeros((2, 8, 8, 1))).shape == (2, 10)
    # The head is found where it is, inside another module.
    _, masked = fuprune.load(
        workdir / "models" / "mask_logit", factory="own_nets:make_model"
    )
    assert masked["params"]["inner"]["last"]["bias"][9] == -1e3
    finished = results.read_record(workdir)
    assert experiment.run(config, workdir).methods == finished.methods
