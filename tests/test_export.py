import json
import subprocess
import sys

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fuprune
from fuprune import surgery
from fuprune.models import zoo
from fuprune.models.ensemble import Ensemble
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


def test_an_ensemble_is_saved_as_what_it_is_made_of(tmp_path):
    member = zoo.create("resnet8", num_classes=4, input_shape=(6, 6, 1))
    images = np.zeros((1, 6, 6, 1), np.float32)
    ensemble = Ensemble(member, 2, "votes")
    variables = jax.jit(ensemble.init)(jax.random.key(0), images)
    export.save_safetensors(tmp_path / "m", ensemble, variables)
    loaded, found = export.load_safetensors(tmp_path / "m")
    assert loaded == ensemble
    chex.assert_trees_all_equal(found, variables)


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


def test_safetensors_from_disk_gives_the_same_logits(tmp_path):
    model, variables = cut_model("vgg11")
    images = drawing.images_for(model, 2)
    export.save_safetensors(tmp_path / "m", model, variables)
    loaded, loaded_variables = export.load_safetensors(tmp_path / "m")
    np.testing.assert_array_equal(
        drawing.evaluate(loaded, loaded_variables, images),
        drawing.evaluate(model, variables, images),
    )


def tampered(tmp_path, change):
    """Writes a model, changes its arrays and metadata, and returns the file."""
    model, variables = cut_model()
    path = tmp_path / "model.safetensors"
    export.save_safetensors(path, model, variables)
    arrays = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    change(arrays, metadata)
    safetensors.numpy.save_file(arrays, path, metadata=metadata)
    return path


STEM = "params/stem/conv/kernel"


def change_spec(metadata, **changes):
    metadata["spec"] = json.dumps({**json.loads(metadata["spec"]), **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, _: arrays.pop(STEM), f"lacks {STEM}"),
        (lambda arrays, _: arrays.update(more=np.zeros(1)), "holds unexpected more"),
        (
            lambda arrays, _: arrays.update({STEM: arrays[STEM][..., :-1].copy()}),
            "but the model has",
        ),
        (
            lambda arrays, _: arrays.update({STEM: arrays[STEM].astype(np.float16)}),
            "as float16",
        ),
        (lambda _, metadata: metadata.update(spec="{"), "not JSON"),
        (lambda _, metadata: metadata.update(spec="[]"), "exactly"),
        (lambda _, metadata: metadata.pop("spec"), "not JSON"),
        (lambda _, metadata: metadata.update(format="pt"), "has format 'pt'"),
        (lambda _, metadata: metadata.clear(), "has format None"),
        (lambda _, metadata: change_spec(metadata, name="os.system"), "one of resnet"),
        (lambda _, metadata: change_spec(metadata, name=["resnet20"]), "one of resnet"),
        (lambda _, metadata: change_spec(metadata, norm=[]), "one of batch"),
        (lambda _, metadata: change_spec(metadata, channels={}), "but the model has"),
        (lambda _, metadata: change_spec(metadata, num_classes=6), "the model has"),
    ],
)
def test_file_that_does_not_fit_its_spec_is_refused(tmp_path, change, message):
    path = tampered(tmp_path, change)
    with pytest.raises(ValueError, match=message) as error:
        export.load_safetensors(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"not a model at all"])
def test_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        export.load_safetensors(path)
    with pytest.raises(ValueError, match="not a StableHLO export"):
        export.load_stablehlo(path)


@pytest.mark.parametrize("load", [export.load_safetensors, export.load_stablehlo])
def test_absent_file_is_named(tmp_path, load):
    with pytest.raises(FileNotFoundError, match="absent"):
        load(tmp_path / "absent")


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
