"""Draws the README's main figure from results/cifar10_resnet20_class9.

Accuracy on the other classes round by round, as that run's report draws it. Needs
Chromium:

    python docs/draw_main_figure.py [chromium]
"""

import pathlib
import subprocess
import sys
import tempfile

from fuprune.report import figures, page, roles
from fuprune.run import reading

HERE = pathlib.Path(__file__).resolve().parent
RUN = HERE.parent / "results" / "cifar10_resnet20_class9"
PICTURE = HERE / "main_figure.png"
STYLE = pathlib.Path(page.__file__).with_name("page.css")


def html() -> str:
    """The page that is photographed."""
    run = reading.read_run(RUN)
    topic = roles.topic_of(run.record, run.audit)
    drawn = page.grid([figures.recovery_figure(topic, run.curves)])
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<style>{STYLE.read_text()} body {{ padding: 8px 20px; }}</style>"
        f"<body>{drawn}</body></html>"
    )


def main(chromium: str = "chromium"):
    """Write docs/main_figure.png."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "figure.html"
        path.write_text(html())
        subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                "--force-device-scale-factor=2",
                "--window-size=640,600",
                f"--screenshot={PICTURE}",
                path.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
