"""What is judged: every model's answers on the same images.

Numbers are computed alike for the candidates, the raw model and every retrained seed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from fuprune.audit.options import AuditOptions, Model
from fuprune.audit.outputs import Outputs, compute_outputs, forward, layer_names
from fuprune.audit.spread import Draft, by_role, is_retrained
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError
from fuprune.models.adapt import adapt, own_variables
from fuprune.models.fresh import fresh_variables

RAW = "raw"
RANDOM = "random_init"

Notify = Callable[[str], None]


class AuditData(NamedTuple):
    """The data that the audited models were trained and tested on."""

    train: Dataset
    test: Dataset
    preprocess: Callable[[np.ndarray], Any]  # images [B, H, W, C] -> what models take


class Findings(NamedTuple):
    """What one kind of evidence yields."""

    tests: list[Draft]
    detail: dict[str, Any] = {}  # some keys of `evidence.Detail`


def gather(findings: Iterable[Findings]) -> Findings:
    """All tests, and one detail of all; attacks of several kinds have their curves."""
    tests: list[Draft] = []
    detail: dict[str, Any] = {"roc": {}}
    for found in findings:
        tests += found.tests
        curves = {**detail["roc"], **found.detail.get("roc", {})}
        detail |= {**found.detail, "roc": curves}
    return Findings(tests, detail)


class ModelOutputs(NamedTuple):
    """What one model answered."""

    forgotten: Outputs  # on training images of the forgotten classes, with activations
    test: Outputs  # on test images of all classes, with activations


class Shadows(NamedTuple):
    """S shadow models, each trained on its own half of a pool of N images."""

    models: list[Model]  # [S]
    pool: Dataset  # forgotten training, then test, then retained training images
    members: np.ndarray  # [S, N] bool: who was trained on what
    logits: np.ndarray  # [S, N, U]
    targets: np.ndarray  # [F + T'] rows: forgotten training, then forgotten test images


class Measurements(NamedTuple):
    """All models with their outputs on the same images, and the images."""

    # The candidates in order, "raw", and "retrained_0", "retrained_1", and so on.
    outputs: dict[str, ModelOutputs]
    models: dict[str, Model]  # the same names
    random_init: ModelOutputs
    train: Dataset  # all training images
    forgotten: Dataset  # [F] training images of the forgotten classes, looked at
    test: Dataset  # [T] test images, looked at
    preprocess: Callable[[np.ndarray], Any]
    classes: tuple[int, ...]
    num_classes: int
    layers: tuple[str, ...]  # of the raw model, in forward order
    options: AuditOptions
    notify: Notify  # told what is being done
    shadows: Shadows | None = None
    left_out: dict[str, str] = {}  # candidate -> why it is not among `judged`
    probes: Callable[[], Any] | None = None  # waits for those that were begun

    @property
    def judged(self) -> list[str]:
        """Names of the candidates, in order, and "raw"."""
        return list(by_role(self.outputs)[0])

    @property
    def retrained(self) -> list[str]:
        """Names of the retrained models."""
        return [name for name in self.outputs if is_retrained(name)]

    @property
    def forgotten_test(self) -> np.ndarray:
        """`[T]` bool: the test images of forgotten classes."""
        return np.isin(self.test.labels, self.classes)


def is_reserved(name: str) -> bool:
    """Whether the report uses a name for a reference, so that no candidate may."""
    return name in (RAW, RANDOM) or is_retrained(name)


def measure(
    candidates: Mapping[str, Model],
    retrained: Sequence[Model],
    raw: Model,
    data: AuditData,
    forgotten: Dataset,
    classes: tuple[int, ...],
    options: AuditOptions,
    key: jax.Array,
    on_step: Notify | None,
) -> Measurements:
    """Outputs of all models on all images.

    The images looked at are the `forgotten` training images and the test images of
    `data`; those of `classes` are non-members. The raw model says how many classes
    there are, and `key` is that of the untrained network.

    Raises:
      InputError: a level in `options` is not allowed, a candidate has a reference's
        name, models are of different classes, or a reference answers with NaN.
    """
    confidence, margin = options.confidence, options.margin
    if not 0.5 <= confidence < 1 or not 0 < margin < 1:
        raise InputError(
            f"confidence is {confidence} and margin {margin}; they must be in [0.5, 1) "
            "and (0, 1)"
        )
    taken = [name for name in candidates if is_reserved(name)]
    if taken:
        raise InputError(
            f"candidates are named {taken}, which the report uses for its references; "
            "name them otherwise"
        )
    notify = on_step or (lambda text: None)
    test = data.test
    references = {f"retrained_{i}": model for i, model in enumerate(retrained)}
    given = {**candidates, RAW: raw, **references}
    models = {name: _on_device(name, model) for name, model in given.items()}
    network, variables = models[RAW]
    sample = jax.device_put(data.preprocess(test.images[:1]))
    # Of all training images, because relearning and shadow models are taught them.
    highest = int(max(data.train.labels.max(), test.labels.max()))
    # Not the labels say how many classes there are: a small sample may lack some.
    shape = jax.eval_shape(lambda: forward(network, variables, sample)).logits.shape
    columns = shape[-1]

    def outputs(name: str, model: Model) -> ModelOutputs:
        notify(f"outputs of {name}")
        answers = (
            compute_outputs(
                *model,
                part.images,
                data.preprocess,
                batch_size=options.batch_size,
                activations=True,
            )
            for part in (forgotten, test)
        )
        found = ModelOutputs(*answers)
        width = found.test.logits.shape[-1]
        if width != columns or columns <= highest:
            raise InputError(
                f"the model {name!r} has {width} logits, the raw model {columns}, and "
                f"labels go up to {highest}; all models need one column for every "
                "class, the forgotten ones included"
            )
        return found

    answers = {name: outputs(name, model) for name, model in models.items()}
    broken = [name for name, found in answers.items() if not _sane(found)]
    if RAW in broken:
        raise InputError("the raw model answers with NaN; give one that was trained")
    if any(is_retrained(name) for name in broken):
        raise InputError(
            "a retrained model answers with NaN, so it is no reference; leave it out"
        )
    fresh = (network, fresh_variables(network, variables, key, sample))
    return Measurements(
        outputs={name: found for name, found in answers.items() if name not in broken},
        models={name: model for name, model in models.items() if name not in broken},
        random_init=outputs(RANDOM, fresh),
        train=data.train,
        forgotten=forgotten,
        test=test,
        preprocess=data.preprocess,
        classes=classes,
        num_classes=columns,
        layers=layer_names(network, variables, sample),
        options=options,
        notify=notify,
        left_out=dict.fromkeys(broken, "it answers with NaN"),
    )


def _sane(answers: ModelOutputs) -> bool:
    """Whether no output is NaN; a logit of minus infinity is a masked class."""
    return not any(
        np.isnan(part.logits).any() or not np.isfinite(part.features).all()
        for part in answers
    )


def _on_device(name: str, model: Model) -> Model:
    """The network as the audit calls it, and its variables as device arrays."""
    module, variables = model
    network, variables = adapt(module), own_variables(module, variables)
    try:
        hash(module if isinstance(module, nn.Module) else network)
    except TypeError as error:
        raise InputError(
            f"the module of {name!r} cannot be hashed ({error}), which jit needs; make "
            "its attributes tuples and numbers"
        ) from error
    return network, jax.device_put(dict(variables))


def logits_of(
    measurements: Measurements, model: Model, images: np.ndarray
) -> np.ndarray:
    """`[N, U]` of one more model, or of a measured one on other images."""
    size = measurements.options.batch_size
    outputs = compute_outputs(*model, images, measurements.preprocess, batch_size=size)
    return outputs.logits


def each(
    measurements: Measurements, number: Callable[[ModelOutputs], Any]
) -> dict[str, Any]:
    """`number` of every model, by name."""
    return {name: number(model) for name, model in measurements.outputs.items()}
