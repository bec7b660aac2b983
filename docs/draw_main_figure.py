"""Draws the README's main figure from results/cifar10_resnet20_class9.

Two figures of that run's report side by side: accuracy on the other classes round by
round, and how fast each model relearns the class. Needs Chromium:

    python docs/draw_main_figure.py [chromium]
"""

import pathlib
import subprocess
import sys
import tempfile

import fuprune.report.run_files
from fuprune.report import audit_figures, page, run_figures

HERE = pathlib.Path(__file__).resolve().parent
RUN = HERE.parent / "results" / "cifar10_resnet20_class9"
PICTURE = HERE / "main_figure.png"
STYLE = pathlib.Path(page.__file__).with_name("page.css")


def html() -> str:
    """The page that is photographed."""
    run = fuprune.report.run_files.read_run(RUN)
    styles = run_figures.run_styles(run)
    figures = page.grid(
        [
            run_figures.recovery_figure(run, styles),
            audit_figures.relearn_figure(run, styles),
        ]
    )
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<style>{STYLE.read_text()} body {{ padding: 8px 20px; }}</style>"
        f"<body>{figures}</body></html>"
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
                "--window-size=1000,560",
                f"--screenshot={PICTURE}",
                path.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
