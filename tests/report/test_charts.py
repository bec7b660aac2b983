"""Charts: well-formed, within their frame, and true to the values."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from fuprune.report import audit_figures, charts, marks
from fuprune.report.charts import Dot, Series
from fuprune.report.marks import Axis
from fuprune.report.roles import topic_of
from tests.report.fixture import evidence, make_audit, make_record


def parsed(drawing) -> ElementTree.Element:
    root = ElementTree.fromstring(drawing)
    assert root.attrib["role"] == "img"
    return root


def numbers(path: str) -> list[float]:
    return [float(value) for value in re.findall(r"-?\d+\.?\d*", path)]


def line(points, **axes):
    made = charts.line_chart(
        [Series("one", "main", tuple(points))],
        axes.get("horizontal", Axis("x", 0, 10)),
        axes.get("vertical", Axis("y", 0, 1)),
        "label",
    )
    root = parsed(made)
    drawn = next(p for p in root.iter("path") if p.attrib["class"] == "line main")
    flat = numbers(drawn.attrib["d"])
    return list(zip(flat[::2], flat[1::2], strict=True))


def test_a_line_runs_from_corner_to_corner_of_its_frame():
    (left, bottom), (right, top) = line([(0, 0), (10, 1)])
    assert left < right
    assert bottom > top
    assert line([(0, 0), (5, 0.5), (10, 1)])[1] == pytest.approx(
        ((left + right) / 2, (bottom + top) / 2), abs=0.02
    )


def test_values_outside_the_axes_stay_inside_the_frame():
    inside = line([(0, 0), (10, 1)])
    outside = line([(-5, -3), (50, 7)])
    assert outside == inside


def test_long_lines_are_thinned_but_keep_their_last_point():
    many = [(index / 100, (index % 7) / 7) for index in range(1001)]
    drawn = line(many)
    assert len(drawn) <= 400
    assert drawn[-1] == line([(0, 0), many[-1]])[-1]


def test_a_logarithmic_axis_spaces_powers_evenly():
    axis = Axis("x", 1e-3, 1, logarithmic=True)
    places = [x for x, _ in line([(1e-3, 0), (1e-2, 0), (1e-1, 0)], horizontal=axis)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.02)
    assert line([(0.0, 0), (1, 0)], horizontal=axis)[0][0] == places[0]


def test_bars_are_as_long_as_their_values():
    groups = [("half", "main", [0.5]), ("all", "raw", [1.0])]
    root = parsed(charts.bar_rows(["a"], groups, [], "label"))
    widths = {
        rect.attrib["class"]: float(rect.attrib["width"]) for rect in root.iter("rect")
    }
    assert widths["fill main"] == pytest.approx(widths["fill raw"] / 2)
    assert widths["fill raw"] == widths["track"]


def test_missing_values_have_no_bar():
    root = parsed(charts.bar_rows(["a"], [("none", "main", [None])], [], "label"))
    assert [rect.attrib["class"] for rect in root.iter("rect")] == ["track"]


def test_dots_at_one_place_do_not_hide_each_other():
    dots = [Dot(name, "o0", 0.5) for name in "abcde"]
    root = parsed(charts.strip((0.4, 0.6), dots, [0.45], "label"))
    places = {(c.attrib["cx"], c.attrib["cy"]) for c in root.iter("circle")}
    assert len(places) == 5


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-9, 1e12])
@pytest.mark.parametrize("interval", [None, (0.0, 0.0), (-1.0, 2.0)])
def test_strips_take_any_values(value, interval):
    drawn = charts.strip(
        interval, [Dot("a", "main", value)], [], "label", logarithmic=True
    )
    assert "nan" not in drawn
    parsed(drawn)


def test_a_strip_says_of_an_open_side_that_it_is_open():
    audit = make_audit(evidence("a", {"x": "pass"}, interval=(0.1, None)))
    drawn = audit_figures.strip_figure(topic_of(make_record(), audit), audit.tests[0])
    assert "<title>retrained: at least 10.0%</title>" in drawn


def test_cut_channels_are_marked_under_their_cells():
    rows = [("conv1", [0.9, 0.5, 0.1], [True, False, True])]
    root = parsed(charts.heat_rows(rows, "label"))
    marks = [p for p in root.iter("path") if p.attrib["class"] == "cutmark"]
    assert len(marks) == 1
    assert marks[0].attrib["d"].count("M") == 2
    assert "−2 of 3" in [text.text for text in root.iter("text")]


def test_matrix_writes_percentages_and_outlines_the_forgotten_class():
    shares = [[0.9, 0.1], [1.0, 0.0]]
    root = parsed(charts.matrix(np.array(shares), ["cat", "dog"], [1], "label"))
    shown = [text.text for text in root.iter("text")]
    assert {"90", "10", "100"} <= set(shown)
    outlines = [r for r in root.iter("rect") if r.attrib["class"] == "outline"]
    assert len(outlines) == 2


def test_a_roc_keeps_its_height_until_the_next_false_alarm():
    steps = audit_figures.stairs([(0.0, 0.0), (0.0, 0.2), (0.5, 0.6), (1.0, 1.0)])
    assert steps[-4:] == [(0.5, 0.2), (0.5, 0.6), (1.0, 0.6), (1.0, 1.0)]


def test_pictures_are_small_images_inside_the_page():
    assert marks.photograph(np.zeros((2, 2, 1), np.uint8)).startswith("data:image/png")
    odd = np.array([[np.nan, np.inf], [-1.0, 2.0]])
    assert marks.heat_map(odd, 2.0).startswith("data:image/png;base64,")
    assert marks.heat_map(odd, 0.0).startswith("data:image/png;base64,")
