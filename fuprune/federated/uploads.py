"""What happens to a client's upload the moment it arrives: checked, weighed, summed.

An upload that is not finite, too long or claims more examples than the client has is
turned away with weight zero, and the round goes on with the rest. `fuse_gradients` is
FedSGD's short cut, in which single uploads are never formed.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fuprune.data.preprocess import Preprocess
from fuprune.federated.aggregate import Aggregation, is_finite, update_norms
from fuprune.federated.client import (
    ClientUpdate,
    drawn_piece,
    make_loss,
    own_key,
    shuffled_positions,
    split_params,
)
from fuprune.federated.objective import Objective
from fuprune.federated.program import Client, ClientProgram


class Upload(NamedTuple):
    """What is kept of each client, stacked over the cohort."""

    weight: jax.Array  # [M] examples, 0 if turned away
    accepted: jax.Array  # [M] bool
    update: Any  # leaves [M, ...], or () if nothing needs them
    batch_stats: Any  # leaves [M, ...], or () if nothing needs them


def receive_uploads(
    program: ClientProgram, aggregation: Aggregation, *, keep_statistics: bool
) -> ClientProgram:
    """`program` with each `ClientUpdate` checked and turned into `(total, Upload)`.

    The total is a `ClientUpdate` as well: a sum over the cohort in which updates and
    statistics are weighted by examples, or () if the rule needs every client's own.
    `keep_statistics` says whether each client's BatchNorm statistics are needed.
    """
    # A mean can be summed up client by client; other rules need all updates at once.
    stacked = aggregation.rule != "mean"

    def receive(shared, client, sent):
        if aggregation.fault is not None:
            key = jax.random.fold_in(own_key(shared, client), 7)
            sent = aggregation.fault(sent, client.client_id, key)
        accepted = _is_acceptable(sent, client, aggregation.max_update_norm)
        # Zeros, because weight zero does not silence a NaN.
        clean = jax.tree.map(lambda x: jnp.where(accepted, x, jnp.zeros_like(x)), sent)
        weight = clean.num_examples

        def weighted(tree):
            return () if stacked else jax.tree.map(lambda x: weight * x, tree)

        total = clean._replace(
            update=weighted(clean.update), batch_stats=weighted(clean.batch_stats)
        )
        return total, Upload(
            weight,
            accepted,
            clean.update if stacked or aggregation.keep_updates else (),
            clean.batch_stats if stacked or keep_statistics else (),
        )

    return program._replace(receive=receive)


def _is_acceptable(sent: ClientUpdate, client: Client, max_norm):
    """Finite everywhere, norm within bounds, no more examples than the client has."""
    # Counts as well: those that are no numbers would spoil the round's own.
    finite = is_finite(sent)
    # A bound that turns nobody away is not worth the norm of every array.
    if math.isfinite(max_norm):
        alone = jax.tree.map(lambda x: x[None], sent.update)
        finite = finite & (update_norms(alone)[0] <= max_norm)
    honest = (sent.num_examples >= 0) & (sent.num_examples <= client.length)
    return finite & honest


def fuse_gradients(
    program: ClientProgram,
    model,
    *,
    take: int,
    preprocess: Preprocess,
    objective: Objective,
) -> ClientProgram:
    """FedSGD over a cohort as one gradient of the summed loss.

    `vmap` over clients with shared parameters folds their images into one batch for
    every convolution, forward and backward, while BatchNorm reduces over each client's
    own images. Of each client `take` examples are drawn; `program`, FedSGD's client,
    serves backends other than `vmap`.
    """
    loss_fn = make_loss(model, objective)

    def draw(shared, client):
        size = client.row.shape[0]
        order = shuffled_positions(own_key(shared, client), client.length, size)
        return drawn_piece(shared, client, order, 0, take, take, preprocess)

    def batched(shared, clients):
        params, state = split_params(shared.context.variables)
        context = shared.context.objective
        batch = jax.vmap(lambda c: draw(shared, c))(clients)
        examples = jnp.sum(batch.mask, axis=1)

        def cohort_loss(params):
            means, found = jax.vmap(lambda b: loss_fn(params, state, b, context))(batch)
            return jnp.sum(means * examples), found

        grads, (losses, hits, states) = jax.grad(cohort_loss, has_aux=True)(params)
        stats = jax.tree.map(
            lambda x: jnp.tensordot(examples, x, axes=1), states.get("batch_stats", {})
        )
        seen = jnp.sum(examples)
        total = ClientUpdate(grads, stats, seen, jnp.sum(losses), jnp.sum(hits), seen)
        # One client's bad loss spoils the shared gradient: then the round is void. Of a
        # gradient that is bad although all losses are good, nobody knows whose it is,
        # so everybody is turned away.
        accepted = jnp.isfinite(losses)
        accepted = accepted & (is_finite((grads, stats)) | ~jnp.all(accepted))
        good = jnp.all(accepted)
        total = jax.tree.map(lambda x: jnp.where(good, x, jnp.zeros_like(x)), total)
        return total, Upload(examples * good, accepted, (), ())

    return program._replace(batched=batched)
