"""What an audit can be asked for, grouped by kind of evidence.

The defaults are small grids, for a minute on two cores; `docs/audit.md` says what more
seeds, images and steps buy.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from fuprune.audit.outputs import Variables
from fuprune.audit.verdict import MARGIN
from fuprune.data.dataset import Dataset

# A network, anything that `models.adapt` takes, and its variables.
Model = tuple[Any, Variables]
# (module, variables, key, the images the shadow model was trained on) -> the model
# after the method under test has removed the forgotten classes from it.
UnlearnShadow = Callable[[Any, Variables, jax.Array, Dataset], Model]


class ShadowOptions(NamedTuple):
    """Shadow models, for three kinds: shadow, likelihood_ratio, unlearned_shadow."""

    models: int = 4  # an even number; 0 for none
    steps: int = 150  # of SGD, for each
    learning_rate: float = 0.05  # at the start; falls to zero along a cosine
    backend: str = "auto"  # see `shadow.train_models_in_parallel`
    # Candidate -> its own method, for shadow models that are unlearned. Candidates not
    # named here share shadow models that were fine-tuned without the classes.
    unlearn: Mapping[str, UnlearnShadow] = {}
    fine_tune_steps: int = 20  # of that stand-in
    fine_tune_learning_rate: float = 0.01


class RelearnOptions(NamedTuple):
    """Relearning: choices of images, of their number and of learning rates.

    The fewest images are taught at every rate, the others at the middle one.
    """

    images: tuple[str, ...] = ("all", "forgotten", "retained")
    images_per_class: tuple[int, ...] = (10, 100)  # training images, 1 or more
    learning_rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    steps: int = 10  # of SGD in each run
    every: int = 4  # steps between two looks; the first steps are looked at one by one
    fixed_steps: tuple[int, ...] = (4, 10)  # where accuracy is also compared
    level: float = 0.9  # the share of the raw model's accuracy that counts as back


class ProbeOptions(NamedTuple):
    """Probes: fresh classifiers on frozen features of test images."""

    classifiers: tuple[str, ...] = ("linear", "neighbours", "network")
    depths: int = 4  # layers looked at besides the last features, evenly spread
    max_images: int = 800  # test images that classifiers are fitted and scored on
    folds: int = 2  # every image is scored by classifiers fitted on the other folds
    neighbours: int = 5
    shots: int = 2  # images of each forgotten class in a few-shot probe
    companions: int = 10  # images of each other class in it
    draws: int = 10  # few-shot probes to average over


class WeightOptions(NamedTuple):
    """Weight space: points on the line between two models, and images to pay for."""

    points: int = 3  # between the two ends
    max_images: int = 256  # retained test images on which the loss is taken


class AuditOptions(NamedTuple):
    """Everything an audit can be asked for."""

    kinds: tuple[str, ...] | None = None  # of `KINDS`; None for all
    # One minus the probability that a retrained model fails the headline.
    confidence: float = 0.95
    margin: float = MARGIN  # see `verdict.settle`
    # Training, and test, images that are looked at; up to a quarter of them are of the
    # forgotten classes, the rest even over the others.
    max_examples: int = 4000
    batch_size: int = 256  # images per forward pass
    train_batch_size: int = 32  # of shadow training and relearning
    shadow: ShadowOptions = ShadowOptions()
    relearn: RelearnOptions = RelearnOptions()
    probe: ProbeOptions = ProbeOptions()
    weights: WeightOptions = WeightOptions()
