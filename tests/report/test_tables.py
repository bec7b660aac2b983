"""Tables: four forms of one content, and what the methods' columns say."""

import csv
import io

import pytest

from fuprune.report import formats, subject, tables
from fuprune.report.page import render
from fuprune.report.tables import Column, Table, cell, words
from tests.report.fixture import make_audit, make_record, make_run, method_row, replace

TABLE = Table(
    "t",
    "Title",
    [*words("Name"), Column("U", group="Accuracy"), Column("R", group="Accuracy")],
    [
        [cell("[red]<b>|*"), cell(1 / 3, formats.percent), cell(None)],
        [cell("second", tone="good"), cell(2), cell(0.5, formats.percent)],
    ],
    "A note.",
)


def test_text_lines_up_and_shows_markup_as_it_is():
    assert tables.to_text(TABLE).splitlines() == [
        "Title",
        "Name       | Accuracy U | Accuracy R",
        "-----------+------------+-----------",
        "[red]<b>|* |      33.3% |          –",
        "second     |          2 |      50.0%",
    ]


def test_markdown_escapes_what_would_break_a_row():
    lines = tables.to_markdown(TABLE).splitlines()
    assert lines[0] == "## Title" and lines[-1] == "A note."
    assert lines[3] == "|---|---:|---:|"
    assert lines[4] == r"| \[red\]&lt;b&gt;\|\* | 33.3% | – |"


def test_csv_has_unrounded_numbers_and_empty_cells():
    rows = list(csv.reader(io.StringIO(tables.to_csv(TABLE))))
    assert rows[0] == ["Name", "Accuracy U", "Accuracy R"]
    assert float(rows[1][1]) == 1 / 3 and rows[1][2] == ""


def test_html_escapes_and_groups():
    html = render("shown.html", sheet="", summary=None, tables=[TABLE])
    assert "[red]&lt;b&gt;|*" in html and "<b>" not in html
    assert 'colspan="2"' in html and '<span class="chip good">second</span>' in html


def column(table, title):
    place = [one.full_title for one in table.columns].index(title)
    return {row[0].text: row[place] for row in table.rows}


def test_methods_are_means_over_seeds_with_controls_and_verdicts():
    about = subject.subject_of(make_run(audit=make_audit()))
    table = tables.methods_table(about)
    assert [row[0].text for row in table.rows][:2] == ["class pruning", "retrain"]
    assert column(table, "Accuracy R-set")["retrain"].text == "86.2 ± 0.4%"
    assert column(table, "Role")["mask logit"].text == "control"
    assert column(table, "Forgot")["fine tune only"] == ("no", "no", "bad")
    speed = column(table, "Speed-up over retraining images")
    assert speed["class pruning"].value == pytest.approx(130 / 12)
    assert column(table, "Speed-up over retraining images")["fine tune only"].text == (
        "did not forget"
    )
    assert column(table, "Audit")["class pruning"].text == "no difference found"
    trained = column(table, "Method")
    assert "relabel (trains on the forgotten images)" in trained
    assert column(table, "Parameters")["class pruning"].text == "75.0%"


def test_every_seed_is_listed_with_why_it_stopped():
    record = make_record()
    stopped = method_row("fisher", u=None, r=None, error="it diverged")
    record = replace(record, methods=[*record.methods, stopped])
    table = tables.seeds_table(subject.subject_of(make_run(record)))
    assert len(table.rows) == len(record.methods)
    assert column(table, "Stopped")["fisher"].text == "it diverged"


def test_the_audit_has_differences_with_intervals():
    about = subject.subject_of(make_run(audit=make_audit()))
    table = tables.audit_table(about, headline=True)
    assert [row[0].text for row in table.rows] == [
        "U-set accuracy",
        "Probe AUC",
        "Relearn area",
    ]
    assert column(table, "Difference")["Probe AUC"].text == "+0.0 [−10.0, +10.0]"
    assert column(table, "Verdict")["Relearn area"].text == "no power here"
    assert column(table, "mask logit")["Probe AUC"] == ("50.0%", 0.5, "bad")
    further = tables.audit_table(about, headline=False)
    assert [row[0].text for row in further.rows] == ["Threshold AUC"]


@pytest.mark.parametrize(
    ("written", "value", "text"),
    [
        (formats.percent, 0.12345, "12.3%"),
        (formats.percent, -0.0001, "0.0%"),
        (formats.number, -1234.0, "−1,234"),
        (formats.number, 0.000123, "1.23e-04"),
        (formats.seconds, 0.25, "250 ms"),
        (formats.seconds, 7300, "2.0 h"),
        (formats.size, 2_100_000, "2.1 MB"),
        (formats.count, 36_000, "36.0 thousand"),
        (formats.speedup, 10.04, "10.0×"),
        (formats.speedup, 1 / 3, "3× slower"),
        (formats.speedup, 1.0, "1×"),
    ],
)
def test_numbers_read_as_a_person_writes_them(written, value, text):
    assert written(value) == text
