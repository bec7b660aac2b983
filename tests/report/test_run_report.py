"""The report of one run: what it shows, what it says is missing, what it survives."""

import json
import re

import pytest

from fuprune import results
from fuprune.report import build, figures, join
from fuprune.report.roles import topic_of
from fuprune.results import CurveRow
from tests.report.fixture import (
    evidence,
    make_audit,
    make_record,
    method_row,
    replace,
    with_later_seed,
    write_run,
)
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


def test_page_asks_every_question(page):
    anchors = [attributes["id"] for attributes in page.all("section")]
    assert anchors == [
        "verdict",
        "accuracy",
        "speed",
        "relearn",
        "probe",
        "distance",
        "membership",
        "cut",
        "privacy",
        "rerun",
    ]
    assert {a["href"] for a in page.all("a")} == {f"#{anchor}" for anchor in anchors}


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
    assert len(drawings) > 12
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 20
    assert len(page.all("img")) == 3 * 3
    assert all(attributes["alt"] for attributes in page.all("img"))
    legends = [a for a in page.all("svg") if "swatch" in a.get("class", "")]
    assert all(attributes["aria-hidden"] == "true" for attributes in legends)


def test_tables_scroll_inside_their_own_container(page):
    kinds = ("scroll", "sideways")
    containers = [a for a in page.all("div") if a.get("class") in kinds]
    assert len(containers) >= len(page.all("table")) > 8
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in containers)


def test_the_first_screen_comes_first(page):
    start = page.text.index("Class pruning can be told from a model that never saw")
    for question in ("Gone?", "At what price?", "How sure?", "What next?"):
        place = page.text.index(question, start)
        assert place < page.text.index("Verdicts on every model")


def test_membership_without_power_is_folded_away(page):
    section = page.text[page.text.index("Could somebody still tell") :]
    assert "None of the 2 membership tests can tell" in section
    assert "The attacks, one by one" in section


def test_the_papers_form_and_other_tables_are_files(run):
    header, row = (run / "report" / "paper_form.csv").read_text().splitlines()
    assert header == (
        "Method,Raw model U-set,Raw model R-set,After-pruned U-set,After-pruned R-set,"
        "Fine-tuned U-set,Fine-tuned R-set,Re-trained U-set,Re-trained R-set"
    )
    assert float(row.split(",")[6]) == 0.86
    names = {path.stem for path in (run / "report").glob("*.csv")}
    expected = {"methods", "verdicts", "classes", "layers", "settings"}
    assert expected | {"speed_retrained", "tally"} <= names
    markdown = (run / "report" / "report.md").read_text()
    assert "## What was tested, and what could be seen" in markdown
    assert "- **Gone?** Not shown: it differs" in markdown


def test_same_files_give_the_same_bytes(tmp_path, run):
    second = write_run(tmp_path / "whole")
    build(second)
    for path in (run / "report").iterdir():
        assert path.read_bytes() == (second / "report" / path.name).read_bytes()
    before = (second / "report" / "report.html").read_bytes()
    assert build(second).read_bytes() == before
    assert not list((second / "report").glob(".*"))


@pytest.mark.parametrize("classes", [(3,), (0, 3)])
def test_each_class_cut_has_its_heat_map_widths_and_columns(tmp_path, classes):
    record = make_record(classes=classes)
    page = page_of(write_run(tmp_path / "run", record))
    heat = [label for label in page.labels if label.startswith("TF-IDF scores")]
    assert len(heat) == page.text.count("Every layer before and after") == len(classes)
    assert "scores of 8 channels in 2 layers; 2 were cut" in heat[0]
    several = len(classes) > 1
    assert ("(class pruning, class airplane (0))" in page.text) == several
    assert ("After cut 2" in page.text) == several


def test_scores_are_drawn_from_input_to_output(page, run):
    text = (run / "report" / "report.html").read_text()
    drawn = re.search(r'<svg[^>]*aria-label="TF-IDF scores.*?</svg>', text)[0]
    assert drawn.index(">stem<") < drawn.index(">conv1<")


def test_likeness_by_layer_is_drawn_from_input_to_output(tmp_path):
    # Audits of earlier versions have the layers in order of their names.
    cka = {name: {"conv1": 0.7, "stem": 0.9} for name in ("raw", "retrained_0")}
    page = page_of(write_run(tmp_path / "run", audit=make_audit(detail={"cka": cka})))
    assert "layer: stem (0) to conv1 (1)" in page.text


def test_curves_are_of_the_split_that_choices_were_made_on():
    values = {"r_accuracy": 0.5, "validation_r_accuracy": 0.7}
    rows = [
        CurveRow("unlearn/a", 0, {"r_accuracy": 0.4}),
        CurveRow("unlearn/a", 5, values),
        CurveRow("pretrain", 5, values),
    ]
    assert figures.recovery_curves(rows) == {"a": [(0, 0.4), (5, 0.7)]}


def test_seeds_of_one_method_share_a_legend_entry(page):
    assert "retrain (2)" in page.text
    assert "retrain seed2 (" not in page.text


def test_a_hundred_classes_are_drawn_as_dots(tmp_path):
    names = [f"kind {index}" for index in range(100)]
    record = make_record(class_names=names, classes=(99,))
    page = page_of(write_run(tmp_path / "run", record))
    assert any(label.startswith("Accuracy of 100 classes") for label in page.labels)
    assert any(label.startswith("Confusion matrix of raw") for label in page.labels)


def test_a_class_without_test_images_is_no_point_at_zero():
    names = [f"kind {index}" for index in range(100)]
    record = make_record(class_names=names, classes=(99,))
    for stage in record.stages:
        stage.per_class[5] = None
    drawn = str(figures.class_figure(topic_of(record)))
    line = re.search(r'<path d="M([^"]*)" class="line raw"', drawn)
    assert line and len(line[1].split()) == 2 * 99


def test_curves_of_relearning_and_probes_by_depth_are_drawn(tmp_path):
    models = ("class_pruning", "raw", "retrained_0", "retrained_1")
    runs = [
        {
            "model": model,
            "images": images,
            "images_per_class": 10,
            "learning_rate": rate,
            "steps": [0, 10, 20],
            "accuracy": [0.0, rate * 10, 0.9],
        }
        for model in models
        for images in ("all", "forgotten")
        for rate in (0.01, 0.03)
    ]
    curve = {"steps": [0, 10, 20], "accuracy": [0.0, 0.2, 0.9]}
    detail = {
        "relearn": {"level": 0.7, "curves": dict.fromkeys(models, curve), "runs": runs},
        "probe": {
            "layers": ["stem", "conv1", "features"],
            "classifiers": ["linear", "neighbours"],
            "areas": {
                m: {c: [0.6, 0.7, 0.8] for c in ("linear", "neighbours")}
                for m in models
            },
        },
    }
    page = page_of(write_run(tmp_path / "run", audit=make_audit(detail=detail)))
    assert "Accuracy on forgotten test images (mean over all settings)." in page.text
    assert "With forgotten images only, 10 per class" in page.text
    assert "(learning rates 0.01 and 0.03)" in page.text
    assert "Recognised inside, by depth: linear probe" in page.text
    assert "Recognised inside, by depth: nearest neighbours" in page.text


def test_a_seed_that_stands_for_its_method_has_its_cut_and_verdicts(tmp_path):
    fails = dict.fromkeys(("class_pruning_seed2", "mask_logit", "raw"), "fail")
    audit = make_audit(evidence("a", fails))
    record = with_later_seed(make_record())
    (cuts,) = record.cuts.values()
    record = replace(record, cuts={"another": cuts, "class_pruning_seed2": cuts})
    page = page_of(write_run(tmp_path / "run", record, audit))
    assert "TF-IDF of every channel, by layer (class pruning seed2)" in page.text
    assert "Class pruning seed2: 50.0%. Retrained: 10.0% to 20.0%." in page.text
    cut = "Confusion matrix of class pruning seed2, pruned 3"
    assert any(label.startswith(cut) for label in page.labels)


def test_the_whole_page_is_about_the_method_that_was_audited(tmp_path):
    record = make_record(methods=("relabel", "retrain"))
    other = method_row("fisher")
    record = replace(record, methods=[other, *record.methods])
    audit = make_audit(evidence("a", {"relabel": "fail", "raw": "fail"}))
    page = page_of(write_run(tmp_path / "run", record, audit))
    assert "Relabel can be told from a model" in page.text
    assert any(one.startswith("Confusion matrix of relabel") for one in page.labels)
    roles_given = (tmp_path / "run" / "report" / "methods.csv").read_text().splitlines()
    assert roles_given[1].startswith("fisher,baseline")
    assert roles_given[2].startswith("relabel,under test")


FILES = ("results.json", "metrics.jsonl", "audit.json", "feature_maps.npz")
BROKEN = (b"{\n", b"[]\n", b"\xff\x00\n", b"[" * 100_000)


@pytest.mark.parametrize(
    ("names", "content"),
    [*(((name,), BROKEN[0]) for name in FILES), *((FILES, text) for text in BROKEN)],
)
def test_a_broken_file_is_a_note_and_an_empty_section(tmp_path, names, content):
    directory = write_run(tmp_path / "run")
    for name in names:
        (directory / name).write_bytes(content)
    page = page_of(directory)
    for name in FILES:
        # A line without an end is one that is still being written.
        unfinished = name == "metrics.jsonl" and not content.endswith(b"\n")
        noted = name in names and not unfinished
        assert (f"{name} does not parse: " in page.text) == noted
    assert page.all("script") == []


@pytest.mark.parametrize(
    "detail",
    [
        {"roc": {"x": {"raw": {"false_positives": [0.0, 1], "true_positives": [0.0]}}}},
        {"relearn": {"level": 1.0, "curves": {"raw": {"steps": [0.0]}}, "runs": []}},
        {
            "relearn": {
                "level": 1.0,
                "curves": {"raw": {"steps": [0.0, 5.0], "accuracy": [0.5]}},
                "runs": [],
            }
        },
    ],
)
def test_curves_that_no_audit_writes_are_a_note(tmp_path, detail):
    directory = write_run(tmp_path / "run")
    plain = json.loads((directory / "audit.json").read_text()) | {"detail": detail}
    (directory / "audit.json").write_text(json.dumps(plain))
    assert "audit.json does not parse" in page_of(directory).text


def test_settings_of_any_type_do_not_stop_a_report(tmp_path):
    record = make_record()
    config = {
        "seed": [0],
        "data": {"name": 3, "limit": "x", "validation": "y"},
        "partition": {"kind": "bias", "bias": "z"},
    }
    record = replace(record, provenance=replace(record.provenance, config=config))
    directory = write_run(tmp_path / "run", record)
    assert "digits" in page_of(directory).text
    assert "digits" in Page(join([directory], tmp_path / "out").read_text()).text


def test_a_missing_file_is_a_note(tmp_path):
    directory = write_run(tmp_path / "run")
    for name in FILES:
        (directory / name).unlink()
    text = page_of(directory).text
    # A run that cuts nothing has no feature maps.
    missing = [name for name in FILES if f"{name} is missing." in text]
    assert missing == ["results.json", "metrics.jsonl", "audit.json"]


def test_a_run_that_only_started_has_a_report(tmp_path):
    directory = write_run(tmp_path / "run")
    for name in ("results.json", "audit.json", "feature_maps.npz"):
        (directory / name).unlink()
    page = page_of(directory)
    assert "No method has finished yet." in page.text
    assert "No pruning plan was recorded" in page.text
    assert "resnet" not in page.text and "digits" in page.text


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a run: it has none of config.json"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stages", None),
        ("methods", 3),
        ("cuts", [3]),
        ("classes", "x"),
        ("model", [{}]),
    ],
)
def test_a_field_of_another_type_is_a_file_that_does_not_parse(tmp_path, field, value):
    directory = write_run(tmp_path / "run")
    plain = results.to_plain(make_record()) | {field: value}
    (directory / "results.json").write_text(json.dumps(plain))
    assert f"results.json.{field}" in page_of(directory).text


STAGE, CUT = make_record().stages[0], make_record().cuts["class_pruning"][0]
