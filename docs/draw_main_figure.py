"""Draws the README's main figure from the published runs that forget class 9.

Left, the price: accuracy on the other classes by images trained on. Right, the effect:
accuracy of each class before and after.

    python docs/draw_main_figure.py
"""

import pathlib

from fuprune.report import figures, subject
from fuprune.results import read_run

HERE = pathlib.Path(__file__).resolve().parent
RUN = HERE.parent / "results" / "cifar10_resnet20_class9"
PICTURE = HERE / "main_figure.png"


def main():
    """Write docs/main_figure.png."""
    about = subject.subject_of(read_run(RUN))
    figure = figures.main_figure(about, only=("retrain", "fine_tune_only"))
    figure.savefig(PICTURE, dpi=160, facecolor="white", metadata={"Software": None})


if __name__ == "__main__":
    main()
