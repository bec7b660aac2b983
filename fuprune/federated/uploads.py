"""What happens to a client's upload the moment it arrives: checked, weighed, summed.

An upload that is not finite, too long or claims more examples than the client has is
turned away with weight zero, and the round goes on with the rest. `check_tree` judges
the form of what comes from another process.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.federated.aggregate import update_norms
from fuprune.federated.client import ClientUpdate
from fuprune.federated.program import Client, Receive


class Upload(NamedTuple):
    """What is kept of each client, stacked over the cohort."""

    weight: jax.Array  # [M] examples, 0 if turned away
    accepted: jax.Array  # [M] bool
    update: Any  # leaves [M, ...], or () if nothing needs them
    batch_stats: Any  # leaves [M, ...], or () if nothing needs them


def make_receive(
    add_up: bool, keep_updates: bool, max_update_norm: float = math.inf
) -> Receive:
    """`receive(shared, client, sent) -> (total, Upload)` of a `ClientUpdate`.

    The total is a `ClientUpdate` as well: with `add_up` a sum over the cohort in which
    updates and statistics are weighted by examples; without, they are kept by client
    for a rule that needs all of them at once, and are () in the total.
    """

    def receive(shared, client, sent):
        accepted = _is_acceptable(sent, client, max_update_norm)
        # Zeros, because weight zero does not silence a NaN.
        clean = jax.tree.map(lambda x: jnp.where(accepted, x, jnp.zeros_like(x)), sent)
        weight = clean.num_examples

        def weighted(tree):
            return jax.tree.map(lambda x: weight * x, tree) if add_up else ()

        total = clean._replace(
            update=weighted(clean.update), batch_stats=weighted(clean.batch_stats)
        )
        # Clients that start from statistics of their own get theirs back.
        own_statistics = shared.context.client_stats is not None
        return total, Upload(
            weight,
            accepted,
            clean.update if keep_updates or not add_up else (),
            clean.batch_stats if own_statistics or not add_up else (),
        )

    return receive


def _is_acceptable(sent: ClientUpdate, client: Client, max_norm: float):
    """Finite everywhere, norm within bounds, no more examples than the client has."""
    # Counts as well: those that are no numbers would spoil the round's own.
    finite = is_finite(sent)
    # A bound that turns nobody away is not worth the norm of every array.
    if math.isfinite(max_norm):
        alone = jax.tree.map(lambda x: x[None], sent.update)
        finite = finite & (update_norms(alone)[0] <= max_norm)
    honest = (sent.num_examples >= 0) & (sent.num_examples <= client.length)
    return finite & honest


def is_finite(tree):
    """Whether every number of a tree, such as a client's update, is finite; [] bool."""
    spoiled = [jnp.any(~jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    # XLA copies cheap scalars into every later use: here a sum over all arrays into the
    # choice for each array, 200,000 instructions for ResNet56. It does not copy roots.
    return jnp.sqrt(jnp.sum(jnp.stack(spoiled).astype(jnp.float32))) == 0


def check_tree(tree, template) -> str | None:
    """Says how a tree of arrays from outside differs from `template`, or None.

    Containers, names, shapes and types are compared, values are not looked at. The
    reason is safe to log: names that the client chose are quoted and cut short.
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
            return f"{leaf_name(path)} is a {_quote(type(leaf).__name__)}, not an array"
        if leaf.shape != like.shape:
            return f"{leaf_name(path)} has shape {leaf.shape}, not {like.shape}"
        if leaf.dtype != like.dtype:
            return f"{leaf_name(path)} has dtype {leaf.dtype}, not {like.dtype}"
    return None


def _describe_structure(leaves, expected) -> str:
    seen = {leaf_name(path) for path, _ in leaves}
    wanted = {leaf_name(path) for path, _ in expected}
    if wanted - seen:
        return f"tree structure: {min(wanted - seen)} is missing"
    if seen - wanted:
        return f"tree structure: {min(seen - wanted)} is not expected"
    return "tree structure: the containers are of another kind"


def leaf_name(path) -> str:
    """A leaf by its path, safe to log."""
    return _quote("/".join(map(_key_text, path))) if path else "the upload"


def _key_text(entry) -> str:
    try:
        return jax.tree_util.keystr((entry,), simple=True)
    except ValueError:  # Python refuses to print an int of thousands of digits
        return "<unprintable>"


def _quote(text: str) -> str:
    text = text if len(text) <= 80 else text[:77] + "..."
    return text if text.isprintable() else ascii(text)
