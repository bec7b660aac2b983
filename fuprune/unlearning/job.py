"""What all methods are given as one value, and the ending that most of them share.

A method is written as a function of a `Job` and of its own options, and `unlearn_fn`
makes an `UnlearnFn` of it: the request is checked there, once for all methods. Only
`class_pruning` spells its signature out, for editors and type checkers, because it is
public. Every method that fine-tunes does it in `Job.recover`, under a key derived in
the same way, so that methods started with one key see the same cohorts and the same
batches.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from fuprune.classes import check_classes
from fuprune.data.federated import FederatedDataset
from fuprune.errors import InputError
from fuprune.unlearning.head import head_classes
from fuprune.unlearning.protocol import (
    FineTune,
    Stage,
    UnlearnFn,
    UnlearnResult,
    Variables,
)
from fuprune.unlearning.request import (
    ForgetRequest,
    check_request,
    describe_request,
    remaining,
)


class Job(NamedTuple):
    """One job of forgetting: the arguments of `UnlearnFn` that all methods take."""

    model: Any
    variables: Variables  # trained
    data: FederatedDataset
    request: ForgetRequest  # checked
    key: jax.Array
    fine_tune: FineTune
    head: str = "head"  # the name of the last layer

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes to forget, for a method that serves no other kind of request."""
        if self.request.kind != "classes":
            raise InputError(
                f"the request names {describe_request(self.request)}; allowed: "
                "classes, because this method forgets nothing else."
            )
        return self.request.classes

    @property
    def own_key(self) -> jax.Array:
        """Of what a method draws: the first of four, as the fine-tuning's is the last.

        See `recovery_key`.
        """
        return jax.random.split(self.key, 4)[0]

    def recover(
        self,
        variables: Variables,
        *,
        stage: str = "",
        notes: Mapping[str, Any] | None = None,
        upload_bytes: int = 0,
    ) -> UnlearnResult:
        """Fine-tune `variables` on what remains, which ends a method.

        Under the name `stage`, if there is one, the result keeps the model as it is
        before.
        """
        left = remaining(self.data, self.request)
        fit = self.fine_tune(self.model, variables, left, recovery_key(self.key))
        return UnlearnResult(
            self.model,
            fit.state.variables,
            (Stage(stage, self.model, variables),) if stage else (),
            fit,
            upload_bytes,
            notes or {},
        )

    def pass_on(
        self, method: Callable[..., UnlearnResult], **options: Any
    ) -> UnlearnResult:
        """The job done by another method."""
        return method(
            self.model,
            self.variables,
            self.data,
            self.request,
            key=self.key,
            fine_tune=self.fine_tune,
            head=self.head,
            **options,
        )


def recovery_key(key: jax.Array) -> jax.Array:
    """The fine-tuning's share of a method's key: the last of four, as class pruning."""
    return jax.random.split(key, 4)[3]


def unlearn_fn(method: Callable[..., UnlearnResult]) -> UnlearnFn:
    """The `UnlearnFn` of a method that is written as `(job, *, options)`.

    Its signature lists the options. If `num_classes` is one of them and given, it says
    which classes there are; otherwise the last layer does.
    """

    @functools.wraps(method)
    def forget(
        model, variables, data, request, *, key, fine_tune, head="head", **options
    ) -> UnlearnResult:
        request = check_request(request, data)
        if request.kind == "classes":
            number = options.get("num_classes") or head_classes(variables, head)
            check_classes(request.classes, number)
        job = Job(model, variables, data, request, key, fine_tune, head)
        return method(job, **options)

    *given, _ = inspect.signature(forget, follow_wrapped=False).parameters.values()
    _, *own = inspect.signature(method).parameters.values()
    forget.__dict__["__signature__"] = inspect.Signature([*given, *own])
    return forget
