"""Amnesiac unlearning: the training without what some clients ever added.

After Graves et al. (2021), with federated rounds in place of batches. It needs every
round of the training (`rounds`). The server's part of the training is done again,
through the same rule and the same optax optimiser, with the updates of the clients that
held forgotten data counted as zeros: with them goes all that they did in later rounds,
through momentum and weight decay. The other updates were themselves computed on models
that knew the forgotten data; fine-tuning has to repair the rest.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.errors import UnlearnError
from fuprune.options import option, options
from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.request import holders
from fuprune.unlearning.rounds import PLAIN_SERVER, check_kept


@options
class Options:
    """Options of amnesiac."""

    renormalise: bool = option(
        False, "average over the other clients alone, instead of zeros as published"
    )


@method(
    "amnesiac",
    serves=ALL_KINDS,
    options=Options,
    needs="history_interval",
    needs_every_round=True,
)
def amnesiac(job: Job, o: Options) -> UnlearnResult:
    """Leave out the recorded updates of clients that hold what is named; fine-tune.

    No client is asked for anything. BatchNorm statistics stay as they are until the
    fine-tuning. With an example goes what its client learned of all others. Updates
    that are left out are zeros, which under a mean is plain subtraction, unless a round
    is renormalised: then it is as if the others had been alone in it.

    The stage `subtracted` is the model before the fine-tuning. Notes say how much of
    the training was undone: where every client holds the class, all of it.
    """
    rounds, server = job.kept_rounds, job.server or PLAIN_SERVER
    check_kept(rounds)
    guilty = holders(job.data, job.request)
    recorded, affected = 0, []
    params = rounds[0].variables["params"]
    opt_state = server.optimizer.init(params)

    @jax.jit
    def step(params, opt_state, updates, weights):
        update = server.rule(updates, weights)
        change, opt_state = server.optimizer.update(update, opt_state, params)
        return optax.apply_updates(params, change), opt_state

    for number, kept in enumerate(rounds):
        if kept.round_number != number:
            raise UnlearnError(
                f"amnesiac needs all rounds of the training and round {number + 1} was "
                "not kept; train with train.history_interval=1."
            )
        stays = ~np.isin(kept.clients, guilty)
        recorded += len(stays)
        if not stays.all():
            affected.append(int(np.sum(~stays)))
        if not len(stays):
            continue  # a round of nobody left the server as it was
        updates, weights = kept.updates, kept.weights
        if o.renormalise:
            weights = weights * stays
        else:
            updates = jax.tree.map(lambda x, stays=stays: (x.T * stays).T, updates)
        params, opt_state = step(params, opt_state, updates, weights)
    # Done again, parameters differ by rounding even where nothing changed.
    params = params if affected else job.variables["params"]
    notes = {
        "updates_recorded": recorded,
        "updates_subtracted": sum(affected),
        "rounds_affected": len(affected),
    }
    changed = {**job.variables, "params": jax.tree.map(jnp.asarray, params)}
    return job.recover(changed, stage="subtracted", notes=notes)
