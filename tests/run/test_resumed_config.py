"""What may be another value when a run goes on in its workdir."""

import dataclasses

import pytest

from fuprune import config as configuration
from fuprune import results
from fuprune.config import ConfigError
from fuprune.run import provenance
from fuprune.run.store import Store
from tests.settings import quickstart

COMMAND = ["python", "-m", "fuprune.main", "--workdir", "here"]


@pytest.fixture
def begun(tmp_path):
    """A workdir of a run without an audit."""
    first = provenance.of_this_start(quickstart(), COMMAND)
    (tmp_path / "config.json").write_text(results.dumps(first))
    return Store(tmp_path)


def test_what_only_the_audit_reads_may_change_until_there_is_one(begun):
    config = quickstart()
    config.audit.tests = "probe"
    provenance.refuse_other_config(begun, config)
    found = provenance.of_run(config, begun, COMMAND)
    expected = provenance.of_this_start(config, COMMAND)
    assert (found.config, found.command) == (expected.config, expected.command)
    (begun.workdir / "audit.json").touch()
    with pytest.raises(ConfigError, match="another value of audit.tests;"):
        provenance.refuse_other_config(begun, config)


@pytest.mark.parametrize("key", ["audit.backdoor", "train.rounds", "fine_tune.rounds"])
def test_what_was_trained_with_may_not(begun, key):
    config = quickstart()
    config.audit.tests = "probe"
    configuration.update(config, {key: configuration.read(config, key) + 1})
    with pytest.raises(ConfigError, match=f"another value of {key};"):
        provenance.refuse_other_config(begun, config)


def without_starts(found):
    """The provenance as if the start in hand had left nothing."""
    assert len(found.starts) == 2 and found.starts[-1].command == COMMAND
    return dataclasses.replace(found, starts=found.starts[:1])


def test_another_value_names_the_trained_model_as_the_way_out(begun):
    config = quickstart()
    config.fine_tune.rounds += 1
    raw = begun.model("raw")
    raw.mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"--config.model.load={raw} starts another"):
        provenance.refuse_other_config(begun, config)


def test_phases_that_a_later_start_adds_are_recorded_with_its_command(begun):
    config = quickstart()
    config.phases = "pretrain,unlearn"
    first = provenance.of_this_start(config, COMMAND)
    first = dataclasses.replace(first, command=["without the audit"])
    (begun.workdir / "config.json").write_text(results.dumps(first))
    config.phases = "pretrain,unlearn,audit"
    found = provenance.of_run(config, begun, COMMAND)
    assert found.config["phases"] == "pretrain,unlearn,audit"
    assert found.command == provenance.of_this_start(config, COMMAND).command
    config.phases = "unlearn,audit"  # would not repeat the run
    assert without_starts(provenance.of_run(config, begun, COMMAND)) == first
