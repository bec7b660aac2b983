"""The benchmark of growing federations runs and reports what it says."""

import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_one_row_per_number_of_clients(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import client_growth

    output = tmp_path / "rows.json"
    assert client_growth.main(["--smoke", "--output", str(output)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in table[2:]] == ["10", "100", "1,000"]
    assert not output.exists()
