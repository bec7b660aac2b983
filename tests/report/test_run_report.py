"""The report of one run: what it shows, what it says is missing, what it survives."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune.report import build
from tests.report.fixture import write_run
from tests.report.reading import Page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = write_run(tmp_path_factory.mktemp("runs") / "whole")
    build(directory)
    return directory


@pytest.fixture(scope="module")
def page(run):
    return Page((run / "report" / "report.html").read_text())


def page_of(directory) -> Page:
    return Page(build(directory).read_text())


def change(path, edit):
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def test_page_asks_every_question(page):
    anchors = {attributes.get("id") for attributes in page.all("section")}
    assert anchors == {
        "verdict",
        "accuracy",
        "speed",
        "membership",
        "probe",
        "relearn",
        "distance",
        "cut",
        "privacy",
        "rerun",
    }
    linked = {a["href"] for a in page.all("a")}
    assert linked == {f"#{anchor}" for anchor in anchors}


def test_page_loads_nothing_and_runs_nothing(page, run):
    text = (run / "report" / "report.html").read_text()
    assert page.all("script") == []
    policy = page.all("meta")[1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith("default-src 'none'")
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data"):
            if name in attributes:
                assert attributes[name].startswith(("#", "data:image/png")), (tag, name)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"https?://|url\(|@import", text)


def test_every_picture_has_a_text_alternative(page):
    drawings = [a for a in page.all("svg") if "chart" in a.get("class", "")]
    assert len(drawings) > 15
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 20
    assert len(page.all("img")) == 3 * 8
    for attributes in page.all("img"):
        assert attributes["alt"]
    legends = [a for a in page.all("svg") if "swatch" in a.get("class", "")]
    assert all(attributes["aria-hidden"] == "true" for attributes in legends)


def test_tables_scroll_inside_their_own_container(page):
    tables = len(page.all("table"))
    containers = [
        a for a in page.all("div") if a.get("class") in ("scroll", "sideways")
    ]
    assert tables > 8
    assert len(containers) >= tables
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in containers)


def test_verdict_comes_first_and_names_the_failures(page):
    start = page.text.index("Class pruning fails 2 of 12 tests")
    assert start < page.text.index("Is the class gone from the answers, and")
    assert "Relearn steps 24 (retrained: at least" in page.text
    assert "A trivial control does as well: prune random" in page.text


def test_the_papers_form_is_there(run):
    table = (run / "report" / "paper_form.csv").read_text().splitlines()
    assert table[0].startswith(
        "Method,Raw model U-set,Raw model R-set,After-pruned U-set,After-pruned R-set,"
        "Fine-tuned U-set,Fine-tuned R-set,Re-trained U-set,Re-trained R-set,Speed-up"
    )
    results = json.loads((run / "results.json").read_text())
    final = next(m for m in results["methods"] if m["method"] == "class_pruning")
    ours = next(row for row in table if row.startswith("class_pruning")).split(",")
    assert float(ours[6]) == final["r_accuracy"]


def test_markdown_and_csv_hold_the_same_tables(run):
    names = {path.stem for path in (run / "report").glob("*.csv")}
    assert {"methods", "verdicts", "classes", "layers", "audit", "settings"} <= names
    markdown = (run / "report" / "report.md").read_text()
    for title in ("Every method, compared", "Every test, every model"):
        assert f"## {title}" in markdown
    assert "class pruning | under test | 0.0% | 87.7%" in markdown


def test_same_files_give_the_same_bytes(tmp_path):
    first = write_run(tmp_path / "a" / "run")
    second = write_run(tmp_path / "b" / "run")
    for directory in (first, second):
        build(directory)
    names = sorted(path.name for path in (first / "report").iterdir())
    assert names == sorted(path.name for path in (second / "report").iterdir())
    for name in names:
        one, other = (d / "report" / name for d in (first, second))
        assert one.read_bytes() == other.read_bytes(), name


def test_building_again_replaces_the_report(tmp_path):
    directory = write_run(tmp_path / "run")
    before = build(directory).read_bytes()
    assert build(directory).read_bytes() == before
    assert not list((directory / "report").glob(".*"))


def test_scores_are_drawn_in_forward_order_whatever_the_file_says(tmp_path):
    directory = write_run(tmp_path / "run")
    sorted_text = json.dumps(
        json.loads((directory / "results.json").read_text()), sort_keys=True
    )
    unsorted_page = build(directory).read_text()
    (directory / "results.json").write_text(sorted_text)
    heat = re.compile(r'<svg[^>]*aria-label="TF-IDF scores.*?</svg>')
    assert heat.search(build(directory).read_text())[0] == heat.search(unsorted_page)[0]


def heat_maps(text):
    """Spoken labels of the heat maps of a page."""
    return re.findall(r'<svg[^>]*aria-label="(TF-IDF scores[^"]*)"', text)


@pytest.mark.parametrize("classes", [(9,), (0, 9), (0, 5, 9)])
def test_each_class_cut_has_its_heat_map_and_widths(tmp_path, classes):
    directory = write_run(tmp_path / "run", classes=classes)
    page, labels = page_of(directory), heat_maps(build(directory).read_text())
    cuts = json.loads((directory / "results.json").read_text())["cuts"]["class_pruning"]
    assert len(labels) == len(classes)
    for label, cut in zip(labels, cuts, strict=True):
        scored = sum(len(ids) for ids in cut["channels"].values())
        gone = sum(len(ids) for ids in cut["cut"].values())
        assert f"scores of {scored} channels" in label and f"{gone} were cut" in label
    assert page.text.count("Width of each layer") == len(classes)
    several = len(classes) > 1
    assert ("Width of each layer, for class airplane (0)" in page.text) == several
    assert (directory / "report" / "layers_2.csv").exists() == several


def test_a_file_with_one_cut_a_method_still_has_its_heat_map(tmp_path):
    directory = write_run(tmp_path / "run")
    results = json.loads((directory / "results.json").read_text())
    with_cuts = heat_maps(build(directory).read_text())
    del results["cuts"]
    (directory / "results.json").write_text(json.dumps(results))
    assert heat_maps(build(directory).read_text()) == with_cuts


@pytest.mark.parametrize(
    "cuts",
    [
        3,
        {"class_pruning": 3},
        {"class_pruning": [3, {"class": "x", "scores": [], "cut": 3, "plan": {}}]},
        {"class_pruning": [{"scores": {"stem": [1, None]}, "channels": {"stem": [7]}}]},
    ],
)
def test_cuts_of_another_form_do_not_break_the_page(tmp_path, cuts):
    directory = write_run(tmp_path / "run")
    results = json.loads((directory / "results.json").read_text())
    (directory / "results.json").write_text(json.dumps({**results, "cuts": cuts}))
    assert "What was cut?" in page_of(directory).text


def test_seeds_of_one_method_share_a_colour_and_a_legend_entry(tmp_path):
    directory = write_run(tmp_path / "run")
    with (directory / "metrics.jsonl").open("a") as lines:
        for number in range(5):
            row = {"phase": "unlearn/retrain_seed2", "round": number, "r_accuracy": 0.5}
            lines.write(json.dumps(row) + "\n")
    page = page_of(directory)
    assert "retrain (2)" in page.text
    assert "retrain seed2 (" not in page.text


@pytest.mark.parametrize("classes", [(0, 9), (0, 5, 9)])
def test_several_classes_have_a_column_pair_for_each_cut(tmp_path, classes):
    directory = write_run(tmp_path / "run", classes=classes)
    page = page_of(directory)
    assert "After first class" in page.text
    assert f"After {['second', 'third'][len(classes) - 2]} class" in page.text
    assert "Forgetting classes airplane (0)" in page.text


def test_a_hundred_classes_are_drawn_as_dots(tmp_path):
    names = tuple(f"kind {index}" for index in range(100))
    directory = write_run(tmp_path / "run", class_names=names, classes=(99,))
    page = page_of(directory)
    labels = [a["aria-label"] for a in page.all("svg") if "aria-label" in a]
    assert any(label.startswith("Accuracy of 100 classes") for label in labels)
    assert any(label.startswith("Confusion matrix of raw") for label in labels)


def test_a_run_without_an_audit_says_so_first(tmp_path):
    page = page_of(write_run(tmp_path / "run", audited=False))
    assert "Not audited: nothing here shows that class truck (9) is gone." in page.text
    assert "Not in this run's directory: audit.json." in page.text


def test_one_method_alone_is_said_to_be_incomparable(tmp_path):
    directory = write_run(tmp_path / "run", methods=("class_pruning",))
    page = page_of(directory)
    assert "Only one method was run" in page.text
    assert "nothing was retrained to compare with" in page.text
    assert "None was audited, so this page cannot say" in page.text


@pytest.mark.parametrize("name", ["config.json", "results.json", "metrics.jsonl"])
def test_a_missing_file_leaves_a_note(tmp_path, name):
    directory = write_run(tmp_path / "run")
    (directory / name).unlink()
    assert f"Not in this run's directory: {name}." in page_of(directory).text


def test_a_run_that_only_started_has_a_report(tmp_path):
    directory = write_run(tmp_path / "run")
    for name in ("results.json", "audit.json", "feature_maps.npz", "timings.jsonl"):
        (directory / name).unlink()
    page = page_of(directory)
    assert "results.json lists no methods yet." in page.text
    assert "No pruning plan was recorded" in page.text


def test_a_cut_last_line_is_skipped_and_said(tmp_path):
    directory = write_run(tmp_path / "run")
    path = directory / "metrics.jsonl"
    amount = len(path.read_text().splitlines())
    with path.open("a") as lines:
        lines.write('{"phase": "unlearn/retrain", "rou')
    page = page_of(directory)
    assert f"skipped 1 unreadable line ({amount + 1})" in page.text
    assert "Lines of R-set accuracy" in str(page.elements)


@pytest.mark.parametrize("name", ["config.json", "results.json", "audit.json"])
@pytest.mark.parametrize("text", ["{", "[]", '"text"', "\x00", "[" * 100_000])
def test_a_broken_file_is_noted_and_the_rest_is_shown(tmp_path, name, text):
    directory = write_run(tmp_path / "run")
    (directory / name).write_text(text)
    assert f"{name} could not be read" in page_of(directory).text


def test_broken_feature_maps_are_noted(tmp_path):
    directory = write_run(tmp_path / "run")
    for broken in (
        {"images": np.zeros((2, 4, 4, 7), np.uint8)},
        {"images": np.zeros((2, 4, 4, 3), np.float32)},
        {"labels": np.zeros((5,), np.int32)},
        {"maps_most": np.zeros((2, 4, 4, 4))},
        {"labels": np.array(["a", "b"])},
    ):
        arrays = {
            "images": np.zeros((2, 4, 4, 3), np.uint8),
            "labels": np.zeros((2,), np.int32),
            "maps_most": np.zeros((2, 4, 4)),
            "maps_least": np.zeros((2, 4, 4)),
        }
        np.savez(directory / "feature_maps.npz", **(arrays | broken))
        page = page_of(directory)
        assert "feature_maps.npz could not be read" in page.text, broken
        assert page.all("img") == []


def test_grey_images_are_shown(tmp_path):
    directory = write_run(tmp_path / "run")
    np.savez(
        directory / "feature_maps.npz",
        images=np.arange(2 * 64, dtype=np.uint8).reshape(2, 8, 8, 1),
        labels=np.array([9, 0]),
        maps_most=np.full((2, 4, 4), np.nan),
        maps_least=np.zeros((2, 4, 4)),
    )
    assert len(page_of(directory).all("img")) == 6


def test_names_from_files_come_out_as_text(tmp_path):
    evil = "<script>alert(1)</script>"
    names = (evil, "\"'><img src=x onerror=alert(1)>", "=1+1", *"3456789")
    directory = write_run(tmp_path / "run", class_names=names, classes=(0,))
    with (directory / "metrics.jsonl").open("a") as lines:
        row = {"phase": f"unlearn/{evil}", "round": 1, "r_accuracy": 0.5}
        lines.write(json.dumps(row) + "\n")
    change(
        directory / "config.json",
        lambda value: value.update(command=["x", evil], commit=evil),
    )
    page = page_of(directory)
    assert page.all("script") == []
    assert all(a["src"].startswith("data:image/png") for a in page.all("img"))
    assert evil in page.text
    cells = (directory / "report" / "classes.csv").read_text().splitlines()
    assert cells[3].startswith("'=1+1 (2)")
    assert evil not in (directory / "report" / "report.md").read_text()


def test_a_report_that_is_a_link_elsewhere_is_refused(tmp_path):
    directory = write_run(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (directory / "report").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link to"):
        build(directory)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a run: it has none of config.json"):
        build(tmp_path)


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "raw", "retrain", "pruned_9", "<b>", "\ud800", "9" * 30]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "stem", "raw"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value, path=()):
    """Every place in a JSON value, as the path of keys that leads there."""
    yield path
    inner = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))[:2]
    for key, item in inner:
        yield from places(item, (*path, key))


def replaced(value, path, new):
    """The same value with something else at one place, if the place is still there."""
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict) and key in value:
        return value | {key: replaced(value[key], rest, new)}
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return [*value[:key], replaced(value[key], rest, new), *value[key + 1 :]]
    return value


@pytest.mark.parametrize("name", ["results.json", "audit.json", "config.json"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_still_gives_a_page(tmp_path_factory, run, name, data):
    whole = json.loads((run / name).read_text())
    everywhere = st.sampled_from(list(places(whole)))
    for path in data.draw(st.lists(everywhere, min_size=1, max_size=4)):
        whole = replaced(whole, path, data.draw(ANY_JSON))
    directory = tmp_path_factory.mktemp("fuzz")
    for other in ("config.json", "results.json", "audit.json"):
        (directory / other).write_bytes((run / other).read_bytes())
    (directory / name).write_text(json.dumps(whole))
    assert page_of(directory).all("script") == []
