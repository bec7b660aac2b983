"""The page in a real browser: nothing sticks out or is clipped, all can be read."""

import json
import shutil
import subprocess

import pytest

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
const channels = (text) => {{
  const found = text.match(/[\\d.]+/g).map(Number);
  return found.length > 3 ? found : [...found, 1];
}};
const over = (top, below) =>
  [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]);
const backdrop = (part, view) => {{
  const layers = [];
  for (let one = part; one; one = one.parentElement)
    layers.unshift(channels(view.getComputedStyle(one).backgroundColor));
  return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
}};
const light = (colour) => {{
  const [r, g, b] = colour.map((x) => x / 255).map((x) =>
    x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
}};
const named = (part) => part.outerHTML.slice(0, 80);
addEventListener("load", () => {{
  const frame = document.getElementById("page");
  const page = frame.contentDocument, view = frame.contentWindow;
  const parts = [...page.querySelectorAll("body *")];
  const wide = parts.filter((part) =>
    part.getBoundingClientRect().right > {width} + 1 &&
    !part.closest(".scroll") && !part.closest("svg"));
  const drawings = [...page.querySelectorAll("svg")];
  const clipped = drawings.filter((one) => {{
    const inside = one.getBBox(), room = one.viewBox.baseVal;
    return room.width && (inside.x < room.x - 1 || inside.y < room.y - 1 ||
      inside.x + inside.width > room.x + room.width + 1 ||
      inside.y + inside.height > room.y + room.height + 1);
  }});
  const faint = parts.filter((part) => {{
    if (part.closest("svg, style") || !part.textContent.trim()) return false;
    const back = backdrop(part, view);
    const ink = over(channels(view.getComputedStyle(part).color), back);
    const [low, high] = [light(ink), light(back)].sort((a, b) => a - b);
    return high / low < 4.5;
  }});
  document.getElementById("found").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth,
    height: page.documentElement.scrollHeight,
    first: drawings[0].getBoundingClientRect().top,
    narrowest: Math.min(...drawings.map((one) => one.getBoundingClientRect().width)
      .filter((width) => width)),
    wide: wide.slice(0, 5).map(named),
    clipped: clipped.slice(0, 5).map(named),
    faint: faint.slice(0, 5).map(named),
  }});
}});
</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")


def chromium(tmp_path, *arguments) -> str:
    profile = tmp_path / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module", params=["one run", "several"])
def address(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    records = [make_record(seed=n, rate=0.1 + 0.4 * n) for n in (0, 1)]
    runs = [write_run(home / f"run{n}", record) for n, record in enumerate(records)]
    made = build(runs[0]) if request.param == "one run" else join(runs, home / "out")
    return made.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(390, 1), (1200, 0)])
def test_the_page_fits_and_can_be_read(address, tmp_path, width, scheme):
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(address=address, width=width))
    dom = chromium(
        tmp_path,
        f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=1400,1000",
        "--dump-dom",
        frame.as_uri(),
    )
    text = dom.split('<pre id="found">')[1].split("</pre>")[0]
    found = json.loads(text.replace("&lt;", "<").replace("&gt;", ">"))
    assert found["width"] == width
    assert (found["wide"], found["clipped"], found["faint"]) == ([], [], [])
    assert found["narrowest"] > 250
    if width == 1200:
        assert found["height"] <= 6000
        assert found["first"] <= 700 or "/out/" in address
