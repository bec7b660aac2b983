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
    *,
    key: jax.Array,
    fine_tune: FineTune,
    objective: Any = None,
    stage: str = "",
    upload_bytes: int = 0,
    notes: Mapping[str, Any] | None = None,
) -> UnlearnResult:
    """Fine-tune on what remains, which ends a method.

    Args:
      model: what the method left.
      variables: its variables.
      data: every client's data; what remains of them is trained on.
      request: what to forget.
      key: the one the method was given.
      fine_tune: see `protocol.FineTune`.
      objective: what to minimise in place of the cross-entropy.
      stage: name under which the result keeps the model as it is now; none if empty.
      upload_bytes: sent by one client so far.
      notes: JSON-able facts for the report.
    """
    fit = fine_tune(
        model,
        variables,
        remaining(data, request),
        recovery_key(key),
        **objective_option(objective),
    )
    stages = (Stage(stage, model, variables),) if stage else ()
    found = fit.state.variables
    return UnlearnResult(model, found, stages, fit, upload_bytes, notes or {})


def objective_option(objective: Any) -> dict[str, Any]:
    """The keyword for `fine_tune`, or none: most callers' take four arguments."""
    return {} if objective is None else {"objective": objective}


def recovery_key(key: jax.Array) -> jax.Array:
    """The fine-tuning's share of a method's key: the last of four, as class pruning."""
    return jax.random.split(key, 4)[3]
