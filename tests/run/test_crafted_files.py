"""Datasets, records and configs of a run are data, whatever they hold."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune import config, results
from fuprune.audit.reading import read as read_audit
from fuprune.data import cache
from fuprune.data.dataset import Dataset, LabelledSet
from fuprune.errors import FupruneError
from fuprune.run import provenance
from fuprune.run.store import Store
from tests.run.crafted import CRAFTED_JSON, DEEP, crafted_arrays
from tests.run.watch import nothing_happens_outside
from tests.settings import quickstart


def test_a_crafted_copy_of_a_dataset_is_not_used(home, trace):
    dataset = Dataset(np.zeros((4, 8, 8, 1), np.uint8), np.arange(4, dtype=np.int32))
    whole = LabelledSet(dataset, dataset, tuple("0123"), {})
    for name, data in crafted_arrays(trace):
        for part in ("train_images.npy", "test_labels.npy", "facts.npz"):
            cache.write(home, whole)
            assert cache.read(home) is not None
            (home / part).write_bytes(data)
            with nothing_happens_outside(home):
                assert cache.read(home) is None, name


@pytest.mark.parametrize("text", CRAFTED_JSON.values(), ids=CRAFTED_JSON)
def test_crafted_records_of_a_run_are_one_error(home, trace, text):
    (home / "config.json").write_text(text)
    with nothing_happens_outside(home), pytest.raises(FupruneError):
        provenance.refuse_other_config(Store(home), quickstart())
    assert [path.name for path in home.iterdir()] == ["config.json"]
    (home / "results.json").write_text(text)
    with nothing_happens_outside(home), contextlib.suppress(FupruneError):
        assert not Store(home).record.stages
    with nothing_happens_outside(home), pytest.raises(ValueError):
        read_audit(text)
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
