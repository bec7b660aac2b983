"""An audit borrows retrained models only from a run that forgot the same."""

import jax
import jax.numpy as jnp
import pytest

from fuprune import config as configuration
from fuprune import results
from fuprune.config import ConfigError
from fuprune.models import zoo
from fuprune.results import Provenance
from fuprune.run import checkpoint
from fuprune.run.build import Setup, unlearn_units
from fuprune.run.models import from_elsewhere, further_models, retrained_models
from fuprune.run.store import Store
from tests.settings import quickstart


@pytest.fixture
def run(tmp_path):
    """A run's workdir with two retrained models, and a config that refers to it."""
    config = quickstart()
    record = Provenance(config=configuration.to_json(config))
    (tmp_path / "config.json").write_text(results.dumps(record))
    for name in ("raw", "retrain", "retrain_seed2", "retrain_short"):
        (tmp_path / "models" / name).mkdir(parents=True)
    config.audit.reference = str(tmp_path)
    return tmp_path, config


def test_several_runs_and_published_files_are_read_in_the_order_of_their_seeds(run):
    place, config = run
    published = place / "published"
    (published / "models").mkdir(parents=True)
    stored = (place / "config.json").read_text()
    (published / "config.json").write_text(stored)
    for name in ("retrain", "retrain_seed10", "retrain_seed3", "retrain_short"):
        (published / "models" / f"{name}.safetensors").touch()
    config.audit.reference = f"{place},{published}"
    config.data.dir = "elsewhere"
    assert [path.name for path in retrained_models(config)] == [
        "retrain",
        "retrain_seed2",
        "retrain.safetensors",
        "retrain_seed3.safetensors",
        "retrain_seed10.safetensors",
    ]


def test_other_classes_and_other_data_are_refused(run):
    _, config = run
    config.unlearn.classes = 3
    with pytest.raises(ConfigError, match=r"unlearn.classes is \(9,\), but must be"):
        retrained_models(config)
    config.unlearn.classes = 9
    config.data.limit = 10
    with pytest.raises(ConfigError, match="whose data is"):
        retrained_models(config)


def network(**options):
    options = {"num_classes": 2, "input_shape": (4, 4, 1), **options}
    return zoo.create("resnet8", **options)


@pytest.fixture
def saved(tmp_path):
    """A folder with a saved model."""
    variables = jax.jit(network().init)(jax.random.key(0), jnp.zeros((1, 4, 4, 1)))
    checkpoint.save_model(tmp_path / "model", network(), variables)
    return tmp_path / "model"


def test_further_models_are_found_by_name(saved):
    config = quickstart()
    assert further_models(config) == {}
    file = saved / checkpoint.MODEL_FILE
    config.audit.models = f"wide={saved},deep={file}"
    assert further_models(config) == {"wide": saved, "deep": file}


@pytest.mark.parametrize("text", ["{0}", "={0}", "a=", "A b={0}", "a={0},a={0}"])
def test_a_list_that_is_none_is_refused(saved, text):
    config = quickstart()
    config.audit.models = text.format(saved)
    with pytest.raises(ConfigError, match="allowed: name=place"):
        further_models(config)


def check(config, model, workdir):
    config.unlearn.methods = "class_pruning"
    setup, units = Setup(config, None), unlearn_units(config)
    return from_elsewhere(setup, model, units, Store(workdir))


def test_folders_without_models_and_taken_names_are_refused(saved, tmp_path):
    config = quickstart()
    config.audit.models = f"a={saved.parent}"
    with pytest.raises(FileNotFoundError, match="there is no saved model"):
        check(config, network(), tmp_path)
    for name in ("raw", "retrained", "retrained_1", "class_pruning"):
        config.audit.models = f"{name}={saved}"
        with pytest.raises(ConfigError, match="as the run itself does"):
            check(config, network(), tmp_path)
    config.audit.models = f"mine={saved}"
    check(config, network(), tmp_path)


@pytest.mark.parametrize("other", [{"num_classes": 3}, {"input_shape": (4, 4, 3)}])
def test_a_model_for_other_data_is_refused(saved, tmp_path, other):
    config = quickstart()
    config.audit.models = f"mine={saved}"
    with pytest.raises(ConfigError, match="a model for 2 classes of"):
        check(config, network(**other), tmp_path)
