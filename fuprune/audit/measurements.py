"""What is judged: every model's answers on the same images.

Numbers are computed alike for the candidates, the raw model and every retrained seed.
Distances to retraining are taken to every retrained model and averaged; a retrained
model's own distance leaves itself out.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fuprune.audit.options import Model
from fuprune.audit.outputs import Outputs, compute_outputs
from fuprune.audit.spread import Draft
from fuprune.data.dataset import Dataset

RAW = "raw"
RANDOM = "random_init"


class AuditData(NamedTuple):
    """The data that the audited models were trained and tested on."""

    train: Dataset
    test: Dataset
    preprocess: Callable[[np.ndarray], Any]  # images [B, H, W, C] -> what models take


class Findings(NamedTuple):
    """What one kind of evidence yields."""

    tests: list[Draft]
    detail: dict[str, Any] = {}  # some keys of `evidence.Detail`


class ModelOutputs(NamedTuple):
    """What one model answered."""

    forgotten: Outputs  # on training images of the forgotten classes, with activations
    test: Outputs  # on test images of all classes, with activations


def answers_of(
    model: Model,
    forgotten: Dataset,
    test: Dataset,
    preprocess: Callable[[np.ndarray], Any],
    batch_size: int,
) -> ModelOutputs:
    """What one model says about the images of both sets."""
    answers = (
        compute_outputs(
            *model, data.images, preprocess, batch_size=batch_size, activations=True
        )
        for data in (forgotten, test)
    )
    return ModelOutputs(*answers)


class Shadows(NamedTuple):
    """S shadow models, each trained on its own half of a pool of N images."""

    models: list[Model]  # [S]
    pool: Dataset  # forgotten training, then test, then retained training images
    members: np.ndarray  # [S, N] bool: who was trained on what
    logits: np.ndarray  # [S, N, U]
    targets: np.ndarray  # [F + T'] rows: forgotten training, then forgotten test images


class Measurements(NamedTuple):
    """All models with their outputs on the same images, and the images."""

    judged: dict[str, ModelOutputs]  # the candidates, in order, and "raw"
    retrained: list[ModelOutputs]
    random_init: ModelOutputs
    models: dict[str, Model]  # the same names as `judged`
    retrained_models: list[Model]
    train: Dataset  # all training images
    forgotten: Dataset  # [F] training images of the forgotten classes, looked at
    test: Dataset  # [T] test images, looked at
    preprocess: Callable[[np.ndarray], Any]
    classes: tuple[int, ...]
    num_classes: int
    layers: tuple[str, ...]  # of the raw model, in forward order
    shadows: Shadows | None = None

    @property
    def forgotten_test(self) -> np.ndarray:
        """`[T]` bool: the test images of forgotten classes."""
        return np.isin(self.test.labels, self.classes)


Notify = Callable[[str], None]


def each(measurements: Measurements, number: Callable[[ModelOutputs], Any]):
    """`number` of every judged and of every retrained model."""
    return (
        {name: number(model) for name, model in measurements.judged.items()},
        [number(model) for model in measurements.retrained],
    )


def to_retraining(
    measurements: Measurements, number: Callable[[ModelOutputs, ModelOutputs], Any]
):
    """The mean of `number` over the retrained models, each of them leaving itself out.

    So both sides are means of distances between a model and independent retrainings.
    `number` may give an array; means are taken entry by entry.
    """

    def mean(model: ModelOutputs):
        others = [m for m in measurements.retrained if m is not model]
        return np.mean([number(model, other) for other in others], axis=0)

    judged = {name: mean(model) for name, model in measurements.judged.items()}
    if len(measurements.retrained) < 2:
        return judged, []
    return judged, [mean(model) for model in measurements.retrained]


def everyone(measurements: Measurements) -> Iterator[tuple[str, ModelOutputs]]:
    """Every model with its name: the judged, then retrained_0, retrained_1, ..."""
    yield from measurements.judged.items()
    for i, model in enumerate(measurements.retrained):
        yield f"retrained_{i}", model


def every_model(measurements: Measurements) -> Iterator[tuple[str, Model]]:
    """The modules and variables behind `everyone`."""
    yield from measurements.models.items()
    for i, model in enumerate(measurements.retrained_models):
        yield f"retrained_{i}", model


def by_role(measurements: Measurements, numbers: dict[str, Any]):
    """Splits numbers, named as in `everyone`, into judged and retrained models'."""
    retrained = [f"retrained_{i}" for i in range(len(measurements.retrained))]
    return (
        {name: numbers[name] for name in measurements.judged},
        [numbers[name] for name in retrained],
    )


def plain(values: np.ndarray) -> list[float | None]:
    """An array `[N]` for JSON: NaN, a number that does not exist, becomes null."""
    return [None if np.isnan(value) else float(value) for value in values]
