"""The page in a real browser: nothing sticks out, and it prints."""

import shutil
import subprocess

import pytest
from PIL import Image

from fuprune.report import build, join
from tests.report.fixture import make_record, write_run

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--hide-scrollbars",
    "--virtual-time-budget=2000",
)
# A frame stands in for a screen: headless windows have a least width.
FRAME = """<!DOCTYPE html><body style="margin:0">
<iframe id="page" src="{address}"
  style="border:0;width:{width}px;height:900px"></iframe>
<pre id="found"></pre><script>
addEventListener("load", () => {{
  const page = document.getElementById("page").contentDocument;
  const wide = [...page.querySelectorAll("body *")].filter((part) =>
    part.getBoundingClientRect().right > {width} + 1 &&
    !part.closest(".scroll, .sideways, pre"));
  document.getElementById("found").textContent =
    "width=" + page.documentElement.scrollWidth +
    " wide=" + wide.slice(0, 5).map((part) => part.outerHTML.slice(0, 80)).join(";");
}});
</script>"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium"),
]


def chromium(tmp_path, *arguments) -> str:
    profile = tmp_path / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module", params=["one run", "joined"])
def address(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    runs = [write_run(home / f"seed{n}", make_record(seed=n)) for n in (0, 1)]
    made = build(runs[0]) if request.param == "one run" else join(runs, home / "out")
    return made.as_uri()


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_screen(address, tmp_path, width):
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(address=address, width=width))
    dom = chromium(tmp_path, "--window-size=1400,1000", "--dump-dom", frame.as_uri())
    found = dom.split('<pre id="found">')[1].split("</pre>")[0]
    assert found == f"width={width} wide="


@pytest.mark.parametrize(("scheme", "dark"), [(0, True), (1, False)])
def test_page_follows_the_colour_scheme(address, tmp_path, scheme, dark):
    picture = tmp_path / "page.png"
    chromium(
        tmp_path,
        f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=1280,900",
        f"--screenshot={picture}",
        address,
    )
    corner = Image.open(picture).convert("L").getpixel((3, 3))
    assert (corner < 60) == dark


def test_page_prints_on_white_also_in_the_dark(address, tmp_path):
    printed = tmp_path / "page.pdf"
    chromium(
        tmp_path,
        "--blink-settings=preferredColorScheme=0",
        f"--print-to-pdf={printed}",
        address,
    )
    assert printed.read_bytes().startswith(b"%PDF")
    assert printed.stat().st_size > 50_000
