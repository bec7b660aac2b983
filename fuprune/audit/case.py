"""What is judged: every model's answers on the same images.

Figures are computed alike for the candidates, the raw model and every retrained seed.
Distances to retraining are taken to every retrained model and averaged; a retrained
model's own distance leaves itself out.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fuprune.audit.evidence import Evidence
from fuprune.audit.outputs import Outputs

RAW = "raw"
RANDOM = "random_init"

Figures = tuple[list[Evidence], dict[str, Any]]


class Measured(NamedTuple):
    """What one model answered."""

    forgotten: Outputs  # on training images of the forgotten classes, with activations
    retained: Outputs  # on training images of the other classes
    test: Outputs  # on test images of all classes


class Case(NamedTuple):
    """Everything that is judged: outputs of all models on the same images."""

    shown: dict[str, Measured]  # the candidates, in order, and "raw"
    retrained: list[Measured]
    random_init: Measured
    forgotten_labels: np.ndarray  # [F] of the forgotten training images
    retained_labels: np.ndarray  # [R]
    test_labels: np.ndarray  # [T]
    classes: tuple[int, ...]
    num_classes: int
    confidence: float

    @property
    def forgotten_test(self) -> np.ndarray:
        """`[T]` bool: the test images of forgotten classes."""
        return np.isin(self.test_labels, self.classes)


def each(case: Case, figure: Callable[[Measured], float]):
    """`figure` of every shown and every retrained model."""
    return (
        {name: figure(model) for name, model in case.shown.items()},
        [figure(model) for model in case.retrained],
    )


def to_retraining(case: Case, figure: Callable[[Measured, Measured], float]):
    """The mean of `figure` over the retrained models, each of them leaving itself out.

    So both sides are means of distances between a model and independent retrainings.
    """

    def mean(model: Measured) -> float:
        return float(
            np.mean([figure(model, m) for m in case.retrained if m is not model])
        )

    shown = {name: mean(model) for name, model in case.shown.items()}
    if len(case.retrained) < 2:
        return shown, []
    return shown, [mean(model) for model in case.retrained]


def everyone(case: Case) -> Iterator[tuple[str, Measured]]:
    """Every model with its name: the shown ones, then retrained_0, retrained_1, ..."""
    yield from case.shown.items()
    for i, model in enumerate(case.retrained):
        yield f"retrained_{i}", model


def plain(values: np.ndarray) -> list[float | None]:
    """An array `[N]` for JSON: NaN, a figure that does not exist, becomes null."""
    return [None if np.isnan(value) else float(value) for value in values]
