"""What each client added to the model in each round, kept within a bound of bytes.

Amnesiac unlearning needs it. The price is one copy of the parameters for every client
of every round, so the store is bounded: the oldest rounds go first, and how many went
is remembered. Entries live in host memory. A client's part is recorded as the server
used it, and beside it how the server made a step of the parts: where that is linear,
the effect of a part on the final model can be computed exactly.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from fuprune.data.federated import Cohort
from fuprune.errors import InputError
from fuprune.federated.aggregate import update_norms
from fuprune.federated.server import RoundInfo
from fuprune.unlearning.protocol import tree_bytes


class ServerStep(NamedTuple):
    """How the server makes a step of the mean update d, with parameters w.

    With m the momentum's trace: d' = d + weight_decay * w, m <- d' + momentum * m, and
    w <- w + scale * m (Nesterov: w + scale * (d' + momentum * m)), as `optax.sgd`.
    """

    # 1 for FedAvg as it is, the server's learning rate otherwise, and minus it for
    # FedSGD, whose updates are gradients; a function of the step's number, from 0, if
    # there is a schedule.
    scale: float | Callable[[int], Any] = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = float("inf")  # of each update, before the mean
    obstacle: str = ""  # what makes the step nonlinear, such as "train.optimizer=adam"

    def scale_at(self, step: int) -> float:
        """The scale of one step, counted from 0."""
        return float(self.scale(step) if callable(self.scale) else self.scale)


class Entry(NamedTuple):
    """One client's part in one round."""

    round_number: int
    client: int
    share: float  # of the client in the round's mean
    classes: tuple[int, ...]  # held by the client, increasing
    contribution: Any  # params-shaped NumPy: share times update, a term of the mean
    scale: float  # of the server's step


class UpdateHistory(NamedTuple):
    """Contributions in the order of rounds; made by `empty`, grown by `record`."""

    max_bytes: int
    entries: tuple[Entry, ...] = ()
    used_bytes: int = 0
    dropped: int = 0  # entries given up for want of room, all older than those kept
    steps: int = 0  # that the server took, the dropped ones too
    # How it steps; its scale and its clipping are in the entries.
    server: ServerStep = ServerStep()


def empty(max_bytes: int) -> UpdateHistory:
    """A history with room for `max_bytes` of parameters."""
    if max_bytes < 1:
        raise InputError(f"max_bytes is {max_bytes}, but must be positive.")
    return UpdateHistory(int(max_bytes))


def record(
    history: UpdateHistory,
    info: RoundInfo,
    cohort: Cohort,
    *,
    round_number: int | None = None,
    server: ServerStep | None = None,
) -> UpdateHistory:
    """The history with one more round in it.

    `info` is of an algorithm made with `keep_updates=True`. The clients' weights [M] in
    the mean are those that the round used, which in FedSGD are the images drawn, not
    the images held. The round's number is by default one more than the last, and the
    server, which steps alike in every round, adds the mean.
    """
    if info.updates is None or info.weights is None:
        raise InputError(
            "the round kept no updates to record; make the algorithm with "
            "keep_updates=True."
        )
    server = server or ServerStep()
    if round_number is None:
        round_number = history.entries[-1].round_number + 1 if history.entries else 1
    factors = np.ones(len(info.weights))
    if np.isfinite(server.clip_norm):
        norms = np.asarray(to_host(update_norms(info.updates)), np.float64)
        factors = server.clip_norm / np.maximum(norms, server.clip_norm)
    updates, weights, clients = to_host((info.updates, info.weights, cohort.clients))
    held = _classes_held(cohort)
    total = float(np.sum(weights))
    scale = server.scale_at(history.steps)

    def entry(i: int) -> Entry:
        share = float(weights[i]) / total
        part = share * factors[i]
        contribution = jax.tree.map(lambda x: np.asarray(part * x[i], x.dtype), updates)
        return Entry(round_number, int(clients[i]), share, held[i], contribution, scale)

    new = [entry(i) for i in np.flatnonzero(np.asarray(weights) > 0).tolist()]
    history = history._replace(
        # A round in which nobody had weight leaves the server where it was.
        steps=history.steps + bool(new),
        server=server._replace(scale=1.0, clip_norm=np.inf),
    )
    return _fit_in(history, new)


def effect_of(history: UpdateHistory, change) -> Any:
    """What the final parameters gain if each round's mean update is changed.

    The server's step is linear in mean update, parameters and momentum, so that the
    change follows the same recursion from zero. Float64: hundreds of differences add
    up, and in float32 their rounding would too. None if no round changes.

    Args:
      history: of the training, whose server has no `obstacle`.
      change: entries of one round, a tuple -> tree like the parameters, or None.
    """
    server, gain, trace = history.server, None, None
    for _, of_round in itertools.groupby(history.entries, lambda e: e.round_number):
        entries = tuple(of_round)
        added = change(entries)
        # Before the first change the two trainings are the same, momentum included.
        if gain is None and added is None:
            continue
        if gain is None:
            gain = jax.tree.map(lambda x: np.zeros(x.shape), entries[0].contribution)
            trace = gain
        # The recursion of `ServerStep`, with the difference of the two trainings in
        # place of w; rounds without a change still carry it on.
        decayed = jax.tree.map(lambda x: server.weight_decay * x, gain)
        if added is not None:
            decayed = jax.tree.map(np.add, decayed, added)

        def accumulate(d, m):
            return d + server.momentum * m

        trace = jax.tree.map(accumulate, decayed, trace)
        ahead = jax.tree.map(accumulate, decayed, trace) if server.nesterov else trace
        gain = jax.tree.map(lambda w, u, s=entries[0].scale: w + s * u, gain, ahead)
    return gain


def to_host(tree):
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
    without = tuple(entry._replace(contribution=None) for entry in history.entries)
    # NamedTuples become lists in the order of their fields.
    arrays = {"facts": np.array(json.dumps(history._replace(entries=without)))}
    parts = [jax.tree.leaves(entry.contribution) for entry in history.entries]
    for i, leaves in enumerate(zip(*parts, strict=True)):
        arrays[f"leaf_{i}"] = np.stack(leaves)
    return arrays


def from_arrays(arrays: dict[str, np.ndarray], params: Any) -> UpdateHistory:
    """The inverse of `as_arrays`; `params` gives the tree's structure."""
    if "facts" not in arrays:
        raise InputError("the recorded updates say nothing of themselves; train again.")
    history = UpdateHistory(*json.loads(str(arrays["facts"])))
    of_model, treedef = jax.tree.flatten(params)
    number, stacked = len(history.entries), []
    for j, leaf in enumerate(of_model if number else ()):
        stacked.append(arrays.get(f"leaf_{j}", np.empty(0)))
        seen, needed = stacked[-1].shape, (number, *np.shape(leaf))
        if seen != needed:
            raise InputError(
                f"the recorded updates hold an array of shape {seen} where the model "
                f"needs {needed}; they are of another model or damaged."
            )
    entries = []
    for i, entry in enumerate(itertools.starmap(Entry, history.entries)):
        contribution = jax.tree.unflatten(treedef, [leaves[i] for leaves in stacked])
        entries.append(
            entry._replace(classes=tuple(entry.classes), contribution=contribution)
        )
    server = ServerStep(*history.server)
    return history._replace(entries=tuple(entries), server=server)
