"""What is measured: all models, what they answered, and how rows are made of it."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from fuprune.audit.judge import Measure
from fuprune.audit.options import AuditOptions
from fuprune.audit.outputs import Preprocess
from fuprune.audit.record import HIDDEN, RAW, method_of
from fuprune.data.dataset import Dataset

RETRAINED = "retrained"
Found = TypeVar("Found")


class Answers(NamedTuple):
    """What one model answered."""

    test: np.ndarray  # [T, U] logits on the whole test set
    forgotten: np.ndarray  # [F, U] on forgotten training images
    retained: np.ndarray  # [K, U] on other training images; none for clients, examples
    depths: dict[str, np.ndarray]  # depth -> [P, D] on the images that are probed


class Subject(NamedTuple):
    """All models with their answers on the same images, and the images."""

    # The candidates in order, "mask_logit", "raw", "retrained_0", "retrained_1", ...
    answers: dict[str, Answers]
    # The same names but for "mask_logit", which is the raw model with other answers.
    models: dict[str, tuple[Any, dict[str, Any]]]
    classes: tuple[int, ...]  # the forgotten ones; none if the request names images
    test: Dataset
    forgotten: Dataset
    retained: Dataset
    probed: np.ndarray  # [P] rows of the test set
    unseen: np.ndarray  # rows of test images like the forgotten ones
    preprocess: Preprocess
    options: AuditOptions
    notify: Callable[[str], None]

    @property
    def is_forgotten(self) -> np.ndarray:
        """`[T]` bool: the test images of forgotten classes."""
        return np.isin(self.test.labels, self.classes)

    def each(self, number: Callable[[Answers], Any]) -> dict[str, Any]:
        """`number` of every model's answers, by name."""
        return {name: number(one) for name, one in self.answers.items()}


def with_hidden(subject: Subject, found: dict[str, Found]) -> dict[str, Found]:
    """What was found of every model, the hidden one's being the raw model's."""
    hidden = HIDDEN in subject.answers and HIDDEN not in found
    return {**found, **({HIDDEN: found[RAW]} if hidden else {})}


def is_retrained(name: str) -> bool:
    """Whether a model is one of the retrained ones, by its name."""
    return name.startswith(f"{RETRAINED}_")


def retrained(found: Mapping[str, Found]) -> list[Found]:
    """What there is of the retrained models."""
    return [one for name, one in found.items() if is_retrained(name)]


def by_method(found: Mapping[str, Found]) -> dict[str, list[Found]]:
    """What there is of each judged method's seeds; the references come last."""
    methods: dict[str, list[Found]] = {}
    names = [name for name in found if not is_retrained(name)]
    # A stable sort: candidates keep their order.
    for name in sorted(names, key=lambda name: (name == HIDDEN) + 2 * (name == RAW)):
        methods.setdefault(method_of(name), []).append(found[name])
    return methods


def of_numbers(
    name: str, kind: str, values: Mapping[str, Any], question: str, **fields: Any
) -> Measure:
    """The measure with one number, or None, per model."""
    plain = {
        model: None if value is None or not np.isfinite(value) else float(value)
        for model, value in values.items()
    }
    return Measure(name, kind, question, retrained(plain), by_method(plain), **fields)


def of_images(
    name: str,
    kind: str,
    values: Mapping[str, np.ndarray],
    question: str,
    *,
    added: float = 2.0,
    **fields: Any,
) -> Measure:
    """The measure that is a mean over images, with its error over them.

    Every model has `[N]` numbers; `added` is that of `paired_error`.
    """
    means = {m: np.mean(one) if len(one) else None for m, one in values.items()}
    error = paired_error(retrained(values), added)
    return of_numbers(name, kind, means, question, error=error, **fields)


def to_retraining(
    found: Mapping[str, Found], number: Callable[[Found, Found], Any]
) -> dict[str, Any]:
    """For every model, the mean of `number` over the retrained ones but itself.

    `number` may give an array; means are taken entry by entry. A model has none if
    there is no other retrained one, and None if `number` gives it for one of them.
    """
    means = {}
    for name, own in found.items():
        others = [o for n, o in found.items() if is_retrained(n) and n != name]
        numbers = [number(own, other) for other in others]
        if any(one is None for one in numbers):
            means[name] = None
        elif numbers:
            means[name] = np.mean(numbers, axis=0)
    return means


def paired_error(per_image: list[np.ndarray], added: float = 2.0) -> float:
    """The error over images of one model's mean against the retrained ones'.

    All models answer for the same images, so that what makes an image hard for all of
    them cancels. Models that agree on all N images would have no error, yet the next
    image might set them apart; so two images are added on which they differ by one,
    once each way.

    Args:
      per_image: each retrained model's `[N]` numbers.
      added: the images added; 0 for numbers that hardly ever agree.

    Returns:
      The standard error; 0 with fewer than two models or without images.
    """
    n = len(per_image)
    if n < 2 or not len(per_image[0]):
        return 0.0
    values = np.asarray(per_image, np.float64)
    # x_i minus the mean of the others is n / (n - 1) times x_i minus the mean of all.
    differences = (values - values.mean(axis=0)) * n / (n - 1)
    centred = differences - differences.mean(axis=1, keepdims=True)
    squares = np.sum(centred**2, axis=1).mean() + added
    # Models' own parts v / N: one against n - 1 others has n / (n - 1) of it, one
    # against all n has (n + 1) / n.
    ratio = (1 + 1 / n) / (1 + 1 / (n - 1))
    return math.sqrt(ratio * squares) / values.shape[1]


def generator_of(key: jax.Array, kind: int = 0) -> np.random.Generator:
    """NumPy's source of randomness, as a JAX key fixes it, for each kind its own."""
    return np.random.default_rng([*np.asarray(jax.random.key_data(key)).flat, kind])
