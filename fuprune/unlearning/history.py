"""What each client added to the model in each round, kept within a bound of bytes.

Amnesiac unlearning needs it. The price is one copy of the parameters for every client
of every round, so the store is bounded: the oldest rounds go first, and how many went
is remembered. Entries live in host memory.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fuprune.data.federated import Cohort
from fuprune.errors import InputError
from fuprune.federated.server import RoundInfo
from fuprune.unlearning.protocol import tree_bytes


class Entry(NamedTuple):
    """One client's part in one round."""

    round_number: int
    client: int
    share: float  # of the client in the round's mean
    classes: tuple[int, ...]  # held by the client, increasing
    contribution: Any  # params-shaped NumPy, what was added to the parameters


class UpdateHistory(NamedTuple):
    """Contributions in the order of rounds; made by `empty`, grown by `record`."""

    max_bytes: int
    entries: tuple[Entry, ...] = ()
    used_bytes: int = 0
    dropped: int = 0  # entries given up for want of room, all older than those kept


def empty(max_bytes: int) -> UpdateHistory:
    """A history with room for `max_bytes` of parameters."""
    if max_bytes < 1:
        raise InputError(f"max_bytes is {max_bytes}, but must be positive.")
    return UpdateHistory(int(max_bytes))


def record(
    history: UpdateHistory,
    info: RoundInfo,
    cohort: Cohort,
    weights=None,
    *,
    round_number: int | None = None,
    scale: float = 1.0,
) -> UpdateHistory:
    """The history with one more round in it.

    Args:
      history: of the rounds before.
      info: of the round, from an algorithm made with `keep_updates=True`.
      cohort: that took part.
      weights: [M] of the clients in the mean; by default the number of their examples,
        and 0 for those turned away.
      round_number: by default one more than the last.
      scale: what the server multiplies the mean update by before it adds it: 1 for
        FedAvg as it is, the server's learning rate otherwise, and minus the learning
        rate for FedSGD, whose updates are gradients. With momentum or an adaptive
        server optimiser no number is exact.
    """
    if info.updates is None:
        raise InputError(
            "the round kept no updates to record; make the algorithm with "
            "keep_updates=True."
        )
    if round_number is None:
        round_number = history.entries[-1].round_number + 1 if history.entries else 1
    if weights is None:
        weights = jnp.where(info.rejected, 0, cohort.lengths)
    updates, weights, clients = _to_host((info.updates, weights, cohort.clients))
    held = _classes_held(cohort)
    total = float(np.sum(weights))
    new = []
    for i, weight in enumerate(weights):
        if weight > 0:
            share = float(weight) / total
            contribution = jax.tree.map(
                lambda x, i=i, share=share: np.asarray(scale * share * x[i], x.dtype),
                updates,
            )
            new.append(
                Entry(round_number, int(clients[i]), share, held[i], contribution)
            )
    return _fit_in(history, new)


def _to_host(tree):
    """The tree in this process's memory, also where devices of others hold a part."""
    here = (
        not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        for x in jax.tree.leaves(tree)
    )
    if all(here):
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def _classes_held(cohort: Cohort) -> list[tuple[int, ...]]:
    labels, rows, lengths = jax.device_get((cohort.labels, cohort.rows, cohort.lengths))
    return [
        tuple(int(c) for c in np.unique(labels[row[:length]]))
        for row, length in zip(rows, lengths, strict=True)
    ]


def _fit_in(history: UpdateHistory, new: list[Entry]) -> UpdateHistory:
    entries = [*history.entries, *new]
    used = history.used_bytes + sum(tree_bytes(e.contribution) for e in new)
    first = 0
    # A round that is only partly there could not be undone: whole rounds go.
    while used > history.max_bytes and first < len(entries):
        oldest = entries[first].round_number
        while first < len(entries) and entries[first].round_number == oldest:
            used -= tree_bytes(entries[first].contribution)
            first += 1
    return history._replace(
        entries=tuple(entries[first:]), used_bytes=used, dropped=history.dropped + first
    )


def as_arrays(history: UpdateHistory) -> dict[str, np.ndarray]:
    """The history as named arrays, for a checkpoint; `from_arrays` reads it back."""
    entries = history.entries
    width = max((len(e.classes) for e in entries), default=0)
    classes = np.full((len(entries), width), -1, np.int32)
    for i, entry in enumerate(entries):
        classes[i, : len(entry.classes)] = entry.classes
    arrays = {
        "bounds": np.array([history.max_bytes, history.dropped], np.int64),
        "rounds": np.array([e.round_number for e in entries], np.int32),
        "clients": np.array([e.client for e in entries], np.int32),
        "shares": np.array([e.share for e in entries], np.float64),
        "classes": classes,
    }
    if entries:
        stacked = jax.tree.map(
            lambda *leaves: np.stack(leaves), *(e.contribution for e in entries)
        )
        leaves = jax.tree.leaves(stacked)
        arrays.update({f"leaf_{i}": leaf for i, leaf in enumerate(leaves)})
    return arrays


def from_arrays(arrays: dict[str, np.ndarray], params: Any) -> UpdateHistory:
    """The inverse of `as_arrays`; `params` gives the tree's structure."""
    shapes, treedef = jax.tree.flatten(jax.tree.map(np.shape, params), _is_shape)
    number = len(arrays["rounds"])
    for j, shape in enumerate(shapes if number else ()):
        seen = np.shape(arrays.get(f"leaf_{j}", ()))
        if seen != (number, *shape):
            raise InputError(
                f"the recorded updates hold an array of shape {seen} where the model "
                f"needs {(number, *shape)}; they are of another model or damaged."
            )
    max_bytes, dropped = (int(x) for x in arrays["bounds"])
    entries = []
    for i, round_number in enumerate(arrays["rounds"]):
        leaves = [arrays[f"leaf_{j}"][i] for j in range(treedef.num_leaves)]
        entries.append(
            Entry(
                int(round_number),
                int(arrays["clients"][i]),
                float(arrays["shares"][i]),
                tuple(int(c) for c in arrays["classes"][i] if c >= 0),
                jax.tree.unflatten(treedef, leaves),
            )
        )
    used = sum(tree_bytes(e.contribution) for e in entries)
    return UpdateHistory(max_bytes, tuple(entries), used, dropped)


def _is_shape(node) -> bool:
    return isinstance(node, tuple)
