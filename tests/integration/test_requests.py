"""A client leaves: the whole run, killed in the middle of FedEraser, and its record."""

import chex
import pytest

from fuprune import load
from fuprune.models.ensemble import Ensemble
from fuprune.run import checkpoint
from fuprune.run.experiment import run
from tests.settings import quickstart

pytestmark = pytest.mark.slow


def small_config():
    config = quickstart()
    config.phases = "pretrain,unlearn"
    config.data.limit = 8
    config.partition.clients = config.train.cohort = 4
    config.train.rounds = 4
    config.train.history_interval = 1
    config.unlearn.clients = "3"
    config.unlearn.methods = "fed_eraser,sisa"
    config.sisa.shards = 2
    config.runtime.progress = "off"
    return config


class Killed(Exception):
    pass


def test_a_run_killed_in_fed_eraser_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    write, writes = checkpoint.write_tree, []
    for folder in ("killed", "whole"):
        (tmp_path / folder).mkdir()

    def dying(path, tree):
        write(path, tree)
        writes.append(path)
        if path.parent.name == "fed_eraser" and path.stem == "00000002":
            raise Killed

    monkeypatch.setattr(checkpoint, "write_tree", dying)
    with pytest.raises(Killed):
        run(small_config(), tmp_path / "killed")
    monkeypatch.setattr(checkpoint, "write_tree", write)
    before = {path: path.stat().st_mtime_ns for path in writes}
    resumed = run(small_config(), tmp_path / "killed")
    whole = run(small_config(), tmp_path / "whole")
    assert resumed is not None and whole is not None
    # Nothing that was there is made again. FedEraser keeps its last round alone.
    left = {path: time for path, time in before.items() if path.exists()}
    assert {path.parent.name for path in before.keys() - left.keys()} == {"fed_eraser"}
    assert all(path.stat().st_mtime_ns == time for path, time in left.items())
    for name in ("fed_eraser", "sisa"):
        (model, ours), (_, theirs) = (
            load(tmp_path / folder / "models" / name) for folder in ("killed", "whole")
        )
        chex.assert_trees_all_equal(ours, theirs)
        assert isinstance(model, Ensemble) == (name == "sisa")
    eraser, sisa = resumed.methods
    assert [row.notes for row in whole.methods] == [eraser.notes, sisa.notes]
    assert eraser.notes["kept_rounds"] == 4
    assert sisa.notes["shards_retrained"] == 1
    assert resumed.request is not None and resumed.request.kind == "clients"
