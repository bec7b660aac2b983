"""The page of measured tables is made from the results and from nothing else."""

import json
import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tables(monkeypatch):
    for folder in (BENCHMARKS, BENCHMARKS / "peers"):
        monkeypatch.syspath_prepend(str(folder))
    import tables

    return tables


def test_page_holds_the_tables_of_the_results(tables):
    page = (BENCHMARKS / "README.md").read_text()
    assert tables.filled(page) == page, "run python benchmarks/tables.py"


def test_every_table_has_a_place_on_the_page(tables):
    page = (BENCHMARKS / "README.md").read_text()
    for name in tables.TABLES:
        assert f"<!-- {name} -->" in page and f"<!-- end of {name} -->" in page


def test_unmeasured_table_says_so(tables, tmp_path):
    page = "before\n<!-- capture -->\nold\n<!-- end of capture -->\nafter"
    text = tables.filled(page, tmp_path)
    assert "Not measured yet" in text and "old" not in text
    assert text.startswith("before") and text.endswith("after")


def test_missed_target_is_not_hidden(tables, tmp_path):
    row = dict(name="memory, GB", value=5.0, target="< 4", met=False)
    machine = dict(load_before=0.5, load_after=7.25)
    section = dict(date="today", machine=machine, rows=[row])
    report = {"sections": {"memory": section}}
    (tmp_path / "host_overhead.json").write_text(json.dumps(report))
    page = "<!-- host_overhead -->\n<!-- end of host_overhead -->"
    text = tables.filled(page, tmp_path)
    assert "| memory, GB | 5 | < 4 | **missed** | today, 7.2 |" in text
