"""The common ending: the federation fine-tunes on what remains.

Every method that fine-tunes does it here, under a key derived in the same way, so that
methods started with one key see the same cohorts and the same batches.
"""

from typing import Any

import jax

from fuprune.data.federated import FederatedDataset
from fuprune.federated.train import FitResult
from fuprune.unlearning.protocol import FineTune, Variables
from fuprune.unlearning.request import ForgetRequest, remaining


def recover(
    model,
    variables: Variables,
    data: FederatedDataset,
    request: ForgetRequest,
    *,
    key: jax.Array,
    fine_tune: FineTune,
    objective: Any = None,
) -> FitResult:
    """Fine-tune on what remains; `key` is the one the method was given."""
    return fine_tune(
        model,
        variables,
        remaining(data, request),
        recovery_key(key),
        **objective_option(objective),
    )


def objective_option(objective: Any) -> dict[str, Any]:
    """The keyword for `fine_tune`, or none: most callers' take four arguments."""
    return {} if objective is None else {"objective": objective}


def recovery_key(key: jax.Array) -> jax.Array:
    """The fine-tuning's share of a method's key: the last of four, as class pruning."""
    return jax.random.split(key, 4)[3]
