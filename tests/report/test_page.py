"""The page of one run: complete, small, the same bytes, and never out of date."""

import json
import re

import numpy as np
import pytest

from fuprune import results
from fuprune.audit import reading
from fuprune.errors import InputError
from fuprune.report import build, closing, show, subject
from fuprune.report import page as page_module
from fuprune.report.__main__ import main
from fuprune.surgery.plan import PrunePlan
from tests.report.fixture import make_audit, make_record, make_run, replace, write_run
from tests.report.reading import Page

QUESTIONS = [
    "Is it gone from the answers?",
    "At what price?",
    "Does it behave like retraining?",
    "What was cut?",
]
FIGURES = {
    *("class_accuracy", "pictures", "price", "audit_values"),
    *("scores", "shape", "feature_maps"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = write_run(tmp_path_factory.mktemp("runs") / "mine")
    build(directory)
    return directory


@pytest.fixture(scope="module")
def html(run):
    return (run / "report" / "report.html").read_text()


def test_the_page_asks_the_four_questions_and_draws_every_figure(html):
    page = Page(html)
    headings = re.findall("<h2>(.*?)</h2>", html)
    assert [one for one in headings if one in QUESTIONS] == QUESTIONS
    assert html.count("<svg ") == len(FIGURES) and html.count('role="img"') == len(
        FIGURES
    )
    assert page.all("script") == [] and "default-src 'none'" in html
    assert all(link["href"].endswith(".pdf") for link in page.all("a"))


def test_closed_it_is_short(html):
    closed = re.sub(r"<details>.*?</details>", "", html, flags=re.DOTALL)
    assert len(Page(closed).text.split()) <= 1500


def test_figures_and_tables_are_files_that_can_be_read(run):
    names = {path.name for path in (run / "report").iterdir()}
    assert {f"{n}.{kind}" for n in FIGURES for kind in ("svg", "pdf")} <= names
    tables = ("methods", "audit", "seeds", "stages", "settings", "price")
    assert {f"{name}.csv" for name in tables} <= names
    for svg in (run / "report").glob("*.svg"):
        Page(svg.read_text().split("?>", 1)[1])


def test_names_in_a_page_differ_between_figures(html):
    ids = re.findall(r' id="([^"]+)"', html)
    # Equal pictures in one figure share their bytes' name.
    own = [name for name in ids if "-image" not in name]
    assert len(own) == len(set(own))
    for name in re.findall(r'(?:xlink:href="|url\()#([^")]+)', html):
        assert name in ids


def test_same_files_give_the_same_bytes(tmp_path, run):
    other = write_run(tmp_path / "mine")
    build(other)
    for path in (run / "report").iterdir():
        assert path.read_bytes() == (other / "report" / path.name).read_bytes(), path


def test_a_rebuilt_report_leaves_nothing_of_the_one_before(tmp_path):
    directory = write_run(tmp_path / "run")
    build(directory)
    (directory / "report" / "mine.txt").write_text("kept")
    (directory / "audit.json").unlink()
    (directory / "feature_maps.npz").unlink()
    build(directory)
    names = {path.name for path in (directory / "report").iterdir()}
    gone = {"audit.csv", "audit_values.csv", "audit_values.pdf", "feature_maps.svg"}
    assert not gone & names
    assert {"mine.txt", "methods.csv", "report.md"} <= names


def without_figures(directory):
    """The page of a run, quickly."""
    about = subject.subject_of(results.read_run(directory, reading.read))
    made = page_module._tables(about)
    return page_module.render("page.html", **page_module._content(about, [], made))


@pytest.mark.parametrize("name", ["results.json", "audit.json", "metrics.jsonl"])
@pytest.mark.parametrize(
    "content", [None, b"{\n", b"[]\n", b"\xff\x00\n", b"[" * 100_000 + b"\n"]
)
def test_a_broken_or_missing_file_is_a_note(tmp_path, name, content):
    directory = write_run(tmp_path / "run")
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)
    text = Page(without_figures(directory)).text
    if content is None and name == "audit.json":
        assert "There is no readable audit" in text
    else:
        assert f"{name} is missing" in text or f"{name} does not parse" in text
    assert str(tmp_path) not in text


def test_a_run_that_only_started_has_a_report(tmp_path):
    record = make_record()
    (tmp_path / "config.json").write_text(results.dumps(record.provenance))
    text = Page(build(tmp_path).read_text()).text
    assert "No method of forgetting has finished yet." in text
    assert "There are no accuracies yet." in text


PAYLOADS = (
    "<script>document.title='executed'</script>",
    "<img src=x onerror=executed()>",
    "\"><svg onload='executed()'>",
    "</style></title></script><script>executed()</script>",
    "' onmouseover='executed()",
    "<!-- --><iframe srcdoc='<script>executed()</script>'>",
    "\x00\x1b[2J\u202e$x^{2 $\u6f22",
    "[x](javascript:executed()) | `a` | <b>",
    "]]><script>executed()</script>",
)


def poisoned(value, payload):
    """The same JSON with the payload in every string and key, numbers untouched."""
    if isinstance(value, dict):
        changed = {key: poisoned(item, payload) for key, item in value.items()}
        return changed | {payload: payload}
    if isinstance(value, list):
        return [poisoned(item, payload) for item in value]
    return value + payload if isinstance(value, str) else value


def test_a_page_shows_what_files_say_and_obeys_none_of_it(tmp_path, html):
    honest = {tag for tag, _ in Page(html).elements}
    names = ("config.json", "results.json", "audit.json", "metrics.jsonl")
    for number, payload in enumerate(["".join(PAYLOADS), *PAYLOADS]):
        run = write_run(tmp_path / f"run{number}")
        for name in names:
            text = (run / name).read_text("utf-8")
            lines = text.splitlines() if name.endswith("l") else [text]
            lines = [json.dumps(poisoned(json.loads(line), payload)) for line in lines]
            (run / name).write_text("\n".join(lines) + "\n", "utf-8")
        made = without_figures(run) if number else build(run).read_text("utf-8")
        page = Page(made)
        assert {tag for tag, _ in page.elements} <= honest
        for _, attributes in page.elements:
            assert not any(name.startswith("on") for name in attributes)
            link = attributes.get("href", attributes.get("xlink:href", "#"))
            assert link.startswith(("#", "data:image/png")) or link.endswith(".pdf")


@pytest.mark.parametrize("number", [2, 30])
def test_any_number_of_classes_is_drawn(tmp_path, number):
    names = [f"kind {n}" for n in range(number)]
    record = make_record(class_names=names, classes=(0, 1))
    html = build(write_run(tmp_path / "run", record)).read_text()
    assert html.count("<svg ") == len(FIGURES)


def test_requests_for_images_have_no_cut_section(tmp_path):
    record = make_record(methods=("retrain", "fine_tune_only"))
    request = replace(record.request, kind="clients", targets=[3], u_set="its images")
    record = replace(record, request=request, classes=[], cuts={})
    text = Page(build(write_run(tmp_path / "run", record)).read_text()).text
    assert "Forgetting client 3" in text and "What was cut?" not in text


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a run"):
        build(tmp_path)


def test_every_published_run_has_a_report_of_its_own(repository):
    for path in sorted((repository / "results").glob("*/results.json")):
        run = results.read_run(path.parent, reading.read)
        about = subject.subject_of(run)
        made = {table.name: table for table in page_module._tables(about)}
        assert page_module._heading(about)
        assert ("methods" in made) == bool(about.methods), path


def test_the_command_line_rebuilds_and_refuses_in_one_line(run, tmp_path, capsys):
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report" / "report.html")
    assert main([str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_terminal_gets_the_methods_and_six_lines(run):
    table, said = closing(run, "runs/mine/report/report.html")
    assert "class pruning" in table
    assert max(map(len, table.splitlines())) <= 115
    assert [line.split()[0] for line in said.splitlines()] == [
        *("Gone?", "At", "The", "And", "Written:", "What"),
    ]


# In a notebook.


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (make_record(), "it was not audited"),
        (make_audit(), "Differences from retraining"),
        (make_run(audit=make_audit()), "No difference was found"),
        (PrunePlan({"conv1": np.array([0, 2])}), "conv1 2 0, 2"),
    ],
)
def test_objects_show_themselves(value, said):
    html = show(value)._repr_html_()
    assert said in Page(html).text
    # Rules of the page must not reach the rest of a notebook.
    assert "@scope" in html and ":root" not in html


def test_other_objects_are_refused():
    with pytest.raises(InputError, match="a int cannot be shown"):
        show(3)
