"""Sums over the examples of all clients.

It is the form in which gradients, losses, Hessian-vector products and the Fisher
information reach the server: each client folds a function over its own images, a chunk
at a time, and uploads one tree of sums. Memory is bounded by the chunk.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import FederatedDataset
from fuprune.data.preprocess import Preprocess, to_float
from fuprune.federated.client import Batch, gather_batch, split_params
from fuprune.federated.local_work import count_batches
from fuprune.federated.objective import cross_entropy
from fuprune.federated.program import Client, ClientProgram, Shared

SIMULATED = "it asks clients for sums that no message describes"
# (context, batch) -> tree of sums over the real examples of the batch.
BatchSum = Callable[[Any, Batch], Any]
MakeSum = Callable[[Any], BatchSum]  # of a network


def sum_program(
    function: BatchSum, *, chunk: int, preprocess: Preprocess = to_float
) -> ClientProgram:
    """A client's sum over its examples; `finish` gives `((sum, examples), ())`."""

    def batch_at(shared: Shared, client: Client, i) -> Batch:
        positions = i * chunk + jnp.arange(chunk)
        batch = gather_batch(shared, client, positions, preprocess, jax.random.key(0))
        # Padding repeats the client's own images, or another's if it has none. With
        # zeros in its place it gives no NaN, which a weight of zero would let through.
        real = batch.mask.reshape(-1, *(1,) * (batch.images.ndim - 1)) > 0
        return batch._replace(images=jnp.where(real, batch.images, 0.0))

    def init(shared, client):
        shapes = jax.eval_shape(
            lambda: function(shared.context, batch_at(shared, client, 0))
        )
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def step(shared, client, carry, i):
        contribution = function(shared.context, batch_at(shared, client, i))
        return jax.tree.map(jnp.add, carry, contribution)

    def finish(shared, client, carry):
        return (carry, client.length), ()

    def num_steps(client):
        return count_batches(client.length, chunk)

    return ClientProgram(num_steps, init, step, finish)


def on_server(tree):
    """The tree where the server computes, whatever mesh it was spread over before."""
    return jax.tree.map(jnp.asarray, jax.device_get(tree))


def loss_sum(model) -> BatchSum:
    """`(variables, batch) ->` summed cross-entropy in evaluation mode.

    BatchNorm uses its running statistics, so that examples do not mix and a sum over
    clients is the sum over their pooled images.
    """

    def loss(variables, batch: Batch):
        logits = model.apply(variables, batch.images, train=False)
        return cross_entropy(logits, batch.labels, batch.mask)

    return loss


def gradient_sum(model) -> BatchSum:
    """`(variables, batch) ->` the gradient of `loss_sum`, params-shaped."""
    return gradient_of(loss_sum(model))


def gradient_of(loss: BatchSum) -> BatchSum:
    """`(variables, batch) ->` the gradient of a summed loss in the parameters."""

    def loss_of(params, state, batch: Batch):
        return loss({"params": params, **state}, batch)

    return lambda variables, batch: jax.grad(loss_of)(*split_params(variables), batch)


def limit_examples(data: FederatedDataset, max_examples: int) -> FederatedDataset:
    """At most `max_examples` images over all clients, 0 for no limit; same shapes.

    Every client gives the same share of its images, spread evenly over its row.
    """
    lengths = np.asarray(data.lengths)
    total = int(lengths.sum())
    if not max_examples or total <= max_examples:
        return data
    # The ends of cumulative shares: their differences add up to the limit exactly.
    ends = np.floor(np.cumsum(lengths) * (max_examples / total) + 1e-9).astype(np.int32)
    takes, old = np.diff(ends, prepend=0), np.asarray(data.rows)
    rows = np.zeros_like(old)
    for client, (length, take) in enumerate(zip(lengths, takes, strict=True)):
        # Distinct, because take <= length.
        rows[client, :take] = old[client, np.arange(take) * length // max(take, 1)]
    return data._replace(rows=jnp.asarray(rows), lengths=jnp.asarray(takes))
