"""A client's programs by name: what a server may ask for, and nothing else.

A request names a program, its arguments and the config of the run; from them the client
makes the same `ClientProgram` as a simulation would. Names and arguments are looked up
and checked here: a request cannot bring code.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

from fuprune.errors import InputError
from fuprune.federated.batch_norm import local_statistics
from fuprune.federated.client import TrainContext, local_gradient, local_sgd
from fuprune.federated.objective import Objective
from fuprune.federated.program import ClientProgram
from fuprune.options import make
from fuprune.run.optimizers import optimizer
from fuprune.unlearning.activations import activations_program
from fuprune.unlearning.ascent import Options as Ascent
from fuprune.unlearning.ascent import local_ascent
from fuprune.unlearning.auto_rate import answers_program as count_program
from fuprune.unlearning.client_sums import gradient_sum, loss_sum, sum_program
from fuprune.unlearning.fisher import fisher_sum
from fuprune.unlearning.relabel import answers_program


class Setting(NamedTuple):
    """What a client has when it makes a program."""

    config: Any  # of the run
    model: Any
    prepare: Callable  # (key, uint8 images) -> what the model sees in evaluation
    prepare_training: Callable  # the same with augmentation, if it is on
    max_length: int  # examples of the largest client
    objective: Objective  # of training; a teacher's arrays come with the model


class Maker(NamedTuple):
    """How a program is made, and by which message it is asked for."""

    make: Callable[..., ClientProgram]  # (Setting, **arguments)
    kind: str  # of the message that asks for it; in "train" the model learns
    arguments: Set[str]
    optional: Set[str] = frozenset()  # arguments that may be absent


def _local_sgd(setting: Setting, **work) -> ClientProgram:
    return local_sgd(
        setting.model,
        optimizer(setting.config.train, 1.0),  # the round brings its rate
        max_length=setting.max_length,
        preprocess=setting.prepare_training,
        objective=setting.objective,
        **work,
    )


def _local_gradient(setting: Setting, **work) -> ClientProgram:
    return local_gradient(
        setting.model,
        max_length=setting.max_length,
        preprocess=setting.prepare_training,
        objective=setting.objective,
        **work,
    )


def _local_statistics(setting: Setting, **work) -> ClientProgram:
    return local_statistics(setting.model, preprocess=setting.prepare_training, **work)


def _class_statistics(setting: Setting, **arguments) -> ClientProgram:
    return activations_program(setting.model, preprocess=setting.prepare, **arguments)


def _answer_counts(setting: Setting, **arguments) -> ClientProgram:
    return count_program(setting.model, preprocess=setting.prepare, **arguments)


def _sum(make_function, setting: Setting, *, chunk) -> ClientProgram:
    function = make_function(setting.model)
    return sum_program(function, chunk=chunk, preprocess=setting.prepare)


def _ascent(setting: Setting, **options) -> ClientProgram:
    return local_ascent(
        setting.model,
        make(Ascent, options),
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


MAKERS: Mapping[str, Maker] = {
    "local_sgd": Maker(
        _local_sgd, "train", {"local_epochs", "batch_size"}, {"local_steps"}
    ),
    "local_gradient": Maker(_local_gradient, "train", {"batch_size", "microbatch"}),
    "local_statistics": Maker(_local_statistics, "train", {"batch_size"}),
    "class_statistics": Maker(
        _class_statistics,
        "query.class_statistics",
        {"num_classes", "batch_size", "clip", "dense"},
    ),
    "answer_counts": Maker(
        _answer_counts, "query.class_statistics", {"classes", "leaving", "images"}
    ),
    "fisher_sum": Maker(functools.partial(_sum, fisher_sum), "query.sums", {"chunk"}),
    "loss_sum": Maker(functools.partial(_sum, loss_sum), "query.sums", {"chunk"}),
    "gradient_sum": Maker(
        functools.partial(_sum, gradient_sum), "query.sums", {"chunk"}
    ),
    "ascent": Maker(
        _ascent, "train", {field.name for field in dataclasses.fields(Ascent)}
    ),
    "relabel": Maker(_relabel, "query.relabel", {"others", "batch_size"}),
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
    # No others: a request must not reach a keyword that nobody meant to offer.
    known = isinstance(arguments, dict)
    if not known or set(arguments) - maker.optional != maker.arguments:
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
    if name in ("local_sgd", "local_gradient", "local_statistics", "ascent"):
        return TrainContext(*tree)
    return tree
