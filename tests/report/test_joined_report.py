"""Several runs beside the paper's tables, through the command line and the function."""

import csv
import json
import subprocess
import sys

import pytest

from fuprune.report import join, paper_numbers
from fuprune.report.__main__ import main
from tests.report.fixture import write_run
from tests.report.reading import Page


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    return [
        *(write_run(home / f"seed{seed}", seed=seed) for seed in (0, 1, 2)),
        write_run(home / "two", classes=(0, 9), seed=5),
        write_run(home / "biased", bias=0.45, algorithm="fed_avg"),
        write_run(home / "digits", dataset="digits", class_names=tuple("0123456789")),
    ]


@pytest.fixture(scope="module")
def joined(runs, tmp_path_factory):
    return join(runs, tmp_path_factory.mktemp("joined") / "out").parent


def rows_of(folder, name):
    with (folder / f"{name}.csv").open() as lines:
        return list(csv.DictReader(lines))


def results(run):
    value = json.loads((run / "results.json").read_text())
    return {row["method"]: row for row in value["methods"]}


def test_runs_that_differ_in_seed_are_averaged(joined, runs):
    ours = next(
        row
        for row in rows_of(joined, "table_2")
        if row["Source"] == "ours" and row["Data"] == "cifar10"
    )
    values = [results(run)["class_pruning"]["r_accuracy"] for run in runs[:3]]
    assert float(ours["Fine-tuned R-set"]) == pytest.approx(sum(values) / 3)
    assert ours["Experiment"] == "E1"
    text = Page((joined / "report.html").read_text()).text
    deviation = (sum((v - sum(values) / 3) ** 2 for v in values) / 2) ** 0.5
    mean = f"{100 * sum(values) / 3:.2f} ± {100 * deviation:.2f}%"
    assert mean in text


def test_the_papers_number_stands_above_ours(joined):
    rows = rows_of(joined, "table_2")
    place = next(i for i, row in enumerate(rows) if row["Source"] == "ours")
    assert rows[place - 1]["Source"] == "paper"
    assert rows[place - 1]["Model"] == rows[place]["Model"] == "resnet20"
    assert float(rows[place - 1]["Re-trained R-set"]) == 0.8633


def test_every_row_of_the_paper_is_there(joined):
    for name, amount in (
        ("table_1", len(paper_numbers.TABLE_1)),
        ("table_2", len(paper_numbers.TABLE_2)),
        ("table_3_and_appendix", len(paper_numbers.TABLE_3_AND_APPENDIX)),
        ("table_4", len(paper_numbers.TABLE_4)),
        ("table_5", len(paper_numbers.TABLE_5)),
    ):
        rows = rows_of(joined, name)
        assert sum(row["Source"] == "paper" for row in rows) == amount, name
    text = Page((joined / "report.html").read_text()).text
    assert "15 of 16 rows of the paper's table have no run here." in text


def test_each_run_finds_its_table(joined):
    def ours(name):
        return [row for row in rows_of(joined, name) if row["Source"] == "ours"]

    # FedAvg with biased clients alone; the even FedSGD run belongs to Table 2.
    assert {(row["Data"], row["q"]) for row in ours("table_1")} == {("cifar10", "0.45")}
    assert [(r["Data"], r["Model"]) for r in ours("table_2")] == [
        ("cifar10", "resnet20"),
        ("digits", "resnet20"),
    ]
    assert [row["Classes"] for row in ours("table_3_and_appendix")] == ["0+9"]
    assert [row["Classes"] for row in ours("table_4")][:2] == ["9", "9"]
    assert {row["Classes"] for row in ours("table_5")} == {"9", "0+9"}


def test_two_class_rows_show_first_and_last_cut(joined, runs):
    stages = json.loads((runs[3] / "results.json").read_text())["stages"]
    cuts = [
        s for s in stages if s["method"] == "class_pruning" and "pruned" in s["stage"]
    ]
    row = next(
        r for r in rows_of(joined, "table_3_and_appendix") if r["Source"] == "ours"
    )
    assert float(row["First class pruned R-set"]) == cuts[0]["r_accuracy"]
    assert float(row["Last class pruned R-set"]) == cuts[1]["r_accuracy"]


def test_membership_difference_is_to_the_mean_of_retraining(joined, runs):
    audit = json.loads((runs[3] / "audit.json").read_text())
    test = next(t for t in audit["tests"] if t["name"] == "shadow_success_rate")
    expected = abs(test["values"]["class_pruning"] - sum(test["retrained"]) / 3)
    row = next(
        r
        for r in rows_of(joined, "table_4")
        if r["Source"] == "ours" and r["Classes"] == "0+9"
    )
    assert float(row["Difference of success rate"]) == pytest.approx(expected)


def test_a_method_that_stopped_is_left_out_and_not_averaged(joined):
    methods = {row["Method"] for row in rows_of(joined, "methods")}
    assert "fisher" not in methods
    assert {"class_pruning", "retrain", "mask_logit"} <= methods


def test_figure_3_has_one_panel_for_each_experiment(joined):
    page = Page((joined / "report.html").read_text())
    panels = [
        a["aria-label"]
        for a in page.all("svg")
        if a.get("aria-label", "").startswith("Lines of R-set accuracy")
    ]
    assert len(panels) == 4
    bands = [a for a in page.all("polygon") if "band" in a["class"]]
    assert len(bands) == 6


def test_page_is_self_contained_and_deterministic(runs, joined, tmp_path):
    page = Page((joined / "report.html").read_text())
    assert page.all("script") == []
    assert all(a["href"].startswith("#") for a in page.all("a"))
    again = join(runs, tmp_path / "again").parent
    for path in joined.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_command_line_joins_beside_the_runs(runs, capsys):
    assert main([str(run) for run in runs[:2]]) == 0
    written = capsys.readouterr().out.strip()
    assert written == str(runs[0].parent.resolve() / "joined" / "report.html")


def test_command_line_rebuilds_a_single_run(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report" / "report.html")
    assert main([str(run), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "table_2.csv").is_file()


@pytest.mark.parametrize("given", ["missing", "empty", "file"])
def test_what_is_no_run_is_one_line_and_exit_2(tmp_path, capsys, given):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / given)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "is not a run" in printed.err


def test_the_module_is_a_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fuprune.report", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "is not a run" in done.stderr


def test_a_run_given_twice_is_refused(runs, capsys):
    assert main([str(runs[0]), str(runs[0])]) == 2
    assert "is given twice" in capsys.readouterr().err


def test_an_output_that_is_a_file_is_refused(runs, tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert main([str(runs[0]), "--output", str(tmp_path / "taken")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_runs_with_hardly_any_files_are_joined(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("")
    page = Page(join([tmp_path / "a", tmp_path / "b"], tmp_path / "out").read_text())
    assert "No method of this run has finished." in page.text
