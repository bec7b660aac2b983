"""How a server turns the updates of many clients into one, and which it accepts.

The weighted mean is FedAvg's; norm clipping (Sun et al. 2019), the coordinate median
and the trimmed mean (Yin et al. 2018) bound what a few hostile clients can do. All of
it is jnp, for use inside a round: `updates` is a pytree of arrays [M, ...], a row per
client, `weights` is [M], usually numbers of examples, and a rule gives a pytree of
arrays [...], zeros if every weight is zero. `check_statistics`, on the host, says what
is wrong with the class statistics that a client uploads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.errors import InputError, check_choice
from fuprune.errors import TooFewClientsError as TooFewClientsError

RULES = ("mean", "clipped_mean", "median", "trimmed_mean")


class Aggregation(NamedTuple):
    """What the server does with the updates of a round."""

    rule: str = "mean"  # one of `RULES`
    clip_norm: float = 10.0  # "clipped_mean" scales longer updates down to this
    trim: float = 0.2  # share that "trimmed_mean" cuts at each end, in [0, 0.5)
    max_update_norm: float = float("inf")  # a longer update is turned away
    keep_updates: bool = False  # put every client's update into `RoundInfo`
    # Simulated misbehaviour: (ClientUpdate, client id, key) -> ClientUpdate.
    fault: Callable[[Any, jax.Array, jax.Array], Any] | None = None


PLAIN_MEAN = Aggregation()


def check_aggregation(aggregation: Aggregation) -> None:
    """Raises ValueError, with what is allowed, unless every option makes sense."""
    rule, clip_norm, trim, max_norm, *_ = aggregation
    check_choice("rule", rule, RULES)
    if not clip_norm > 0:
        raise InputError(f"clip_norm is {clip_norm}, but a norm must be positive.")
    if not 0 <= trim < 0.5:
        raise InputError(
            f"trim is {trim}, but it must lie in [0, 0.5): a half cut at each end "
            "leaves nobody; use rule='median' for the limit."
        )
    if not max_norm > 0:
        raise InputError(
            f"max_update_norm is {max_norm}, but a norm must be positive; leave it out "
            "for no bound."
        )


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


def is_finite(tree):
    """Whether every number of a tree, such as a client's update, is finite; [] bool."""
    spoiled = [jnp.any(~jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    # XLA copies cheap scalars into every later use: here a sum over all arrays into the
    # choice for each array, 200,000 instructions for ResNet56. It does not copy roots.
    return jnp.sqrt(jnp.sum(jnp.stack(spoiled).astype(jnp.float32))) == 0


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


def clipped_mean(updates, weights, *, clip_norm):
    """Weighted mean of updates scaled down to an L2 norm of at most `clip_norm`.

    The norm is over the whole tree. No client can move the mean by more than
    `clip_norm` times its share of the weight.
    """
    norms = update_norms(updates)
    scales = jnp.where(norms > clip_norm, clip_norm / norms, 1.0)

    def clip(leaf):
        scaled = leaf.astype(_accumulator(leaf)) * _like(scales, leaf)
        return scaled.astype(_result(leaf))

    return weighted_mean(jax.tree.map(clip, updates), weights)


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


def trimmed_mean(updates, weights, *, trim=0.2):
    """Mean of every coordinate without its `trim` highest and `trim` lowest share.

    Of n clients of positive weight, `floor(trim * n)` are cut at each end, where `trim`
    is static and in [0, 0.5); the rest count alike, as in `coordinate_median`. It holds
    while the hostile clients are no more than those cut at one end.
    """
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


def aggregate(updates, weights, aggregation: Aggregation = PLAIN_MEAN):
    """Applies the rule to updates that were let in; others have weight zero."""
    check_aggregation(aggregation)
    if aggregation.rule == "mean":
        return weighted_mean(updates, weights)
    if aggregation.rule == "clipped_mean":
        return clipped_mean(updates, weights, clip_norm=aggregation.clip_norm)
    if aggregation.rule == "median":
        return coordinate_median(updates, weights)
    return trimmed_mean(updates, weights, trim=aggregation.trim)


def check_statistics(upload, template, client_size: int, *, clip=None) -> str | None:
    """Says what is wrong with class statistics that came from outside, or None.

    It judges what a client measured, before any privacy noise: totals are sums of
    ReLU'd activations, so none is negative; a class without examples has no totals;
    and no client counts more examples than it has. A masked upload (secure summation)
    cannot be judged at all, which is the price of not seeing it.

    Args:
        upload: `ClassActivations`: total {layer: [U, C_l]}, num_examples [U].
        template: the same form, arrays or `jax.ShapeDtypeStruct`.
        client_size: how many examples the client holds.
        clip: the L2 bound of one example's activations over all layers, if clients
            clip; a class row of n examples then has a norm of at most n * clip.

    Returns:
        None, or one reason; names that the client chose are quoted and cut short, so
        that a reason is safe to log.
    """
    for field in ("total", "num_examples"):
        if not hasattr(upload, field):
            return f"not class statistics: there is no {field}"
    parts = {"total": upload.total, "num_examples": upload.num_examples}
    expected = {"total": dict(template.total), "num_examples": template.num_examples}
    reason = check_tree(parts, expected) or _check_finite(parts)
    if reason is not None:
        return reason
    counts = np.asarray(upload.num_examples).astype(np.float64)
    if counts.min(initial=0) < 0:
        return f"num_examples has a negative count, {counts.min():.6g}"
    if np.any(counts != np.round(counts)):
        return "num_examples has a count that is not a whole number"
    if counts.sum() > client_size:
        return f"{counts.sum():.0f} examples are above the client's {client_size}"
    squares = np.zeros(counts.shape)
    for layer, leaf in upload.total.items():
        total = np.asarray(leaf).astype(np.float64)
        if total.min(initial=0) < 0:
            return f"total/{layer} has a negative sum, {total.min():.6g}"
        # Such sums would be divided by somebody else's count.
        if np.any(total[counts == 0]):
            return f"total/{layer} has sums for a class without examples"
        squares += np.sum(total**2, axis=1)
    # The client summed in float32, where rounding may pass the exact bound a little.
    if clip is not None and np.any(np.sqrt(squares) > 1.001 * clip * counts):
        return f"a class row's norm is above {clip:.6g} per example"
    return None


def check_tree(tree, template) -> str | None:
    """Says how a tree of arrays from outside differs from `template`, or None.

    Containers, names, shapes and types are compared, values are not looked at. The
    reason is safe to log, as in `check_statistics`.
    """
    try:
        structure = jax.tree.structure(tree)
        leaves = jax.tree_util.tree_leaves_with_path(tree)
    except (TypeError, ValueError, RecursionError) as error:
        return f"not a tree of arrays ({type(error).__name__})"
    expected = jax.tree_util.tree_leaves_with_path(template)
    if structure != jax.tree.structure(template):
        return _describe_structure(leaves, expected)
    for (path, leaf), (_, like) in zip(leaves, expected, strict=True):
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array):
            return f"{_name(path)} is a {_quote(type(leaf).__name__)}, not an array"
        if leaf.shape != like.shape:
            return f"{_name(path)} has shape {leaf.shape}, not {like.shape}"
        if leaf.dtype != like.dtype:
            return f"{_name(path)} has dtype {leaf.dtype}, not {like.dtype}"
    return None


def _check_finite(tree) -> str | None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        bad = int(np.sum(~np.isfinite(np.asarray(leaf))))
        if bad:
            return f"{_name(path)} has {bad} of {np.size(leaf)} NaN or Inf values"
    return None


def _describe_structure(leaves, expected) -> str:
    seen = {_name(path) for path, _ in leaves}
    wanted = {_name(path) for path, _ in expected}
    if wanted - seen:
        return f"tree structure: {min(wanted - seen)} is missing"
    if seen - wanted:
        return f"tree structure: {min(seen - wanted)} is not expected"
    return "tree structure: the containers are of another kind"


def _name(path) -> str:
    return _quote("/".join(map(_key_text, path))) if path else "the upload"


def _key_text(entry) -> str:
    try:
        return jax.tree_util.keystr((entry,), simple=True)
    except ValueError:  # Python refuses to print an int of thousands of digits
        return "<unprintable>"


def _quote(text: str) -> str:
    text = text if len(text) <= 80 else text[:77] + "..."
    return text if text.isprintable() else ascii(text)


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
