"""Forgetting by gradient ascent on the data, the simplest of the gradient family.

Clients that hold what is to be forgotten train on it as in FedAvg, with the sign of the
loss turned round. An example stops counting once its loss has reached a cap, and the
rounds stop once the mean has: an unbounded loss would end in a broken model.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.errors import UnlearnError
from fuprune.federated.client import TrainContext, local_sgd
from fuprune.federated.objective import as_objective
from fuprune.federated.program import ClientProgram, Task
from fuprune.options import option, options
from fuprune.unlearning.client_sums import loss_sum, on_server
from fuprune.unlearning.job import Job, UnlearnResult, tree_bytes
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.teaching import Frozen, labels_only

BATCH_SIZE = 32  # of the clients' passes, one per round
CLIP_NORM = 1.0  # longest gradient of a batch, in L2


@options
class Options:
    """Options of ascent."""

    rounds: int = option(10, "maximum number of rounds", ge=0, le=2**31 - 1)
    learning_rate: float = option(0.1, "learning rate of the ascent", gt=0, le=1000)
    loss_cap: float = option(5.0, "loss on forgotten images at which it stops", gt=0)


@method("ascent", serves=ALL_KINDS, options=Options, reads_forgotten=True)
def ascent(job: Job, o: Options) -> UnlearnResult:
    """Raise the loss on the forgotten examples, then fine-tune on the others.

    BatchNorm uses its running statistics, which stay as they are. The stage `ascended`
    is the model before the fine-tuning.
    """
    forgotten, variables = job.forgotten, on_server(job.variables)
    images = int(np.sum(jax.device_get(forgotten.lengths)))
    run_loss = job.sum(loss_sum, chunk=BATCH_SIZE)
    size = job.data.max_length
    run_round = job.run(
        local_ascent(job.model, o, max_length=size, preprocess=job.preprocess)
    )
    losses: list[float] = []
    for done in range(o.rounds + 1) if images else ():
        total, examples = run_loss(variables, forgotten)
        losses.append(float(total) / examples)
        if not np.isfinite(losses[-1]):
            raise UnlearnError(
                f"gradient ascent diverged in round {done}: the loss is {losses[-1]}; "
                "lower ascent.learning_rate."
            )
        if losses[-1] >= o.loss_cap or done == o.rounds:
            break
        key = jax.random.fold_in(job.own_key, done)
        context = TrainContext(variables, key, jnp.ones(()), None)
        (change, weight), _ = jax.device_get(run_round(context, forgotten))
        params = jax.tree.map(
            lambda w, c, n=weight: w + c / n, variables["params"], change
        )
        variables = {**variables, "params": params}
    rounds = max(len(losses) - 1, 0)
    notes = {"images": rounds * images, "forgotten_loss": losses}
    sent = tree_bytes(variables["params"]) * rounds
    return job.recover(variables, stage="ascended", notes=notes, upload_bytes=sent)


def local_ascent(model, o: Options, *, max_length: int, preprocess) -> ClientProgram:
    """A client's round; `finish` gives `((n_k * parameter change, n_k), ())`."""

    def capped(logits, batch):
        # At the cap the minimum is constant: such an example has no gradient.
        return -jnp.minimum(labels_only(logits, batch), o.loss_cap)

    program = local_sgd(
        Frozen(model),
        optax.chain(optax.clip_by_global_norm(CLIP_NORM), optax.sgd(o.learning_rate)),
        local_epochs=1,
        batch_size=BATCH_SIZE,
        max_length=max_length,
        preprocess=preprocess,
        objective=as_objective(capped),
    )

    def finish(shared, client, carry):
        _, sent = program.finish(shared, client, carry)
        # Weighted, so that the server's sum over the sum of weights is FedAvg.
        change = jax.tree.map(lambda x: sent.num_examples * x, sent.update)
        return (change, sent.num_examples), ()

    task = Task("ascent", model, dataclasses.asdict(o))
    return program._replace(finish=finish, task=task)
