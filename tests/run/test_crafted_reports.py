"""A report shows what a file says, and obeys none of it."""

import html.parser
import io
import json
import zipfile

import pytest

from fuprune import report
from tests.report import fixture
from tests.run.crafted import CRAFTED_JSON, crafted_arrays
from tests.run.watch import nothing_happens_outside

SCRIPTS = (
    "<script>document.title='executed'</script>",
    "<img src=x onerror=executed()>",
    "\"><svg onload='executed()'>",
    "</style></title></script><script>executed()</script>",
    "javascript:executed()",
    "' onmouseover='executed()",
    "<!-- --><iframe srcdoc='<script>executed()</script>'>",
    "\x00\x1b[2J\u202e\ud800executed",
    '=HYPERLINK("http://example.com/executed")',
    "[x](javascript:executed()) | `a` | <b>",
    "../../../elsewhere/executed",
    "]]><script>executed()</script>",
    "&lt;script&gt;executed()",
)


class Reader(html.parser.HTMLParser):
    """What a browser would act on."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.scripts, self.elements, self.handlers, self.links = [], set(), [], []
        self.inside = None

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.elements.add(tag)
        for name, value in attrs:
            if name.startswith("on") or name in ("srcdoc", "formaction"):
                self.handlers.append((tag, name, value))
            if name in ("href", "src", "action", "xlink:href", "data"):
                self.links.append(value or "")

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag):
        self.inside = None


def read_page(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def poisoned(value, payload):
    """The same JSON with the payload in every string and key, numbers untouched."""
    if isinstance(value, dict):
        return {key: poisoned(item, payload) for key, item in value.items()} | {
            payload: payload
        }
    if isinstance(value, list):
        return [poisoned(item, payload) for item in value]
    if isinstance(value, str):
        return value + payload
    return value


def test_a_report_shows_what_a_file_says_and_obeys_none_of_it(home, trace):
    plain = fixture.write_run(home / "plain")
    report.build(plain)
    honest = read_page((plain / "report" / "report.html").read_text("utf-8"))
    for number, payload in enumerate(SCRIPTS):
        run = fixture.write_run(home / f"run{number}")
        for name in ("config.json", "results.json", "audit.json"):
            value = json.loads((run / name).read_text("utf-8"))
            text = json.dumps(poisoned(value, payload))
            (run / name).write_text(text, "utf-8")
        rows = (run / "metrics.jsonl").read_text("utf-8").splitlines()
        rows = [json.dumps(poisoned(json.loads(row), payload)) for row in rows]
        (run / "metrics.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
        with nothing_happens_outside(run):
            report.build(run)
        page = read_page((run / "report" / "report.html").read_text("utf-8"))
        assert page.scripts == honest.scripts
        assert page.handlers == honest.handlers == []
        assert page.elements <= honest.elements
        assert "iframe" not in page.elements
        for link in page.links:
            assert link.startswith(("#", "data:image/png;base64,")), link
        for path in (run / "report").glob("*.csv"):
            for line in path.read_text("utf-8").splitlines():
                assert not line.startswith(("=", "@", "\t"))
                assert ",=" not in line


def test_a_report_survives_files_of_any_content(home, trace):
    names = ["config.json", "results.json", "audit.json", "metrics.jsonl"]
    whole = fixture.write_run(home / "run")
    good = {name: (whole / name).read_text("utf-8") for name in names}
    attacks = [(names, text) for text in CRAFTED_JSON.values()]
    attacks += [([name], CRAFTED_JSON["wrong types"]) for name in names]
    for attacked, text in attacks:
        for name in names:
            (whole / name).write_text(text if name in attacked else good[name])
        with nothing_happens_outside(whole):
            report.build(whole)
        assert (whole / "report" / "report.html").is_file()


def test_pickled_feature_maps_are_not_unpickled(home, trace):
    run = fixture.write_run(home / "run")
    for name, data in crafted_arrays(trace):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            for member in ("images", "activations", "maps", "../../elsewhere/executed"):
                file.writestr(f"{member}.npy", data)
        for content in (archive.getvalue(), data):
            (run / "feature_maps.npz").write_bytes(content)
            with nothing_happens_outside(run):
                report.build(run)
            assert (run / "report" / "report.html").is_file(), name


def test_a_report_folder_that_leads_elsewhere_is_refused(home, trace):
    run = fixture.write_run(home / "run")
    (run / "report").symlink_to(trace.parent, target_is_directory=True)
    with nothing_happens_outside(run), pytest.raises(ValueError, match="link"):
        report.build(run)


def test_a_link_in_the_report_folder_is_replaced_and_not_followed(home, tmp_path):
    run = fixture.write_run(home / "run")
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (run / "report").mkdir()
    (run / "report" / "report.html").symlink_to(victim)
    with nothing_happens_outside(run):
        report.build(run)
    assert victim.read_text() == "keep"
    assert not (run / "report" / "report.html").is_symlink()
