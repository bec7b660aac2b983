"""The common ending: the federation fine-tunes on what remains.

Every method that fine-tunes does it here, under a key derived in the same way, so that
methods started with one key see the same cohorts and the same batches.
"""

from collections.abc import Mapping
from typing import Any

import jax

from fuprune.data.federated import FederatedDataset
from fuprune.unlearning.protocol import FineTune, Stage, UnlearnResult, Variables
from fuprune.unlearning.request import ForgetRequest, remaining


def recover(
    model,
    variables: Variables,
    data: FederatedDataset,
    request: ForgetRequest,
    key: jax.Array,
    fine_tune: FineTune,
    *,
    stage: str = "",
    notes: Mapping[str, Any] | None = None,
) -> UnlearnResult:
    """Fine-tune on what remains, which ends a method.

    The key is the one the method was given. Under the name `stage`, if there is one,
    the result keeps the model as it is before.
    """
    fit = fine_tune(model, variables, remaining(data, request), recovery_key(key))
    stages = (Stage(stage, model, variables),) if stage else ()
    return UnlearnResult(model, fit.state.variables, stages, fit, notes=notes or {})


def recovery_key(key: jax.Array) -> jax.Array:
    """The fine-tuning's share of a method's key: the last of four, as class pruning."""
    return jax.random.split(key, 4)[3]
