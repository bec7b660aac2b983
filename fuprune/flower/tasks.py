"""A client's programs by name: what a server may ask for, and nothing else.

A request names a program, its arguments and the config of the run; from them the client
makes the same `ClientProgram` as a simulation would. Names and arguments are looked up
and checked here: a request cannot bring code.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from fuprune.errors import InputError
from fuprune.federated.client import (
    TrainContext,
    local_gradient,
    local_sgd,
    local_statistics,
    split_params,
)
from fuprune.federated.objective import classification
from fuprune.federated.program import ClientProgram
from fuprune.run.optimizers import optimizer
from fuprune.unlearning.activations import activations_program
from fuprune.unlearning.ascent import Ascent, local_ascent
from fuprune.unlearning.client_sums import make_loss_sum, sum_program
from fuprune.unlearning.fisher import diagonal_fisher
from fuprune.unlearning.relabel import answers_program


class Setting(NamedTuple):
    """What a client has when it makes a program."""

    config: Any  # of the run
    model: Any
    prepare: Callable  # (key, uint8 images) -> what the model sees in evaluation
    prepare_training: Callable  # the same with augmentation, if it is on
    max_length: int  # examples of the largest client
    learning_rate: float


class Maker(NamedTuple):
    """How a program is made, and what it does to the client's data."""

    make: Callable[..., ClientProgram]  # (Setting, **arguments)
    arguments: frozenset[str]
    trains: bool = False  # the model learns from what it reads


def _local_sgd(setting: Setting, *, local_epochs, batch_size) -> ClientProgram:
    return local_sgd(
        setting.model,
        optimizer(setting.config.train, setting.learning_rate),
        local_epochs=local_epochs,
        batch_size=batch_size,
        max_length=setting.max_length,
        preprocess=setting.prepare_training,
        objective=classification(setting.config.train.label_smoothing),
    )


def _local_gradient(setting: Setting, *, batch_size, microbatch) -> ClientProgram:
    return local_gradient(
        setting.model,
        batch_size=batch_size,
        microbatch=microbatch,
        max_length=setting.max_length,
        preprocess=setting.prepare_training,
        objective=classification(setting.config.train.label_smoothing),
    )


def _local_statistics(setting: Setting, *, batch_size) -> ClientProgram:
    return local_statistics(
        setting.model, batch_size=batch_size, preprocess=setting.prepare_training
    )


def _class_statistics(setting: Setting, **arguments) -> ClientProgram:
    return activations_program(setting.model, preprocess=setting.prepare, **arguments)


def _sum(function, setting: Setting, chunk) -> ClientProgram:
    return sum_program(function, chunk=chunk, preprocess=setting.prepare)


def _fisher_sum(setting: Setting, *, chunk) -> ClientProgram:
    def fisher(variables, batch):
        return diagonal_fisher(setting.model, variables, batch.images, batch.mask)

    return _sum(fisher, setting, chunk)


def _loss_sum(setting: Setting, *, chunk) -> ClientProgram:
    loss = make_loss_sum(setting.model)
    return _sum(lambda w, batch: loss(*split_params(w), batch), setting, chunk)


def _gradient_sum(setting: Setting, *, chunk) -> ClientProgram:
    loss = make_loss_sum(setting.model)

    def gradient(variables, batch):
        params, state = split_params(variables)
        return jax.grad(loss)(params, state, batch)

    return _sum(gradient, setting, chunk)


def _ascent(setting: Setting, **climb) -> ClientProgram:
    return local_ascent(
        setting.model,
        Ascent(**climb),
        max_length=setting.max_length,
        preprocess=setting.prepare,
    )


def _relabel(setting: Setting, *, others, batch_size) -> ClientProgram:
    return answers_program(
        setting.model,
        others,
        setting.max_length,
        batch_size=batch_size,
        preprocess=setting.prepare,
    )


_CHUNK = frozenset(("chunk",))
MAKERS: Mapping[str, Maker] = {
    "local_sgd": Maker(_local_sgd, frozenset(("local_epochs", "batch_size")), True),
    "local_gradient": Maker(
        _local_gradient, frozenset(("batch_size", "microbatch")), True
    ),
    "local_statistics": Maker(_local_statistics, frozenset(("batch_size",)), True),
    "class_statistics": Maker(
        _class_statistics, frozenset(("num_classes", "batch_size", "clip", "dense"))
    ),
    "fisher_sum": Maker(_fisher_sum, _CHUNK),
    "loss_sum": Maker(_loss_sum, _CHUNK),
    "gradient_sum": Maker(_gradient_sum, _CHUNK),
    "ascent": Maker(_ascent, frozenset(Ascent._fields), True),
    "relabel": Maker(_relabel, frozenset(("others", "batch_size"))),
}


def make_program(name: str, setting: Setting, arguments: Any) -> ClientProgram:
    """The program that a request names.

    Raises:
      InputError: there is none of that name, or it takes other arguments.
    """
    maker = MAKERS.get(name)
    if maker is None:
        raise InputError(
            f"the request is for {name!r:.80}; a client has {', '.join(MAKERS)}."
        )
    # Exactly these: a request must not reach a keyword that nobody meant to offer.
    if not isinstance(arguments, dict) or set(arguments) != maker.arguments:
        raise InputError(
            f"the request gives {name} the arguments {sorted(arguments or ())!r:.200}, "
            f"but it takes {sorted(maker.arguments)}."
        )
    for argument, value in arguments.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(x is None or isinstance(x, bool | int | float) for x in numbers):
            raise InputError(
                f"the request's {argument} is {value!r:.80}, but must be a number."
            )
    return maker.make(setting, **arguments)


def as_context(name: str, tree: Any) -> Any:
    """The context that a program expects, from the tree that travelled."""
    if name in ("local_sgd", "local_gradient", "local_statistics"):
        return TrainContext(*tree)
    return tree
