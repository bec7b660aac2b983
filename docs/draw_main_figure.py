"""Draws the README's picture and fills its table, from the run of `make cifar10`.

Left, the price: accuracy on the other classes by images trained on. Right, the effect:
accuracy of each class before and after.

    python docs/draw_main_figure.py
"""

import os
import pathlib
import re

from fuprune import results
from fuprune.report import figures, formats, subject
from fuprune.report.formats import percent

HOME = pathlib.Path(__file__).resolve().parents[1]
RUN = "results/cifar10_resnet20_class9_prune"
README, PICTURE = HOME / "README.md", HOME / "docs" / "main_figure.png"

NAMES = {
    "class pruning": "the cut, then fine-tuning",
    "fine tune only": "fine-tuning alone",
    "retrain": "retraining, five seeds",
}


def main():
    """Write docs/main_figure.png and the table of README.md."""
    os.chdir(HOME)  # the run names its retrained models from here
    about = subject.read_subject(RUN)
    figure = figures.main_figure(about, only=("retrain", "fine_tune_only"))
    legend = figure.axes[0].get_legend()
    for line in legend.get_texts() if legend else ():
        line.set_text(NAMES.get(line.get_text(), line.get_text()))
    figure.savefig(PICTURE, dpi=110, facecolor="white", metadata={"Software": None})
    README.write_text(filled(README.read_text(), about))


def filled(text: str, about: subject.Subject) -> str:
    """The README with its table of today's numbers."""
    made = "\n".join(table(about))
    pattern = r"(<!-- table -->\n).*?(\n<!-- end of table -->)"
    return re.sub(pattern, lambda found: found[1] + made + found[2], text, flags=re.S)


def table(about: subject.Subject) -> list[str]:
    """Markdown: before, the cut, the cut and fine-tuning, fine-tuning, retraining."""
    tested, raw = about.tested, about.raw or results.StageRow()
    cut = results.pruned_stages(about.record, about.rows(tested)[0].name)[-1]
    lines = [
        "| CIFAR-10, ResNet20 | trucks | the others | images trained on |"
        " measures that differ |",
        "|---|---:|---:|---:|---:|",
        _row("before", raw.u_accuracy, raw.r_accuracy, "-", "raw", about),
        _row("**the cut alone**", cut.u_accuracy, cut.r_accuracy, "0", "", about),
    ]
    for name, method in (
        ("**the cut, fine-tuned**", tested),
        ("fine-tuned without a cut", "fine_tune_only"),
        ("retrained without trucks", results.RETRAIN),
    ):
        u, r = (about.mean(method, f"{letter}_accuracy") for letter in "ur")
        images = formats.number(about.mean(method, "images") or 0)
        lines.append(_row(name, u, r, images, method, about))
    return lines


def _row(name, u, r, images: str, model: str, about: subject.Subject) -> str:
    audit, differing = about.audit, "-"
    if audit and audit.verdict(model):
        differing = f"{len(audit.differences(model))} of {len(audit.headline())}"
    return f"| {name} | {percent(u)} | {percent(r)} | {images} | {differing} |"


if __name__ == "__main__":
    main()
