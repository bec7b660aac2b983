"""An audit borrows retrained models only from a run that forgot the same."""

import json

import pytest

from fuprune import config as configuration
from fuprune.config import ConfigError
from fuprune.reference import retrained_models


@pytest.fixture
def run(tmp_path):
    """A run's workdir with two retrained models, and a config that refers to it."""
    config = configuration.quickstart()
    record = {"config": configuration.to_json(config)}
    (tmp_path / "config.json").write_text(json.dumps(record))
    for name in ("raw", "retrain", "retrain_seed2"):
        (tmp_path / "models" / name).mkdir(parents=True)
    config.audit.reference = str(tmp_path)
    return tmp_path, config


def test_retrained_models_are_found_and_nothing_else(run):
    place, config = run
    names = [path.name for path in retrained_models(config)]
    assert names == ["retrain", "retrain_seed2"]
    config.audit.reference = ""
    assert retrained_models(config) == []


def test_a_place_that_is_no_run_is_refused(run):
    place, config = run
    (place / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="is no run's workdir"):
        retrained_models(config)
    config.audit.reference = str(place / "missing")
    with pytest.raises(ConfigError, match="is no run's workdir"):
        retrained_models(config)


def test_other_classes_and_other_data_are_refused(run):
    _, config = run
    config.unlearn.classes = 3
    with pytest.raises(ConfigError, match=r"unlearn.classes is \(9,\), but must be"):
        retrained_models(config)
    config.unlearn.classes = 9
    config.data.limit = 10
    with pytest.raises(ConfigError, match="whose data is"):
        retrained_models(config)


def test_a_run_without_retrained_models_is_refused(run):
    place, config = run
    for name in ("retrain", "retrain_seed2"):
        (place / "models" / name).rmdir()
    with pytest.raises(ConfigError, match="no retrained model; add retrain"):
        retrained_models(config)
