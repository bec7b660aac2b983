"""What makes a function a method of forgetting: one decorator, in the method's file.

A method is a function of a `Job` and of its options, a dataclass made by
`fuprune.options.options`, which is its section of the config and its row in the
documents. The decorator puts it into `METHODS` and makes it callable.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from fuprune.errors import InputError, check_classes
from fuprune.options import fields, make
from fuprune.unlearning.head import head_classes
from fuprune.unlearning.job import FineTune, Job, UnlearnResult
from fuprune.unlearning.request import (
    ForgetRequest,
    as_request,
    check_request,
    describe_request,
)

ALL_KINDS = ForgetRequest._fields
METHODS: dict[str, Any] = {}  # by name, as `unlearn.methods` gives it


@dataclasses.dataclass(eq=False)
class Method:
    """A way to forget, callable like every other."""

    name: str  # as a config, a table and the audit call it
    function: Callable[..., UnlearnResult]  # of a job and one value per section
    sections: Mapping[str, type]  # of the config: name -> dataclass of options
    serves: tuple[str, ...] = ("classes",)  # kinds of request, as `ForgetRequest` has
    reads_forgotten: bool = False  # looks at the images it is to forget
    trains_on_forgotten: bool = False  # fine-tunes on them, under other labels
    fine_tunes: bool = True  # calls `fine_tune` at all
    # What `fine_tune` is made with: fine-tuning's rounds and schedule, those of a first
    # "training", or, if it is "short", fine-tuning's rounds with a fresh schedule.
    budget: str = "fine_tune"
    needs: str = ""  # the key of `train` that keeps the record which it reads
    needs_every_round: bool = False  # with that key at 1
    control: str = ""  # controls only: what it does, in one phrase
    simulated: str = ""  # why it cannot run with remote clients, if it cannot

    def __call__(
        self,
        model: Any,
        variables: Any,
        data: Any,
        request: ForgetRequest | tuple[int, ...],
        *,
        key: jax.Array,
        fine_tune: FineTune,
        **given: Any,
    ) -> UnlearnResult:
        """Forget what the request names in the clients' data; ints are classes.

        The model is any network that `models.adapt` takes, with its trained variables;
        the key is for all that is drawn, and `given` are further fields of `Job` and
        options of the method.
        """
        request = as_request(request)
        check_served(self, request)
        request = check_request(request, data)
        facts = {name: given.pop(name) for name in Job._fields if name in given}
        job = Job(model, variables, data, request, key, fine_tune, **facts)
        if request.kind == "classes":
            number = job.num_classes or head_classes(variables, job.head)
            check_classes(request.classes, number)
            job = job._replace(num_classes=number)
        return self.function(job, *self.read(given))

    def read(self, given: Mapping[str, Any]) -> list[Any]:
        """The options `given` by name, as one value per section."""
        homes = {n: name for name, kind in self.sections.items() for n in fields(kind)}
        for name in given:
            if name not in homes:
                raise InputError(
                    f"{self.name} has no option {name!r:.80}; choose some of "
                    f"{', '.join((*homes, *Job._field_defaults))}."
                )
        return [
            make(kind, {n: x for n, x in given.items() if homes[n] == name}, f"{name}.")
            for name, kind in self.sections.items()
        ]


def method(
    name: str, *, options: type | tuple[type, ...] = (), **facts: Any
) -> Callable[[Callable[..., UnlearnResult]], Method]:
    """Makes a method of a function `(job, *options) -> UnlearnResult`.

    Options with a `section` are that section of the config, which several methods may
    share; otherwise the section has the method's name. `facts` are the fields of
    `Method` from `serves` on.
    """
    kinds = options if isinstance(options, tuple) else (options,)
    sections = {getattr(kind, "section", name): kind for kind in kinds}

    def declare(function: Callable[..., UnlearnResult]) -> Method:
        there = METHODS.get(name)
        # A notebook or a reload may run its own declaration again.
        if there is not None and there.__module__ != function.__module__:
            raise InputError(
                f"{function.__module__} declares a method {name!r}, as "
                f"{there.__module__} does; give it another name."
            )
        declared = Method(name, function, sections, **facts)
        functools.update_wrapper(declared, function)
        vars(declared)["__signature__"] = _signature(declared)
        METHODS[name] = declared
        return declared

    return declare


def _signature(declared: Method) -> inspect.Signature:
    """The arguments of a call by name, for editors and `help`."""
    own = inspect.signature(Method.__call__).parameters.values()
    found = [one for one in own if one.name not in ("self", "given")]
    by_name = inspect.Parameter.KEYWORD_ONLY
    for kind in declared.sections.values():
        arguments = inspect.signature(kind).parameters.values()
        found += [one.replace(kind=by_name) for one in arguments]
    for name, default in Job._field_defaults.items():
        found.append(inspect.Parameter(name, by_name, default=default))
    return inspect.Signature(found)


def check_served(method: Method, request: ForgetRequest) -> None:
    """Raises InputError unless the method serves this kind of request."""
    if request.kind in method.serves:
        return
    others = [n for n, known in METHODS.items() if request.kind in known.serves]
    raise InputError(
        f"{method.name} serves requests of {' and '.join(method.serves)}, but the "
        f"request names {describe_request(request)}; choose some of "
        f"{', '.join(others)}."
    )
