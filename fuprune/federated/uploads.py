"""What happens to a client's upload the moment it arrives: checked, weighed, summed.

An upload that is not finite, too long or claims more examples than the client has is
turned away with weight zero, and the round goes on with the rest.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fuprune.federated.aggregate import Aggregation, is_finite, update_norms
from fuprune.federated.client import ClientUpdate, own_key
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
