"""The benchmark of growth runs, and says how far a cost is from its line."""

import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def growth(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import growth

    return growth


def test_a_straight_line_reads_one_everywhere(growth):
    rows = [growth.Row(n, "round", 0.002 * n, n, "client") for n in (5, 10, 100)]
    rows.append(growth.Row(1_000, "round", 6.0, 1_000, "client"))
    section = {
        "date": "now",
        "machine": {"load_after": 0.0},
        "rows": [row._asdict() for row in rows],
    }
    lines = growth.table({"sections": {"cohort": section}}).splitlines()[2:]
    assert [line.split("|")[5].split()[0] for line in lines] == ["1.00"] * 3 + ["3.00"]


@pytest.mark.slow
def test_every_section_has_its_rows(growth, capsys, tmp_path):
    output = tmp_path / "rows.json"
    sections = ["clients", "cohort", "image side", "classes"]
    assert (
        growth.main(["--smoke", "--output", str(output), "--sections", *sections]) == 0
    )
    table = capsys.readouterr().out.splitlines()[2:]
    found = {line.split("|")[1].strip() for line in table}
    assert found == set(sections)
    assert not output.exists()
