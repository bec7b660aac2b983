"""Rounds of a training as FedEraser needs them: the server's model and its clients'.

Every `interval` rounds the server keeps its variables before the round and what each
participant made of them. That is one copy of the parameters per participant, far more
than a model, so `kept_bytes` says beforehand how much it will be. A kept round is a
plain tree of host arrays: a run writes each to a file and reads it back when it is
needed, and nothing is ever dropped.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune.errors import InputError
from fuprune.federated.server import RoundInfo
from fuprune.unlearning.history import ServerStep, to_host
from fuprune.unlearning.protocol import Variables, tree_bytes


class KeptRound(NamedTuple):
    """One round of the training."""

    round_number: int  # t, the rounds before it
    variables: Any  # of the server before the round: GM_t, BatchNorm statistics too
    clients: np.ndarray  # [M] int32, ids of those whose updates counted
    changes: Any  # params-shaped, leaves [M, ...]: CM_t - GM_t of each client


def is_kept(round_number: int, interval: int) -> bool:
    """Whether round t, counted from 0, is kept; an interval of 0 keeps none."""
    return interval > 0 and round_number % interval == 0


def kept_bytes(variables: Variables, *, rounds: int, interval: int, cohort: int) -> int:
    """Bytes of all kept rounds of a training, known before it starts.

    `variables` may be shapes; `cohort` is the number of clients per round.
    """
    if not interval:
        return 0
    number = -(-rounds // interval)
    return number * (tree_bytes(variables) + cohort * tree_bytes(variables["params"]))


def keep_round(
    round_number: int,
    variables: Variables,
    info: RoundInfo,
    server: ServerStep | None = None,
) -> KeptRound:
    """What is kept of one round.

    Args:
      round_number: t, counted from 0.
      variables: of the server before the round.
      info: of the round, from an algorithm made with `keep_updates=True`.
      server: how it steps; by default updates are changes of the parameters (FedAvg).
    """
    if info.updates is None:
        raise InputError(
            "the round kept no updates; make the algorithm with keep_updates=True."
        )
    before = to_host(variables)
    clients, changes = client_changes(info, before["params"], round_number, server)
    return KeptRound(int(round_number), before, clients, changes)


def client_changes(
    info: RoundInfo, params, round_number: int, server: ServerStep | None = None
) -> tuple[np.ndarray, Any]:
    """Ids of the clients that counted in a round, and how each moved the parameters.

    A client of FedAvg sends its change. A client of FedSGD sends a gradient g, so its
    model is the one that the server's step would make of it alone: w + scale (g +
    weight_decay w) / (1 - momentum), all that g adds through the momentum included.
    `server.scale` is negative there. FedAvg's server has no momentum, and its scale,
    its learning rate, is that of every client's step.

    Returns:
      [M'] int32, and a params-shaped tree with leaves [M', ...].
    """
    server = server or ServerStep()
    updates, weights, clients = to_host((info.updates, info.weights, info.clients))
    # Those turned away, or without data, have weight zero, and their rows mean nothing.
    counted = np.flatnonzero(np.asarray(weights) > 0)
    # 1 + momentum + momentum^2 + ...: every later round repeats a part of the step.
    factor = server.scale_at(round_number) / (1.0 - server.momentum)

    def moved(update, w):
        update = np.asarray(update)[counted]
        w = np.asarray(jax.device_get(w))
        return (factor * (update + server.weight_decay * w)).astype(w.dtype)

    changes = jax.tree.map(moved, updates, params)
    return np.asarray(clients, np.int32)[counted], changes


def check_kept(rounds, variables: Variables) -> None:
    """Raises InputError unless the kept rounds are of a model of these shapes."""
    of_model, kept = (
        jax.tree.map(np.shape, dict(one)["params"])
        for one in (variables, rounds[0].variables)
    )
    if kept != of_model:
        raise InputError(
            "the kept rounds are of another model; use those of the training that made "
            "this one."
        )
