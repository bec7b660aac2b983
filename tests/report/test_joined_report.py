"""Several runs beside the paper's tables, through the command line and the function."""

import csv
import subprocess
import sys

import pytest

from fuprune.report import join, joined, paper, paper_numbers
from fuprune.report.__main__ import main
from fuprune.results import empty_record
from tests.report.fixture import (
    evidence,
    make_audit,
    make_curves,
    make_record,
    make_run,
    replace,
    with_later_seed,
    write_run,
)
from tests.report.reading import Page

CIFAR10 = [f"kind {n}" for n in range(10)]


def cifar10(**changed):
    defaults = {"dataset": "cifar10", "class_names": CIFAR10, "classes": (9,)}
    return make_record(**(defaults | {"bias": 0.1} | changed))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    records = {
        **{f"seed{n}": cifar10(seed=n, shift=0.01 * n) for n in range(3)},
        "two": cifar10(classes=(0, 9)),
        "biased": cifar10(bias=0.45, algorithm="fed_avg"),
        "digits": make_record(),
    }
    return [write_run(home / name, record) for name, record in records.items()]


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory):
    return join(runs, tmp_path_factory.mktemp("joined") / "out").parent


def rows_of(folder, name):
    with (folder / f"{name}.csv").open() as lines:
        return list(csv.DictReader(lines))


def ours(folder, name):
    return [row for row in rows_of(folder, name) if row["Source"] == "ours"]


def test_runs_that_differ_in_seed_are_averaged(folder):
    row = ours(folder, "table_2")[0]
    assert float(row["Fine-tuned R-set"]) == pytest.approx(0.87)
    assert row["Experiment"] == "E1"
    text = Page((folder / "report.html").read_text()).text
    assert "87.00 ± 1.00%" in text


def test_parts_of_an_experiment_are_one_and_count_each_model_once():
    """As when machines share retraining: the same raw model, and one seed in both."""
    parts = [("class_pruning", "retrain"), ("retrain", "retrain_seed2")]
    runs = [
        make_run(record, name=f"part{n}", curves=make_curves(record))
        for n, record in enumerate(cifar10(methods=methods) for methods in parts)
    ]
    (group,) = joined.group_runs(runs)
    counted = {
        row[1].value: row[-2].value for row in joined.methods_table([group]).rows
    }
    assert counted == {"class_pruning": 1, "retrain": 2}
    drawn = {name: len(found) for name, found in joined.recovery_curves(group).items()}
    assert drawn == {"class_pruning": 1, "retrain": 2}
    assert len(joined.raw_stages(group)) == 1
    assert len(joined.cut_stages(group, "class_pruning", 0)) == 1
    other = replace(runs[0], name="other", record=cifar10(bias=0.45))
    assert len(joined.group_runs([*runs, other])) == 2


def test_of_two_parts_with_one_model_the_one_that_came_further_is_drawn():
    record = cifar10(methods=("retrain",))
    whole = make_curves(record)
    stopped = replace(record, methods=[])
    runs = [
        make_run(stopped, name="stopped", curves=whole[:3]),
        make_run(record, name="whole", curves=whole),
    ]
    (group,) = joined.group_runs(runs)
    ((points,),) = joined.recovery_curves(group).values()
    assert len(points) == len(whole)


def test_a_part_that_only_started_does_not_describe_its_experiment():
    record = cifar10()
    started = empty_record(record.provenance)
    runs = [make_run(started, name="started"), make_run(record, name="finished")]
    (group,) = joined.group_runs(runs)
    assert group.subject == "E1: resnet20 on cifar10, class 9, q 0.1"
    (table,) = [one for one in paper.paper_tables([group]) if one.name == "table_2"]
    assert sum(row[2].text == "ours" for row in table.rows) == 1


def test_the_papers_number_is_above_ours(folder):
    rows = rows_of(folder, "table_2")
    place = next(i for i, row in enumerate(rows) if row["Source"] == "ours")
    assert rows[place - 1]["Source"] == "paper"
    assert rows[place - 1]["Model"] == rows[place]["Model"] == "resnet20"
    assert float(rows[place - 1]["Re-trained R-set"]) == 0.8633


def test_every_row_of_the_paper_is_there(folder):
    for name, amount in (
        ("table_1", len(paper_numbers.TABLE_1)),
        ("table_2", len(paper_numbers.TABLE_2)),
        ("table_3_and_appendix", len(paper_numbers.TABLE_3_AND_APPENDIX)),
        ("table_4", len(paper_numbers.TABLE_4)),
        ("table_5", len(paper_numbers.TABLE_5)),
    ):
        rows = rows_of(folder, name)
        assert sum(row["Source"] == "paper" for row in rows) == amount, name
    text = Page((folder / "report.html").read_text()).text
    assert "15 of 16 rows of the paper's table have no run here." in text


def test_each_run_finds_its_table(folder):
    # FedAvg with biased clients alone; the even FedSGD run belongs to Table 2.
    biased = {(row["Data"], row["q"]) for row in ours(folder, "table_1")}
    assert biased == {("cifar10", "0.45")}
    assert [(r["Data"], r["Model"]) for r in ours(folder, "table_2")] == [
        ("cifar10", "resnet20"),
        ("digits", "resnet20"),
    ]
    (two,) = ours(folder, "table_3_and_appendix")
    assert two["Classes"] == "0+9"
    assert float(two["First class pruned R-set"]) == pytest.approx(0.3)
    assert float(two["Last class pruned R-set"]) == pytest.approx(0.2)
    assert float(two["Speed-up"]) == pytest.approx(130 / 12)


@pytest.mark.parametrize(
    ("values", "written"), [([0.14, 0.16, 0.15], "35.00%"), ([0.5] * 3, "no result")]
)
def test_membership_is_the_difference_to_retraining_or_no_result(values, written):
    test = evidence("shadow_success_rate", {"class_pruning": "pass"}, kind="shadow")
    audit = make_audit(replace(test, retrained=values))
    (group,) = joined.group_runs([make_run(cifar10(), audit)])
    (table,) = [one for one in paper.paper_tables([group]) if one.name == "table_4"]
    rows = table.rows
    (found,) = [row for row in rows if row[3].text == "ours"]
    assert found[4].text == written


def test_speed_is_told_for_each_target_with_all_costs(folder):
    row = rows_of(folder, "figure_3")[0]
    assert row["Target"] == "retrained"
    assert float(row["Ours rounds"]) == 12
    assert float(row["Retraining rounds"]) == 130
    assert float(row["Times less than retraining images"]) == pytest.approx(130 / 12)


def test_relabelling_says_that_it_trains_on_the_forgotten_images(folder):
    rows = {row["Method"]: row for row in rows_of(folder, "methods")}
    assert "trains on the forgotten images" in rows["relabel"]["Remark"]
    assert rows["class_pruning"]["Remark"] == ""


def test_a_method_that_stopped_is_left_out_and_not_averaged():
    record = cifar10()
    stopped = replace(record.methods[0], error="no clients left")
    record = replace(record, methods=[stopped, *record.methods[1:]])
    groups = joined.group_runs([make_run(record)])
    names = [row[1].value for row in joined.methods_table(groups).rows]
    assert "class_pruning" not in names and "mask_logit" in names


def test_an_audited_later_seed_counts_for_its_method():
    fails = {"class_pruning_seed2": "fail"}
    audit = make_audit(evidence("shadow_success_rate", fails, kind="shadow"))
    groups = joined.group_runs([make_run(with_later_seed(cifar10()), audit)])
    row = joined.methods_table(groups).rows[0]
    assert [entry.value for entry in row[-6:-2]] == [1, 0, 0, 0]
    assert joined.runs_table(groups).rows[0][4].text == "fail: 1 of 1 failed"
    (table,) = [one for one in paper.paper_tables(groups) if one.name == "table_4"]
    assert [r[4].text for r in table.rows if r[3].text == "ours"] == ["35.00%"]


def test_figure_3_has_one_panel_for_each_experiment(folder):
    page = Page((folder / "report.html").read_text())
    lines = "Lines of R-set accuracy"
    assert sum(label.startswith(lines) for label in page.labels) == 4
    bands = [a["class"] for a in page.all("polygon") if "band" in a["class"]]
    assert "band gold" in bands


def test_page_is_self_contained_and_deterministic(runs, folder, tmp_path):
    page = Page((folder / "report.html").read_text())
    assert page.all("script") == []
    assert all(a["href"].startswith("#") for a in page.all("a"))
    again = join(runs, tmp_path / "again").parent
    for path in folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_command_line_joins_beside_the_runs(runs, capsys):
    assert main([str(run) for run in runs[:2]]) == 0
    written = capsys.readouterr().out.strip()
    assert written == str(runs[0].parent.resolve() / "joined" / "report.html")


def test_command_line_rebuilds_a_single_run(runs, tmp_path, capsys):
    assert main([str(runs[5])]) == 0
    assert capsys.readouterr().out.strip() == str(runs[5] / "report" / "report.html")
    assert main([str(runs[5]), "--output", str(tmp_path / "out")]) == 0
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
    command = [sys.executable, "-m", "fuprune.report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
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
