"""Amnesiac unlearning: subtract what the clients that held forgotten data ever added.

After Graves et al. (2021), with federated rounds in place of batches. It needs the
`UpdateHistory` of the training. What is left is exactly the model that the server would
have made of the other clients' recorded updates, its momentum, weight decay and
schedule included. Those updates were themselves computed on models that knew the
forgotten data; fine-tuning has to repair the rest.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.unlearning.history import Entry, UpdateHistory, effect_of
from fuprune.unlearning.job import Job, unlearn_fn
from fuprune.unlearning.protocol import UnlearnError, UnlearnResult
from fuprune.unlearning.request import holders


@unlearn_fn
def amnesiac(
    job: Job, *, history: UpdateHistory | None = None, renormalise: bool = False
) -> UnlearnResult:
    """Subtract the recorded updates of clients that held what is named, then fine-tune.

    No client is asked for anything: the server has the history. BatchNorm statistics
    stay as they are until the fine-tuning. A subtracted update takes with it all that
    it did in later rounds through the server's momentum and weight decay, and with an
    example goes what its client learned of all others. `renormalise` also scales up
    what the other clients of an affected round added, as if they had been alone in its
    mean; without it this is plain subtraction, as published.

    The stage `subtracted` is the model before the fine-tuning. Notes say how much of
    the training was undone: where every client holds the class, all of it.

    Raises:
      UnlearnError: without a history, or where the server's step was not linear in
        the updates (a median or trimmed mean, Adam), so that no client has a part that
        could be subtracted.
    """
    if history is None or not history.entries:
        limit = 0 if history is None else history.max_bytes
        raise UnlearnError(
            "amnesiac needs the recorded updates of the training and there are none; "
            f"train with train.history_bytes above {limit}."
        )
    if obstacle := history.server.obstacle:
        raise UnlearnError(
            f"amnesiac cannot subtract what a client added under {obstacle}, "
            "because the server's step is not a sum over clients there; train with "
            "train.aggregation=mean or clipped_mean and sgd on the server."
        )
    request, params = job.request, job.variables["params"]
    # A history knows which classes a client held, and the client by its id.
    clients = () if request.kind == "classes" else holders(job.data, request)

    def is_guilty(entry: Entry) -> bool:
        held = set(entry.classes).intersection(request.classes)
        return bool(held) or entry.client in clients

    def change(entries):
        """Minus the guilty terms of a round's mean; the others scaled up, if asked."""
        lost = sum(e.share for e in entries if is_guilty(e))
        if not lost:
            return None
        # A mean over the others alone weighs each of them 1 / (1 - lost) times as much,
        # which is lost / (1 - lost) more than it did.
        terms = [
            _times(-1.0 if is_guilty(e) else lost / (1.0 - lost), e.contribution)
            for e in entries
            if renormalise or is_guilty(e)
        ]
        return jax.tree.map(lambda *leaves: sum(leaves), *terms)

    # None if no recorded update is affected; the parameters then stay bitwise.
    gain = effect_of(history, change)
    if gain is not None:
        params = jax.tree.map(
            lambda w, x: jnp.asarray(np.asarray(w, np.float64) + x, w.dtype),
            params,
            gain,
        )
    changed = {**job.variables, "params": params}
    guilty = [entry.round_number for entry in history.entries if is_guilty(entry)]
    notes = {
        "history_bytes": history.used_bytes,
        "history_limit": history.max_bytes,
        "updates_recorded": len(history.entries),
        "updates_dropped": history.dropped,
        "updates_subtracted": len(guilty),
        "rounds_affected": len(set(guilty)),
    }
    return job.recover(changed, stage="subtracted", notes=notes)


def _times(factor: float, tree):
    return jax.tree.map(lambda x: factor * np.asarray(x, np.float64), tree)
