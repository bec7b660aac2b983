"""What may be another value when a run goes on in its workdir."""

import dataclasses

import pytest

from fuprune import config as configuration
from fuprune import results
from fuprune.config import ConfigError
from fuprune.run import agenda, files, provenance
from fuprune.run.files import AuditOutcome
from tests.settings import quickstart


@pytest.fixture
def begun(tmp_path):
    """A workdir of a run without an audit."""
    first = provenance.of_this_start(quickstart())
    (tmp_path / "config.json").write_text(results.dumps(first))
    return tmp_path


def test_what_only_the_audit_reads_may_change_until_there_is_one(begun):
    config = quickstart()
    config.audit.tests = "probe"
    provenance.refuse_other_config(begun, config)
    found = provenance.of_run(config, begun)
    expected = provenance.of_this_start(config)
    assert (found.config, found.command) == (expected.config, expected.command)
    files.finish(begun, "audit", AuditOutcome(0), offset=0)
    with pytest.raises(ConfigError, match="another value of audit.tests;"):
        provenance.refuse_other_config(begun, config)


def test_a_finished_audit_asks_for_no_models_again(begun):
    """The runs that audit.reference named may be gone by then."""
    config = quickstart()
    config.phases = "pretrain,unlearn,report"
    assert not agenda.is_audit_due(config, begun)
    config.phases = "all"
    assert agenda.is_audit_due(config, begun)
    files.finish(begun, "audit", AuditOutcome(0), offset=0)
    assert not agenda.is_audit_due(config, begun)


@pytest.mark.parametrize("key", ["audit.backdoor", "train.rounds", "fine_tune.rounds"])
def test_what_was_trained_with_may_not(begun, key):
    config = quickstart()
    config.audit.tests = "probe"
    configuration.update(config, {key: configuration.read(config, key) + 1})
    with pytest.raises(ConfigError, match=f"another value of {key};"):
        provenance.refuse_other_config(begun, config)


def test_the_first_start_is_what_is_recorded(begun):
    config = quickstart()
    config.phases = "audit"
    first = results.read_provenance(begun)
    assert provenance.of_run(config, begun) == first


def test_phases_that_a_later_start_adds_are_recorded_with_its_command(begun):
    config = quickstart()
    config.phases = "pretrain,unlearn"
    first = dataclasses.replace(
        provenance.of_this_start(config), command=["without the audit"]
    )
    (begun / "config.json").write_text(results.dumps(first))
    config.phases = "pretrain,unlearn,audit"
    found = provenance.of_run(config, begun)
    assert found.config["phases"] == "pretrain,unlearn,audit"
    assert found.command == provenance.of_this_start(config).command
    config.phases = "unlearn,audit"  # would not repeat the run
    assert provenance.of_run(config, begun) == first


@pytest.mark.parametrize("phases", ["all", "unlearn"])
def test_points_of_the_privacy_curve_that_come_later_are_recorded(begun, phases):
    config = quickstart()
    config.phases, config.privacy.curve = phases, "1,4"
    provenance.refuse_other_config(begun, config)
    assert provenance.of_run(config, begun).config["privacy"]["curve"] == "1,4"
    config.phases = "report"  # makes no points
    assert provenance.of_run(config, begun) == results.read_provenance(begun)
