"""Tables in their three forms, and the markup they are made of."""

import csv
import io

import pytest

from fuprune import results as speed
from fuprune.report import formats, markup, table_forms, tables
from fuprune.report.roles import topic_of
from fuprune.report.table_forms import Column, Table, cell
from fuprune.results import PhaseClock
from tests.report.fixture import evidence, make_audit, make_record, replace
from tests.report.reading import Page


def table(*values, columns=None):
    columns = columns or tuple(Column(f"c{i}") for i in range(len(values)))
    return Table("name", "Title", columns, (tuple(values),))


def test_html_escapes_every_cell_and_heading():
    evil = "<img src=x onerror=y>"
    shown = table_forms.to_html(table(cell(evil), columns=(Column(evil, group=evil),)))
    page = Page(shown)
    assert page.all("img") == []
    assert page.text.count(evil) == 3


def test_markdown_keeps_a_cell_in_its_cell():
    text = table_forms.to_markdown(table(cell("a|b\nc <b> `x` [l](u)"), cell(1)))
    row = text.splitlines()[4]
    assert row == r"| a\|b c &lt;b&gt; \`x\` \[l\](u) | 1 |"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_csv_defuses_formulas(start):
    text = table_forms.to_csv(table(cell(f"{start}cmd()")))
    value = next(csv.reader(io.StringIO(text.splitlines()[1])))[0]
    assert value == f"'{start}cmd()"


def test_csv_holds_the_unrounded_number_and_the_verdict():
    text = table_forms.to_csv(
        table(cell(0.123456, "12.3%", verdict="fail"), cell(None))
    )
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [["c0", "c0 verdict", "c1"], ["0.123456", "fail", ""]]


def test_negative_numbers_stay_numbers_in_csv():
    assert table_forms.to_csv(table(cell(-1.5))).splitlines()[1] == "-1.5"


def test_neighbouring_columns_share_their_group_heading():
    columns = (Column("a"), Column("b", group="G"), Column("c", group="G"))
    page = Page(table_forms.to_html(table(cell(1), cell(2), cell(3), columns=columns)))
    assert [a.get("colspan") for a in page.all("th") if "colspan" in a] == ["2"]


def test_columns_without_any_value_can_be_left_out():
    full = table(cell(1), cell(None), cell(""))
    less = table_forms.without_empty_columns(full)
    assert [column.title for column in less.columns] == ["c0", "c2"]
    assert [[entry.value for entry in row] for row in less.rows] == [[1, ""]]


def test_verdicts_are_words_and_not_colour_alone():
    page = Page(table_forms.to_html(table(cell("m"), cell(1.0, verdict="cannot tell"))))
    assert "cannot tell" in page.text


def test_unprintable_characters_become_visible():
    assert markup.text("a\x00\u202eb\ud800") == "a\ufffd\ufffdb\ufffd"


def test_attributes_cannot_be_left():
    made = markup.element("p", {"title": '" onclick="x'}, "t")
    assert Page(made).all("p") == [{"title": '" onclick="x'}]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (164, "164"),
        (12345, "12,345"),
        (0.1234, "0.123"),
        (41.66, "41.7"),
        (3.82e-5, "3.82e-05"),
        (-0.5, "−0.500"),
        (float("nan"), "not a number"),
    ],
)
def test_numbers_keep_three_digits(value, shown):
    assert formats.number(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"), [(-0.154, "−15.4%"), (-0.0001, "0.0%"), (0.5, "50.0%")]
)
def test_shares_below_zero_have_the_minus_of_numbers(share, shown):
    assert formats.percent(share) == shown


def test_what_is_unknown_is_a_dash_and_empty_in_csv():
    unknown = cell(None, formats.number)
    assert unknown.text == formats.percent(None) == formats.seconds(None) == "–"
    assert table_forms.to_csv(table(cell(1), unknown)).splitlines()[1] == "1,"


def test_sentences_list_names():
    assert formats.listing(["a"]) == "a"
    assert formats.listing(["a", "b", "c"]) == "a, b and c"
    assert formats.listing(list("abcdefgh"), 4) == "a, b, c and 5 more"


def row_of(table, name):
    found = next(row for row in table.rows if row[0].value == name)
    titles = [" ".join(filter(None, (c.group, c.title))) for c in table.columns]
    return dict(zip(titles, (entry.text for entry in found), strict=True))


def test_the_speed_table_compares_rounds_time_images_and_bytes():
    table = tables.speed_table(topic_of(make_record()), "retrained")
    ours = row_of(table, "class_pruning")
    assert ours["Spent until then rounds"] == "12"
    assert ours["Times less than retraining rounds"] == "10.8×"
    assert ours["Times less than retraining upload"] == "10.8×"
    assert row_of(table, "mask_logit")["Spent until then rounds"] == "not reached"
    assert row_of(table, "retrain")["Times less than retraining rounds"] == "–"
    assert "85.5% on the R-set of the test split" in table.title
    assert not tables.speed_table(topic_of(make_record()), "configured").rows
    assert set(speed.TARGETS) == {"retrained", "raw_masked", "configured"}


def test_times_say_which_part_is_the_method_and_relabelling_is_marked():
    table = tables.methods_table(topic_of(make_record()))
    assert row_of(table, "class_pruning")["Time own work"] == "2.0 s"
    assert row_of(table, "class_pruning")["Time training"] == "20.0 s"
    assert row_of(table, "relabel")["Remark"].startswith("Trains on the forgotten")
    speeds = tables.speed_table(topic_of(make_record()), "retrained")
    named = [row[0].text for row in speeds.rows]
    assert "relabel (trains on the forgotten images)" in named


def test_a_method_that_stopped_says_why():
    record = make_record()
    stopped = replace(record.methods[0], error="no clients left", u_accuracy=None)
    table = tables.methods_table(topic_of(replace(record, methods=[stopped])))
    assert row_of(table, "class_pruning")["Remark"] == "did not finish: no clients left"


def test_a_constant_attacker_is_no_result():
    test = evidence(
        "shadow_success_rate", {"class_pruning": "cannot tell"}, kind="shadow"
    )
    test = replace(test, values={"class_pruning": None})
    table = tables.verdict_table(make_audit(test), "class_pruning")
    assert row_of(table, "shadow_success_rate")["class pruning"] == "no result"


def test_tests_without_power_come_last():
    table = tables.verdict_table(make_audit(), "class_pruning")
    undecided = [row[1].verdict == "cannot tell" for row in table.rows]
    assert len(undecided) == 6 and undecided == sorted(undecided) and any(undecided)


def test_the_time_of_a_run_is_given_by_unit_with_the_share_of_programs():
    clocks = {
        "pretrain": PhaseClock(0.0, [(1, 2.0)], 5.0, 3.0),
        "unlearn/cut": PhaseClock(1.0, [], None, None),  # killed, not yet finished
        "audit": PhaseClock(0.0, [], 20.0, 8.0),
    }
    made = tables.units_table(clocks)
    assert [[entry.value for entry in row] for row in made.rows] == [
        ["pretrain", 5.0, 3.0],
        ["audit", 20.0, 8.0],
        ["all of them", 25.0, 11.0],
    ]
    clocks["audit"] = replace(clocks["audit"], programs=None)  # of an older run
    assert tables.units_table(clocks).rows[-1][2].text == formats.MISSING
    assert not tables.units_table({}).rows
