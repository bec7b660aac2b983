"""Several runs: titles that differ, verdicts, and only rows that somebody repeats."""

import pytest

from fuprune.errors import InputError
from fuprune.report import join
from fuprune.report.compare import (
    comparison_table,
    group_runs,
    paper_rows,
    paper_tables,
    runs_table,
)
from tests.report.fixture import make_audit, make_record, make_run, write_run
from tests.report.reading import Page

CIFAR = [f"class {n}" for n in range(10)]


def cifar(**changed):
    defaults = dict(dataset="cifar10", class_names=CIFAR, classes=(9,), bias=0.1)
    return make_record(**(defaults | changed))


def test_seeds_of_one_experiment_are_one_group_and_their_mean():
    runs = [make_run(make_record(seed=n, shift=0.02 * n), name=f"s{n}") for n in (0, 1)]
    (group,) = group_runs(runs)
    table = comparison_table([group])
    row = next(row for row in table.rows if row[1].text == "class pruning")
    texts = [one.text for one in row]
    assert "87.0 ± 1.4%" in texts and row[2].value == 2


def test_parts_that_share_a_seed_count_once():
    parts = [
        make_run(make_record(methods=methods), name=name)
        for methods, name in (
            (("class_pruning", "retrain"), "a"),
            (("retrain", "retrain_seed2"), "b"),
        )
    ]
    (group,) = group_runs(parts)
    counts = {row[1].text: row[2].value for row in comparison_table([group]).rows}
    assert counts == {"class pruning": 1, "retrain": 2}


def test_runs_that_differ_have_titles_that_differ_and_verdicts():
    runs = [
        make_run(make_record(rate=rate), make_audit(), name=f"r{rate}")
        for rate in (0.1, 0.5)
    ]
    groups = group_runs(runs)
    titles = [group.title for group in groups]
    assert titles == [
        "class truck (3): resnet20 on digits, r0.1",
        "class truck (3): resnet20 on digits, r0.5",
    ]
    table = comparison_table(groups)
    assert table.columns[-1].title == "Audit"
    assert {row[-1].text for row in table.rows if row[1].text == "class pruning"} == {
        "no difference found"
    }
    assert [row[1].text for row in runs_table(groups).rows] == titles


def test_of_the_paper_only_rows_that_are_repeated_are_shown():
    assert paper_tables(group_runs([make_run()])) == []
    groups = group_runs([make_run(cifar())])
    made = {table.name: table for table in paper_tables(groups)}
    assert set(made) == {"paper_2", "paper_figure_3"}
    paper, ours = made["paper_2"].rows
    assert paper[0].text == "paper: resnet20 on cifar10, class 9"
    assert [one.text for one in paper[2:6]] == ["91.50%", "83.33%", "0.00%", "20.79%"]
    assert ours[0].text == groups[0].title and ours[2].text == "90.00%"


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        (dict(algorithm="fed_avg"), {"paper_1", "paper_figure_3"}),
        (dict(algorithm="fed_avg", bias=0.45), {"paper_1"}),
        (dict(classes=(0, 9)), {"paper_3_and_appendix"}),
        (dict(model="resnet8"), {"paper_figure_3"}),
        (dict(classes=(4,)), set()),
    ],
)
def test_an_experiment_stands_beside_the_row_that_it_repeats(changed, names):
    made = paper_tables(group_runs([make_run(cifar(**changed))]))
    assert {table.name for table in made} == names
    for table in made:
        assert {row[0].text.startswith("paper:") for row in table.rows} == {True, False}


def test_the_papers_numbers_are_all_there():
    tables = [row["table"] for row in paper_rows()]
    counted = {name: tables.count(name) for name in dict.fromkeys(tables)}
    assert counted == {
        "1": 12, "2": 16, "3 and appendix": 8, "4": 12, "5": 9, "figure 3": 4,
    }  # fmt: skip
    for row in paper_rows():
        shares = [float(row[k]) for k in row if k.endswith(("_u", "_r")) and row[k]]
        assert all(0 <= share <= 1 for share in shares)


def test_the_report_of_several_runs_is_written(tmp_path):
    runs = [write_run(tmp_path / f"r{n}", make_record(rate=n)) for n in (0.1, 0.5)]
    path = join(runs, tmp_path / "joined")
    page = Page(path.read_text())
    assert "What did each method reach" in page.text and "0 of" not in page.text
    names = {one.name for one in path.parent.iterdir()}
    assert {"comparison.csv", "runs.csv", "price_1.pdf", "report.md"} <= names


def test_runs_are_asked_for_once_each(tmp_path):
    with pytest.raises(InputError, match="no run was given"):
        join([], tmp_path)
    run = write_run(tmp_path / "run")
    with pytest.raises(InputError, match="is given twice"):
        join([run, run / ".." / "run"], tmp_path / "out")


def test_a_run_without_results_is_listed(tmp_path):
    started = make_run(make_record(methods=()), name="started")
    groups = group_runs([started])
    assert comparison_table(groups).rows == []
    assert [row[0].text for row in runs_table(groups).rows] == ["started"]
