import subprocess
import sys

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuprune
from fuprune import surgery
from fuprune.models import zoo
from fuprune.models.fresh import init_variables
from fuprune.models.resnet import ResNet
from fuprune.run import export
from tests.models import drawing


def cut_model(name="resnet20", norm="batch"):
    model = zoo.create(name, num_classes=5, input_shape=(8, 8, 1), norm=norm)
    variables = drawing.variables_of(model)
    return surgery.compact(model, variables, drawing.plan_for(model, 1, 0.2))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_safetensors_gives_back_model_and_variables(tmp_path, name, norm):
    model, variables = cut_model(name, norm)
    path = tmp_path / "model.safetensors"
    export.save_safetensors(path, model, variables)
    loaded, loaded_variables = export.load_safetensors(path)
    assert loaded == model
    chex.assert_trees_all_equal(loaded_variables, variables)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def make_tempered(num_classes, input_shape):
    """A network with a parameter that is one number."""

    class Tempered(nn.Module):
        @nn.compact
        def __call__(self, x, train: bool = False):
            temperature = self.param("temperature", nn.initializers.ones, ())
            return nn.Dense(num_classes)(x.mean((1, 2))) / temperature

    return Tempered()


def test_a_parameter_that_is_one_number_is_saved(tmp_path):
    network = fuprune.bring(make_tempered, num_classes=4, input_shape=(6, 6, 1))
    images = jnp.ones((3, 6, 6, 1))
    variables = network.init(jax.random.key(0), images)
    path = tmp_path / "model.safetensors"
    export.save_safetensors(path, network, variables)
    _, found = export.load_safetensors(path, factory=make_tempered)
    chex.assert_trees_all_equal(found, variables)


def test_variables_that_do_not_fit_are_not_written(tmp_path):
    model = ResNet(8, 5, (8, 8, 1))
    variables = drawing.variables_of(model)
    with pytest.raises(ValueError, match="variables lacks batch_stats"):
        export.save_safetensors(tmp_path / "m", model, {"params": variables["params"]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "norm"), [("resnet8", "group"), ("vgg11", "batch")])
def test_stablehlo_gives_the_same_logits_for_any_batch(tmp_path, name, norm):
    if name == "resnet8":
        model = ResNet(8, 5, (8, 8, 1), norm)
        model, variables = surgery.compact(
            model, drawing.variables_of(model), drawing.plan_for(model, 1)
        )
    else:
        model, variables = cut_model(name, norm)
    path = tmp_path / "model.stablehlo"
    export.export_stablehlo(model, variables, path)
    function = export.load_stablehlo(path)
    for number in (1, 3):
        images = drawing.images_for(model, number, number)
        np.testing.assert_allclose(
            function(images), drawing.evaluate(model, variables, images), atol=1e-4
        )


def test_stablehlo_file_runs_where_the_project_is_not(tmp_path):
    model = ResNet(8, 5, (8, 8, 1))
    variables = drawing.variables_of(model)
    export.export_stablehlo(model, variables, tmp_path / "model.stablehlo")
    images = drawing.images_for(model, 2)
    np.save(tmp_path / "images.npy", images)
    program = (
        "import sys, numpy, jax.export\n"
        "function = jax.export.deserialize(open('model.stablehlo', 'rb').read())\n"
        "logits = function.call(numpy.load('images.npy'))\n"
        "assert not any(name.startswith(('fuprune', 'flax')) for name in sys.modules)\n"
        "numpy.save('logits.npy', logits)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    np.testing.assert_allclose(
        np.load(tmp_path / "logits.npy"),
        drawing.evaluate(model, variables, images),
        rtol=1e-4,
        atol=1e-4,
    )


def test_the_same_model_gives_the_same_bytes(tmp_path):
    """However often it is written: resumed runs are compared byte by byte."""
    model = zoo.create("resnet20", num_classes=3, input_shape=(8, 8, 1))
    variables = init_variables(model, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    written = set()
    for _ in range(8):
        export.save_safetensors(tmp_path / "model", model, variables)
        written.add((tmp_path / "model").read_bytes())
    assert len(written) == 1
