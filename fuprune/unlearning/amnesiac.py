"""Amnesiac unlearning: subtract what the clients that held the class ever added.

After Graves et al. (2021), with federated rounds in place of batches. It needs the
`UpdateHistory` of the training. It is exact where later updates do not depend on the
ones taken out; in a deep network they do, and fine-tuning has to mend the rest.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import FederatedDataset
from fuprune.unlearning.head import head_classes
from fuprune.unlearning.history import UpdateHistory
from fuprune.unlearning.protocol import (
    FineTune,
    Stage,
    UnlearnError,
    UnlearnResult,
    Variables,
    check_classes,
)
from fuprune.unlearning.recovery import recover


def amnesiac(
    model,
    variables: Variables,
    data: FederatedDataset,
    classes: tuple[int, ...],
    *,
    key: jax.Array,
    fine_tune: FineTune,
    history: UpdateHistory | None = None,
    renormalise: bool = False,
    head: str = "head",
) -> UnlearnResult:
    """Subtract the recorded updates of clients that held `classes`, then fine-tune.

    No client is asked for anything: the server has the history. BatchNorm statistics
    stay as they are until the fine-tuning.

    Args:
      model: a Flax module.
      variables: its variables at the end of the recorded training.
      data: every client's data, for the fine-tuning.
      classes: to forget.
      key: of the fine-tuning.
      fine_tune: see `protocol.FineTune`.
      history: of the training.
      renormalise: also scale up what the other clients of an affected round added, as
        if they had been alone in its mean. False is plain subtraction, as published.
      head: name of the last layer.

    Returns:
      The fine-tuned model; the stage `subtracted` is the one before. Notes say how
      much of the training was undone: where every client holds the class, all of it.

    Raises:
      UnlearnError: without a history.
    """
    if history is None or not history.entries:
        raise UnlearnError(
            "amnesiac needs the recorded updates of the training and there are none; "
            "train with train.history_bytes above 0."
        )
    classes = check_classes(classes, head_classes(variables, head))
    # Hundreds of differences add up here; in float32 their rounding would too.
    params = jax.tree.map(lambda x: np.array(x, np.float64), variables["params"])
    guilty = [bool(set(entry.classes) & set(classes)) for entry in history.entries]
    lost: dict[int, float] = {}
    for entry, is_guilty in zip(history.entries, guilty, strict=True):
        if is_guilty:
            params = jax.tree.map(np.subtract, params, entry.contribution)
            lost[entry.round_number] = lost.get(entry.round_number, 0.0) + entry.share
    for entry, is_guilty in zip(history.entries, guilty, strict=True):
        if renormalise and not is_guilty and entry.round_number in lost:
            share = lost[entry.round_number]
            extra = share / (1.0 - share)
            params = jax.tree.map(
                lambda w, c, extra=extra: w + extra * c, params, entry.contribution
            )
    params = jax.tree.map(
        lambda x, old: jnp.asarray(x, old.dtype), params, variables["params"]
    )
    subtracted = {**variables, "params": params}
    fit = recover(model, subtracted, data, classes, key=key, fine_tune=fine_tune)
    notes = {
        "history_bytes": history.used_bytes,
        "history_limit": history.max_bytes,
        "updates_recorded": len(history.entries),
        "updates_dropped": history.dropped,
        "updates_subtracted": sum(guilty),
        "rounds_affected": len(lost),
    }
    stages = (Stage("subtracted", model, subtracted),)
    return UnlearnResult(model, fit.state.variables, stages, fit, 0, notes)
