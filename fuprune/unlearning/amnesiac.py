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

from fuprune.options import option, options
from fuprune.unlearning.job import Job
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.protocol import UnlearnError, UnlearnResult
from fuprune.unlearning.request import holders
from fuprune.unlearning.rounds import PLAIN_SERVER, KeptRound, Server, check_kept


@options
class Options:
    """Options of amnesiac."""

    renormalise: bool = option(
        False,
        "average each round over the other clients alone; otherwise the updates left "
        "out count as zeros, as published",
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

    No client is asked for anything: the server has kept the rounds. BatchNorm
    statistics stay as they are until the fine-tuning. With an example goes what its
    client learned of all others. Updates that are left out are zeros, which under a
    mean is plain subtraction, unless a round is renormalised: then it is as if the
    others had been alone in it.

    The stage `subtracted` is the model before the fine-tuning. Notes say how much of
    the training was undone: where every client holds the class, all of it.

    Raises:
      UnlearnError: not every round was kept.
    """
    rounds, server = job.kept_rounds, job.server or PLAIN_SERVER
    if rounds is None or not len(rounds):
        raise UnlearnError(
            "amnesiac needs all rounds of the training and none was kept; train with "
            "train.history_interval=1."
        )
    check_kept(rounds, job.variables)
    guilty = holders(job.data, job.request)
    recorded, affected = 0, []
    params = rounds[0].variables["params"]
    opt_state = server.optimizer.init(params)
    take_step = _make_step(server, o.renormalise)
    for number, kept in enumerate(rounds):
        if kept.round_number != number:
            raise UnlearnError(
                f"amnesiac needs all rounds of the training and round {number + 1} was "
                "not kept; train with train.history_interval=1."
            )
        left_out = np.isin(kept.clients, guilty)
        recorded += len(left_out)
        if left_out.any():
            affected.append(int(left_out.sum()))
        # A round of nobody left the server as it was.
        if len(left_out):
            params, opt_state = take_step(params, opt_state, kept, left_out)
    # Done again, parameters differ by rounding even where nothing changed.
    params = params if affected else job.variables["params"]
    notes = {
        "updates_recorded": recorded,
        "updates_subtracted": sum(affected),
        "rounds_affected": len(affected),
    }
    changed = {**job.variables, "params": jax.tree.map(jnp.asarray, params)}
    return job.recover(changed, stage="subtracted", notes=notes)


def _make_step(server: Server, renormalise: bool):
    """`step(params, opt_state, kept round, left out [M]) -> (params, opt_state)`."""

    @jax.jit
    def step(params, opt_state, updates, weights):
        update = server.rule(updates, weights)
        change, opt_state = server.optimizer.update(update, opt_state, params)
        return optax.apply_updates(params, change), opt_state

    def take_step(params, opt_state, kept: KeptRound, left_out: np.ndarray):
        if renormalise:
            weights = np.where(left_out, 0, kept.weights)
            return step(params, opt_state, kept.updates, weights)

        def silenced(x):
            return np.where(left_out.reshape(-1, *[1] * (x.ndim - 1)), 0, x)

        updates = jax.tree.map(silenced, kept.updates)
        return step(params, opt_state, updates, kept.weights)

    return take_step
