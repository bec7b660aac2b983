"""How a server makes one update of many clients' updates.

A rule is a function `(updates, weights) -> update`: `updates` is a pytree of arrays
[M, ...], a row per client, `weights` is [M], usually numbers of examples, and the
result is a pytree of arrays [...], zeros if every weight is zero. A client of weight
zero is ignored whatever it sent, NaN included.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fuprune.errors import InputError

Rule = Callable[[Any, jax.Array], Any]


def update_norms(updates):
    """L2 norm of each client's whole update, [M] float32."""
    squares = [
        jnp.sum(jnp.square(leaf.astype(_accumulator(leaf))), axis=range(1, leaf.ndim))
        for leaf in jax.tree.leaves(updates)
    ]
    return jnp.sqrt(sum(squares)).astype(jnp.float32)


def weighted_mean(updates, weights):
    """Mean of the updates, weighted: FedAvg's aggregation."""
    weights = jnp.where(_live(weights), weights, 0).astype(jnp.float32)
    shares = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(jnp.float32).tiny)

    def mean(leaf):
        leaf_shares = shares.astype(_accumulator(leaf))
        # Zero times NaN is NaN, so a weight of zero alone would not keep it out.
        safe = jnp.where(_like(weights > 0, leaf), leaf, 0).astype(leaf_shares.dtype)
        summed = jnp.tensordot(leaf_shares, safe, axes=1, precision="highest")
        return summed.astype(_result(leaf))

    return jax.tree.map(mean, updates)


def clipped_mean(clip_norm: float = 10.0) -> Rule:
    """Weighted mean of updates clipped to `clip_norm` (Sun et al. 2019).

    The norm is that of the whole tree. No client can move the mean by more than
    `clip_norm` times its share of the weight.
    """
    if not clip_norm > 0:
        raise InputError(f"clip_norm is {clip_norm}, but a norm must be positive.")

    def rule(updates, weights):
        norms = update_norms(updates)
        scales = jnp.where(norms > clip_norm, clip_norm / norms, 1.0)

        def clip(leaf):
            scaled = leaf.astype(_accumulator(leaf)) * _like(scales, leaf)
            return scaled.astype(_result(leaf))

        return weighted_mean(jax.tree.map(clip, updates), weights)

    return rule


def coordinate_median(updates, weights):
    """Median of every coordinate over the clients of positive weight (Yin et al. 2018).

    One client, one vote: a number of examples is a claim that a hostile client is free
    to make. It holds against fewer than half of the clients.
    """
    cuts = [max(n - 1, 0) // 2 for n in range(weights.shape[0] + 1)]
    return _mean_of_middle(updates, weights, cuts)


def trimmed_mean(trim: float = 0.2) -> Rule:
    """Mean of every coordinate without its `trim` highest and `trim` lowest share.

    Of n clients of positive weight, `floor(trim * n)` are cut at each end; the rest
    count alike, as in `coordinate_median`. It holds while the hostile clients are no
    more than those cut at one end (Yin et al. 2018).
    """
    if not 0 <= trim < 0.5:
        raise InputError(
            f"trim is {trim}, but it must lie in [0, 0.5): a half cut at each end "
            "leaves nobody; use coordinate_median for the limit."
        )

    def rule(updates, weights):
        # Worked out on the host: in float32, 0.29 * 100 may fall on either side of 29.
        cuts = [int(trim * n + 1e-9) for n in range(weights.shape[0] + 1)]
        return _mean_of_middle(updates, weights, cuts)

    return rule


def _mean_of_middle(updates, weights, cuts: list[int]):
    """Mean of each coordinate without the `cuts[n]` lowest and highest of n voters'."""
    live = _live(weights)
    voters = jnp.sum(live)
    cut = jnp.asarray(cuts, jnp.int32)[voters]

    def mean(leaf):
        # Infinity sorts behind every finite update, and voters are finite.
        largest = jnp.asarray(jnp.inf, _accumulator(leaf))
        ordered = jnp.sort(jnp.where(_like(live, leaf), leaf, largest), axis=0)
        rank = _like(jnp.arange(leaf.shape[0]), leaf)
        kept = jnp.where((rank >= cut) & (rank < voters - cut), ordered, 0)
        # Divided before they are added, so that large values do not overflow.
        shares = kept / jnp.maximum(voters - 2 * cut, 1)
        return jnp.sum(shares, axis=0).astype(_result(leaf))

    return jax.tree.map(mean, updates)


# Rules by the name that a config has for them, made from its section `train`.
RULES: Mapping[str, Callable[[Any], Rule]] = {
    "mean": lambda options: weighted_mean,
    "clipped_mean": lambda options: clipped_mean(options.clip_norm),
    "median": lambda options: coordinate_median,
    "trimmed_mean": lambda options: trimmed_mean(options.trim),
}


def _live(weights):
    return (weights > 0) & jnp.isfinite(weights)


def _like(per_client, leaf):
    return jnp.reshape(per_client, per_client.shape + (1,) * (leaf.ndim - 1))


def _accumulator(leaf):
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _result(leaf):
    return leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.inexact) else jnp.float32
