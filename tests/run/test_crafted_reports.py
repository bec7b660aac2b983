"""A report shows what a file says, and obeys none of it."""

import io
import json
import zipfile

import pytest

from fuprune import report
from tests.report import fixture
from tests.report.reading import Page
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


def poisoned(value, payload):
    """The same JSON with the payload in every string and key, numbers untouched."""
    if isinstance(value, dict):
        changed = {key: poisoned(item, payload) for key, item in value.items()}
        return changed | {payload: payload}
    if isinstance(value, list):
        return [poisoned(item, payload) for item in value]
    return value + payload if isinstance(value, str) else value


def build(run):
    with nothing_happens_outside(run):
        report.build(run)
    return Page((run / "report" / "report.html").read_text("utf-8"))


def test_a_report_shows_what_a_file_says_and_obeys_none_of_it(home, trace):
    honest = {tag for tag, _ in build(fixture.write_run(home / "plain")).elements}
    assert not honest & {"script", "iframe"}
    for number, payload in enumerate(SCRIPTS):
        run = fixture.write_run(home / f"run{number}")
        for name in ("config.json", "results.json", "audit.json", "metrics.jsonl"):
            text = (run / name).read_text("utf-8")
            lines = text.splitlines() if name.endswith("l") else [text]
            lines = [json.dumps(poisoned(json.loads(line), payload)) for line in lines]
            (run / name).write_text("\n".join(lines) + "\n", "utf-8")
        page = build(run)
        assert {tag for tag, _ in page.elements} <= honest
        for _, attributes in page.elements:
            assert not any(name.startswith("on") for name in attributes)
            assert not {"srcdoc", "formaction"} & attributes.keys()
            for name in ("href", "src", "action", "xlink:href", "data"):
                link = attributes.get(name, "#")
                assert link.startswith(("#", "data:image/png;base64,")), link
        for path in (run / "report").glob("*.csv"):
            for line in path.read_text("utf-8").splitlines():
                assert not line.startswith(("=", "@", "\t"))
                assert ",=" not in line


def archive_of(data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for member in ("images", "activations", "maps", "../../elsewhere/executed"):
            file.writestr(f"{member}.npy", data)
    return buffer.getvalue()


def test_a_report_survives_files_of_any_content(home, trace):
    names = ["config.json", "results.json", "audit.json", "metrics.jsonl"]
    run = fixture.write_run(home / "run")
    maps = "feature_maps.npz"
    good = {name: (run / name).read_bytes() for name in (*names, maps)}
    attacks = [(names, text.encode()) for text in CRAFTED_JSON.values()]
    attacks += [([name], CRAFTED_JSON["wrong types"].encode()) for name in names]
    for _, data in crafted_arrays(trace):
        attacks += [([maps], archive_of(data)), ([maps], data)]
    for attacked, content in attacks:
        for name, honest in good.items():
            (run / name).write_bytes(content if name in attacked else honest)
        assert build(run).text


@pytest.mark.parametrize("linked", ["report", "report/report.html"])
def test_a_link_in_place_of_a_report_is_not_followed(home, tmp_path, linked):
    run = fixture.write_run(home / "run")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    if linked == "report":
        (run / linked).symlink_to(outside, target_is_directory=True)
        with nothing_happens_outside(run), pytest.raises(ValueError, match="a link to"):
            report.build(run)
    else:
        (run / "report").mkdir()
        (run / linked).symlink_to(outside / "precious")
        build(run)
        assert not (run / linked).is_symlink()
    assert (outside / "precious").read_text() == "keep"
    assert [path.name for path in outside.iterdir()] == ["precious"]
