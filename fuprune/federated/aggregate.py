"""How a server turns the updates of many clients into one, and whom it lets in.

The weighted mean is FedAvg's; norm clipping (Sun et al. 2019), the coordinate median
and the trimmed mean (Yin et al. 2018) bound what a few hostile clients can do. The
first half is jnp on stacked updates, for use inside a round; the second half is the
server's door, on the host, for uploads that come from outside.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.errors import FupruneError, InputError

RULES = ("mean", "clipped_mean", "median", "trimmed_mean")


def update_norms(updates):
    """L2 norm of each client's whole update.

    Args:
        updates: pytree of arrays [M, ...], one row per client.

    Returns:
        [M] float32. Entries are scaled by the largest before they are squared, so a
        finite update has a finite norm wherever float32 can hold it.
    """
    rows = [
        jnp.reshape(leaf, (leaf.shape[0], -1)).astype(_accumulator(leaf))
        for leaf in jax.tree.leaves(updates)
    ]
    rows = [row for row in rows if row.shape[1]]
    if not rows:
        return jnp.zeros(_num_clients(updates), jnp.float32)
    largest = jnp.stack([jnp.max(jnp.abs(row), axis=1) for row in rows]).max(axis=0)
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    squares = [jnp.sum((row / unit[:, None]) ** 2, axis=1) for row in rows]
    return (unit * jnp.sqrt(sum(squares))).astype(jnp.float32)


def admit(updates, *, max_norm=None):
    """Which clients' updates are finite everywhere and of acceptable norm.

    Args:
        updates: pytree of arrays [M, ...].
        max_norm: largest L2 norm let in; None asks for finiteness only.

    Returns:
        [M] bool.
    """
    finite = [
        jnp.all(jnp.isfinite(jnp.reshape(leaf, (leaf.shape[0], -1))), axis=1)
        for leaf in jax.tree.leaves(updates)
    ]
    admitted = jnp.all(jnp.stack(finite), axis=0)
    if max_norm is None:
        return admitted
    return admitted & (update_norms(updates) <= max_norm)


def weighted_mean(updates, weights):
    """Mean of the updates, weighted: FedAvg's aggregation.

    A client of weight zero is ignored whatever it sent, NaN included.

    Args:
        updates: pytree of arrays [M, ...].
        weights: [M], usually the clients' numbers of examples.

    Returns:
        pytree of arrays [...]; zeros where every weight is zero.
    """
    weights = jnp.where(_live(weights), weights, 0).astype(jnp.float32)
    shares = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(jnp.float32).tiny)

    def mean(leaf):
        leaf_shares = shares.astype(_accumulator(leaf))
        safe = jnp.where(_like(weights > 0, leaf), leaf, 0).astype(leaf_shares.dtype)
        summed = jnp.tensordot(leaf_shares, safe, axes=1, precision="highest")
        return summed.astype(_result(leaf))

    return jax.tree.map(mean, updates)


def clipped_mean(updates, weights, *, clip_norm):
    """Weighted mean of updates scaled down to an L2 norm of at most `clip_norm`.

    No client can move the mean by more than `clip_norm` times its share of the weight.

    Args:
        updates: pytree of arrays [M, ...].
        weights: [M].
        clip_norm: the largest norm, over the whole tree, that one client keeps.

    Returns:
        pytree of arrays [...].
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

    Args:
        updates: pytree of arrays [M, ...].
        weights: [M]; only `weights > 0` matters.

    Returns:
        pytree of arrays [...]; zeros where every weight is zero.
    """
    live = _live(weights)
    voters = jnp.sum(live)
    low = jnp.maximum(voters - 1, 0) // 2
    high = voters // 2

    def median(leaf):
        ordered = _sorted_voters_first(leaf, live)
        middle = 0.5 * jnp.take(ordered, low, axis=0, mode="clip") + 0.5 * jnp.take(
            ordered, high, axis=0, mode="clip"
        )
        return jnp.where(voters > 0, middle, 0).astype(_result(leaf))

    return jax.tree.map(median, updates)


def trimmed_mean(updates, weights, *, trim=0.2):
    """Mean of every coordinate without its `trim` highest and `trim` lowest share.

    Of n clients of positive weight, `floor(trim * n)` are cut at each end; the rest
    count alike, as in `coordinate_median`. It holds while the hostile clients are no
    more than those cut at one end.

    Args:
        updates: pytree of arrays [M, ...].
        weights: [M]; only `weights > 0` matters.
        trim: static share cut at each end, in [0, 0.5).

    Returns:
        pytree of arrays [...]; zeros where every weight is zero.
    """
    if not 0 <= trim < 0.5:
        raise InputError(
            f"trim is {trim}, but it must lie in [0, 0.5): a half cut at each end "
            "leaves nobody; use rule='median' for the limit."
        )
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


def aggregate(
    updates, weights, *, rule="mean", max_norm=None, clip_norm=None, trim=0.2
):
    """Turns away what `admit` refuses, then applies a rule to the rest.

    Args:
        updates: pytree of arrays [M, ...].
        weights: [M].
        rule: static, one of `RULES`.
        max_norm: largest norm `admit` lets in; None asks for finiteness only.
        clip_norm: for "clipped_mean".
        trim: for "trimmed_mean", static.

    Returns:
        (pytree of arrays [...], [M] bool: who was admitted).
    """
    check_rule(rule, clip_norm=clip_norm)
    admitted = admit(updates, max_norm=max_norm)
    weights = jnp.where(admitted, weights, 0)
    if rule == "mean":
        return weighted_mean(updates, weights), admitted
    if rule == "clipped_mean":
        return clipped_mean(updates, weights, clip_norm=clip_norm), admitted
    if rule == "median":
        return coordinate_median(updates, weights), admitted
    return trimmed_mean(updates, weights, trim=trim), admitted


def check_rule(rule, *, clip_norm=None):
    """Raises ValueError unless `rule` is known and has what it needs."""
    if rule not in RULES:
        raise InputError(f"rule is {rule!r}; choose one of {', '.join(RULES)}.")
    if rule == "clipped_mean" and clip_norm is None:
        raise InputError(
            "rule 'clipped_mean' needs clip_norm, which is None; give it a norm that "
            "an honest update rarely passes."
        )


class Admission(NamedTuple):
    """Who came in through the server's door, and why the others did not."""

    accepted: tuple[int, ...]
    rejected: dict[int, str]  # client id -> reason


class TooFewClientsError(FupruneError):
    """Fewer clients remain than the round, or the protocol, needs.

    Attributes:
        admission: who was accepted and who was not, for the log.
    """

    def __init__(self, message, admission=None):
        super().__init__(message)
        self.admission = admission


class Statistics(Protocol):
    """What `check_statistics` reads: `ClassActivations` has this form."""

    @property
    def total(self) -> Mapping[str, Any]:
        """Layer -> [U, C_l] sums."""
        ...

    @property
    def num_examples(self) -> Any:
        """[U] counts."""
        ...


def check_update(update, template, *, max_norm=None) -> str | None:
    """Says what is wrong with an update that came from outside, or None.

    Args:
        update: what the client sent: nothing about it is assumed.
        template: pytree of arrays or `jax.ShapeDtypeStruct`, what it should be like.
        max_norm: largest L2 norm over the whole tree; None for no bound.

    Returns:
        None, or one reason; names that the client chose are quoted and cut short, so
        that a reason is safe to log.
    """
    reason = _check_form(update, template)
    if reason is not None:
        return reason
    square = 0.0
    for path, leaf in jax.tree_util.tree_leaves_with_path(update):
        values = np.asarray(leaf)
        if not np.issubdtype(values.dtype, np.integer):
            values = values.astype(np.float64)
        if not np.all(np.isfinite(values)):
            return f"{_name(path)} has {_count_bad(values)} NaN or Inf values"
        with np.errstate(over="ignore"):
            square += float(np.sum(np.square(values.astype(np.float64))))
    norm = float(np.sqrt(square))
    if max_norm is not None and not norm <= max_norm:
        return f"norm {norm:.6g} is above {max_norm:.6g}"
    return None


def check_statistics(
    upload: Statistics, template: Statistics, client_size: int, *, clip=None
) -> str | None:
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
        None or one reason.
    """
    for field in ("total", "num_examples"):
        if not hasattr(upload, field):
            return f"not class statistics: there is no {field}"
    parts = {"total": upload.total, "num_examples": upload.num_examples}
    reason = check_update(
        parts, {"total": dict(template.total), "num_examples": template.num_examples}
    )
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
        if np.any(total[counts == 0]):
            return f"total/{layer} has sums for a class without examples"
        squares += np.sum(total**2, axis=1)
    # The client summed in float32, where rounding may pass the exact bound a little.
    if clip is not None and np.any(np.sqrt(squares) > 1.001 * clip * counts):
        return f"a class row's norm is above {clip:.6g} an example"
    return None


def aggregate_uploads(
    uploads: Mapping[int, tuple[Any, int]],
    template,
    *,
    rule="mean",
    min_participants=1,
    max_norm=None,
    clip_norm=None,
    trim=0.2,
    client_sizes: Mapping[int, int] | None = None,
):
    """Checks uploads that came from outside and aggregates those that pass.

    The result does not depend on the order of arrival, and the rejected weigh
    nothing: the weights are renormalised over the rest.

    Args:
        uploads: client id -> (update, number of examples).
        template: pytree of arrays or `jax.ShapeDtypeStruct`, one update's form.
        rule: one of `RULES`.
        min_participants: how many clients with examples the round needs.
        max_norm: largest norm let in; None for no bound.
        clip_norm: for "clipped_mean".
        trim: for "trimmed_mean".
        client_sizes: client id -> how many examples it holds; a client that claims
            more, or is not listed, is rejected. None believes the claims.

    Returns:
        (update, `Admission`).

    Raises:
        TooFewClientsError: fewer than `min_participants` remain; it carries the
            `Admission`, so that the caller can log it and ask others.
    """
    check_rule(rule, clip_norm=clip_norm)
    clients = sorted(uploads)
    nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)
    rejected, rows, weights = {}, [], []
    for client in clients:
        reason = _check_upload(uploads[client], template, max_norm=max_norm)
        if reason is None and client_sizes is not None:
            reason = _check_claim(client, uploads[client][1], client_sizes)
        if reason is not None:
            rejected[client] = reason
        # A rejected client keeps its place with zeros, so that a cohort of one size
        # is one compilation however many are turned away.
        rows.append(nothing if reason is not None else uploads[client][0])
        weights.append(0 if reason is not None else uploads[client][1])
    admission = Admission(tuple(c for c in clients if c not in rejected), rejected)
    participants = sum(weight > 0 for weight in weights)
    if participants < min_participants:
        raise TooFewClientsError(
            f"{participants} of {len(clients)} clients remain "
            f"({len(rejected)} rejected) and {min_participants} are needed; sample "
            "other clients or lower min_participants.",
            admission,
        )
    if not clients:
        return jax.tree.map(jnp.asarray, nothing), admission
    stacked = jax.tree.map(
        lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows
    )
    mean, _ = _aggregate(
        stacked,
        np.asarray(weights, np.float32),
        rule=rule,
        clip_norm=clip_norm,
        trim=trim,
    )
    return mean, admission


_aggregate = jax.jit(aggregate, static_argnames=("rule", "trim"))


def _check_upload(upload, template, *, max_norm) -> str | None:
    if not (isinstance(upload, tuple) and len(upload) == 2):
        return "not a pair of an update and its number of examples"
    update, num_examples = upload
    if isinstance(num_examples, bool | np.bool_) or not isinstance(
        num_examples, int | np.integer
    ):
        kind = _quote(type(num_examples).__name__)
        return f"number of examples is a {kind}, not a whole number"
    if not 0 <= num_examples < 2**31:
        return "number of examples is outside [0, 2^31)"
    return check_update(update, template, max_norm=max_norm)


def _check_claim(client, num_examples, client_sizes) -> str | None:
    if client not in client_sizes:
        return "not a client of this federation"
    if num_examples > client_sizes[client]:
        return f"{num_examples} examples are above the client's {client_sizes[client]}"
    return None


def _check_form(tree, template) -> str | None:
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


def _describe_structure(leaves, expected) -> str:
    seen = {_name(path) for path, _ in leaves}
    wanted = {_name(path) for path, _ in expected}
    if wanted - seen:
        return f"tree structure: {min(wanted - seen)} is missing"
    if seen - wanted:
        return f"tree structure: {min(seen - wanted)} is not expected"
    return "tree structure: the containers are of another kind"


def _name(path) -> str:
    return _quote("/".join(map(_key_text, path))) if path else "the update"


def _key_text(entry) -> str:
    try:
        return jax.tree_util.keystr((entry,), simple=True)
    except ValueError:  # Python refuses to print an int of thousands of digits
        return "<unprintable>"


def _quote(text: str) -> str:
    text = text if len(text) <= 80 else text[:77] + "..."
    return text if text.isprintable() else ascii(text)


def _count_bad(values) -> str:
    return f"{int(np.sum(~np.isfinite(values)))} of {values.size}"


def _live(weights):
    return (weights > 0) & jnp.isfinite(weights)


def _sorted_voters_first(leaf, live):
    largest = jnp.asarray(jnp.inf, _accumulator(leaf))
    return jnp.sort(jnp.where(_like(live, leaf), leaf, largest), axis=0)


def _like(per_client, leaf):
    return jnp.reshape(per_client, per_client.shape + (1,) * (leaf.ndim - 1))


def _accumulator(leaf):
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _result(leaf):
    return leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.inexact) else jnp.float32


def _num_clients(updates) -> int:
    leaves = jax.tree.leaves(updates)
    return leaves[0].shape[0] if leaves else 0
