"""A run killed and started again ends as one that never was: real processes."""

import json
import signal

import pytest

from tests.integration.command import (
    SMALL,
    finish,
    interrupt,
    remains,
    rows,
    start,
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What an undisturbed run leaves."""
    workdir = tmp_path_factory.mktemp("calm") / "run"
    workdir.mkdir()
    text = finish(workdir)
    return workdir, remains(workdir), text


def test_a_run_shows_its_tables_and_leaves_its_files(uninterrupted):
    """Progress, the table of the paper's form, the path; and every file it promised."""
    workdir, _, text = uninterrupted
    assert "pretrain  round 6/6" in text
    assert "| Forgot |" in text
    assert f"Written: {workdir}/report/report.html" in text
    record = json.loads((workdir / "config.json").read_text())
    assert {"config", "versions", "commit", "command"} <= set(record)
    assert (workdir / "report" / "report.html").stat().st_size > 10_000
    stages = [
        (row["method"], row["stage"])
        for row in json.loads((workdir / "results.json").read_text())["stages"]
    ]
    assert stages == [
        ("raw", "raw"),
        ("class_pruning", "pruned_9"),
        ("class_pruning", "fine_tuned"),
        ("mask_logit", "masked"),
    ]


def test_a_finished_run_repeats_nothing(uninterrupted):
    """The same command again only shows the tables."""
    workdir, left, _ = uninterrupted
    text = finish(workdir)[len(uninterrupted[2]) :]
    assert "round 1/" not in text
    assert remains(workdir) == left


def test_another_config_in_the_same_workdir_is_refused_with_the_keys(uninterrupted):
    """Exit code 2, one line, nothing touched."""
    workdir, left, _ = uninterrupted
    process = start(workdir, "--config.train.learning_rate=0.3")
    assert process.wait(300) == 2
    lines = (workdir.parent / "run.log").read_text().splitlines()
    assert "another value of train.learning_rate" in lines[-1]
    assert remains(workdir) == left


def test_killed_in_training_and_in_fine_tuning_then_resumed_is_bitwise_equal(
    uninterrupted, tmp_path
):
    """kill -9 between two checkpoints of either phase; no row twice, none missing."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    assert interrupt(workdir, lambda: rows(workdir) >= 3) == -signal.SIGKILL
    assert interrupt(workdir, lambda: rows(workdir) >= 8) == -signal.SIGKILL
    finish(workdir)
    assert remains(workdir) == uninterrupted[1]


def test_sigterm_saves_says_what_to_run_and_exits_zero(uninterrupted, tmp_path):
    """And a second run in the same workdir meanwhile is turned away by the lock."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    turned_away = []

    def busy():
        if rows(workdir) < 1:
            return False
        turned_away.append(start(workdir))
        turned_away[0].wait(300)
        return True

    small = tuple(flag for flag in SMALL if "rounds=6" not in flag)
    small += ("--config.train.rounds=400",)
    assert interrupt(workdir, busy, signal.SIGTERM, small=small) == 0
    assert turned_away[0].returncode == 2
    text = (tmp_path / "run.log").read_text()
    assert "in use by process" in text
    assert "The same command continues: python -m fuprune.main" in text
    assert list((workdir / "checkpoints" / "pretrain").glob("*/state"))
