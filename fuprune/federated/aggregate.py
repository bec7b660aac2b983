"""How a server makes one update of many clients' updates.

A rule is a function `(updates, weights) -> update`: `updates` is a pytree of arrays
[M, ...], a row per client, `weights` is [M], usually numbers of examples, and the
result is a pytree of arrays [...], zeros if every weight is zero. The weighted mean is
FedAvg's; norm clipping (Sun et al. 2019), the coordinate median and the trimmed mean
(Yin et al. 2018) bound what a few hostile clients can do. All of it is jnp, for use
inside a round.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fuprune.errors import InputError

Rule = Callable[[Any, jax.Array], Any]


def update_norms(updates):
    """L2 norm of each client's whole update, [M] float32.

    Entries are scaled by the largest before they are squared, so a finite update has a
    finite norm wherever float32 can hold it.
    """
    rows = [
        jnp.reshape(leaf, (leaf.shape[0], -1)).astype(_accumulator(leaf))
        for leaf in jax.tree.leaves(updates)
    ]
    # An array may be empty, as the kernel of a layer without channels is.
    peaks = [jnp.max(jnp.abs(row), axis=1, initial=0) for row in rows]
    largest = jnp.stack(peaks).max(axis=0)
    # By 1 where there is nothing to scale by: zeros have norm 0, and an infinity or NaN
    # stays one, which is within no finite bound.
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    squares = [jnp.sum((row / unit[:, None]) ** 2, axis=1) for row in rows]
    return (unit * jnp.sqrt(sum(squares))).astype(jnp.float32)


def weighted_mean(updates, weights):
    """Mean of the updates, weighted: FedAvg's aggregation.

    A client of weight zero is ignored whatever it sent, NaN included.
    """
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
    """Weighted mean of updates scaled down to an L2 norm of at most `clip_norm`.

    The norm is over the whole tree. No client can move the mean by more than
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
    """Median of every coordinate over the clients of positive weight.

    One client, one vote: the size of a weight is ignored, since a number of examples
    is a claim that a hostile client is free to make. For an even number of clients it
    is the mean of the middle two. It holds against fewer than half of the clients.
    """
    live = _live(weights)
    voters = jnp.sum(live)
    low = jnp.maximum(voters - 1, 0) // 2
    high = voters // 2

    def median(leaf):
        ordered = _sorted_voters_first(leaf, live)
        # Voters are sorted to the front, so ranks among them are ranks in the array.
        below = jnp.take(ordered, low, axis=0, mode="clip")
        above = jnp.take(ordered, high, axis=0, mode="clip")
        # Halved before they are added, so that large values do not overflow.
        middle = 0.5 * below + 0.5 * above
        return jnp.where(voters > 0, middle, 0).astype(_result(leaf))

    return jax.tree.map(median, updates)


def trimmed_mean(trim: float = 0.2) -> Rule:
    """Mean of every coordinate without its `trim` highest and `trim` lowest share.

    Of n clients of positive weight, `floor(trim * n)` are cut at each end; the rest
    count alike, as in `coordinate_median`. It holds while the hostile clients are no
    more than those cut at one end.
    """
    if not 0 <= trim < 0.5:
        raise InputError(
            f"trim is {trim}, but it must lie in [0, 0.5): a half cut at each end "
            "leaves nobody; use coordinate_median for the limit."
        )

    def rule(updates, weights):
        live = _live(weights)
        voters = jnp.sum(live)
        # floor(trim * n) for every possible n is worked out on the host: in float32,
        # 0.29 * 100 may fall on either side of 29.
        cuts = [int(trim * n + 1e-9) for n in range(weights.shape[0] + 1)]
        cut = jnp.asarray(cuts, jnp.int32)[voters]

        def mean(leaf):
            ordered = _sorted_voters_first(leaf, live)
            rank = _like(jnp.arange(leaf.shape[0]), leaf)
            kept = jnp.where((rank >= cut) & (rank < voters - cut), ordered, 0)
            summed = jnp.sum(kept, axis=0, dtype=_accumulator(leaf))
            return (summed / jnp.maximum(voters - 2 * cut, 1)).astype(_result(leaf))

        return jax.tree.map(mean, updates)

    return rule


# Rules by the name that a config has for them, made from an object with their options,
# such as the config's section `train`.
RULES: Mapping[str, Callable[[Any], Rule]] = {
    "mean": lambda options: weighted_mean,
    "clipped_mean": lambda options: clipped_mean(options.clip_norm),
    "median": lambda options: coordinate_median,
    "trimmed_mean": lambda options: trimmed_mean(options.trim),
}


def _live(weights):
    return (weights > 0) & jnp.isfinite(weights)


def _sorted_voters_first(leaf, live):
    # Infinity sorts behind every finite update, and voters are finite.
    largest = jnp.asarray(jnp.inf, _accumulator(leaf))
    return jnp.sort(jnp.where(_like(live, leaf), leaf, largest), axis=0)


def _like(per_client, leaf):
    return jnp.reshape(per_client, per_client.shape + (1,) * (leaf.ndim - 1))


def _accumulator(leaf):
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _result(leaf):
    return leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.inexact) else jnp.float32
