"""Datasets, checkpoints, records and configs of a run are data, whatever they hold."""

import contextlib
import json
import pickle

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune import config, results
from fuprune.audit.evidence import AuditReport
from fuprune.data import cache
from fuprune.data.dataset import Dataset
from fuprune.errors import FupruneError
from fuprune.results import TrainedOutcome
from fuprune.run import checkpoint, files, logs, provenance
from tests.run.crafted import CRAFTED_JSON, DEEP, Payload, crafted_arrays
from tests.run.watch import WATCH, nothing_happens_outside
from tests.settings import quickstart


def test_a_crafted_copy_of_a_dataset_is_not_used(home, trace):
    dataset = Dataset(np.zeros((4, 8, 8, 1), np.uint8), np.arange(4, dtype=np.int32))
    for name, data in crafted_arrays(trace):
        for part in ("images", "labels"):
            assert cache.write(home, "train", dataset)
            assert cache.read(home, "train") is not None
            (home / f"train_{part}.npy").write_bytes(data)
            with nothing_happens_outside(home):
                assert cache.read(home, "train") is None, name


TREE = {"weights": np.arange(6, dtype=np.float32), "round": np.int32(3)}


def restore(directory):
    with nothing_happens_outside(directory.parent):
        return checkpoint.restore(
            directory, lambda spec: jax.tree.map(np.zeros_like, TREE)
        )


def write_sums(directory, step):
    """What somebody who can write the files can also do: make the sums agree."""
    checkpoint._write_manifest(directory, step)


def test_a_good_checkpoint_restores(home):
    checkpoint.save(home / "c", 1, TREE, spec={"a": 1})
    step, tree, spec = restore(home / "c")
    assert (step, spec) == (1, {"a": 1})
    np.testing.assert_array_equal(tree["weights"], TREE["weights"])


def test_pickles_in_place_of_a_checkpoints_files_are_never_unpickled(home, trace):
    checkpoint.save(home / "c", 1, TREE, spec={})
    files = sorted(p for p in (home / "c" / "1").rglob("*") if p.is_file())
    assert len(files) > 3
    for path in files:
        good = path.read_bytes()
        path.write_bytes(pickle.dumps(Payload(trace)))
        write_sums(home / "c", 1)
        # What orbax makes of it is its own affair, so long as nothing runs.
        with contextlib.suppress(Exception):
            restore(home / "c")
        assert not WATCH.seen
        path.write_bytes(good)


def test_a_spec_is_only_ever_json(home, trace):
    spec = {
        "__reduce__": ["os.system", ["touch " + str(trace)]],
        "py/object": "os.system",
        "!!python/object/apply:os.system": ["true"],
        "name": "__import__('os').system('true')",
    }
    checkpoint.save(home / "c", 1, TREE, spec=spec)
    assert restore(home / "c")[2] == spec


def test_sums_that_name_files_elsewhere_make_a_checkpoint_unusable(home, trace):
    checkpoint.save(home / "c", 1, TREE, spec={})
    manifest = home / "c" / "1.sha256.json"
    for name in ("../../../../etc/passwd", "/etc/passwd", str(trace), "\0"):
        manifest.write_text(json.dumps({name: "0" * 64}))
        assert restore(home / "c") is None
    for text in ("null", "[]", '"x"', "", "\x00"):
        manifest.write_text(text)
        assert restore(home / "c") is None


def test_a_step_that_is_a_link_does_not_lead_a_save_outside(home, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    checkpoint.save(home / "c", 1, TREE, spec={})
    (home / "c" / "0").symlink_to(outside, target_is_directory=True)
    write_sums(home / "c", 0)
    with nothing_happens_outside(home), contextlib.suppress(OSError):
        checkpoint.save(home / "c", 2, TREE, spec={}, keep=1)
    assert (outside / "precious").read_text() == "keep"
    assert [path.name for path in outside.iterdir()] == ["precious"]


@pytest.mark.parametrize("text", CRAFTED_JSON.values(), ids=CRAFTED_JSON)
def test_crafted_records_of_a_run_are_one_error(home, trace, text):
    (home / "config.json").write_text(text)
    with nothing_happens_outside(home), pytest.raises(FupruneError):
        provenance.refuse_other_config(home, quickstart())
    assert [path.name for path in home.iterdir()] == ["config.json"]
    path = files.path_of(home, "pretrain")
    path.parent.mkdir()
    path.write_text(text)
    with nothing_happens_outside(home), pytest.raises(FupruneError):
        files.finished(home, "pretrain", TrainedOutcome)
    with nothing_happens_outside(home), pytest.raises(ValueError):
        AuditReport.from_json(text)
    (home / "metrics.jsonl").write_text(text + "\n")
    if not text.startswith("{") or text.endswith("{"):
        with nothing_happens_outside(home), pytest.raises(ValueError):
            results.read_rows(home / "metrics.jsonl")


def test_metrics_are_json_and_nothing_else(home, trace):
    path = home / "metrics.jsonl"
    row = {"phase": "__import__('os').system('true')", "__class__": "os.system"}
    path.write_text(json.dumps(row) + "\n" + '{"phase": "cut')
    with nothing_happens_outside(home):
        assert results.read_rows(path) == [row]
    for line in (DEEP, "\x00", "{'single': 'quotes'}", "os.system('true')", "1 2"):
        path.write_text(line + "\n")
        with nothing_happens_outside(home), pytest.raises(ValueError, match="line 1"):
            results.read_rows(path)


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock"])
def test_a_link_in_place_of_a_runs_file_is_not_written_through(home, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("keep, and without a last newline")
    (home / name).symlink_to(victim)
    with contextlib.suppress(FupruneError):
        if name == ".lock":
            with files.lock_workdir(home):
                pass
        else:
            with logs.RowLog(home / name) as log:
                log.append({"phase": "pretrain", "round": 1})
    assert victim.read_text() == "keep, and without a last newline"


STRANGE_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["__import__('os').system('true')", "../../x", "$(true)", "\0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(data=st.data())
def test_a_crafted_config_file_validates_or_is_one_error(data):
    values = config.to_json(quickstart())
    section = data.draw(st.sampled_from(sorted(values)))
    strange = data.draw(STRANGE_VALUES)
    if isinstance(values[section], dict) and data.draw(st.booleans()):
        key = data.draw(st.sampled_from([*sorted(values[section]), "__class__"]))
        values[section][key] = strange
    else:
        values[section] = strange
    with nothing_happens_outside("/nonexistent"):
        try:
            config.validate(config.from_json(values))
        except config.ConfigError as error:
            assert str(error)
