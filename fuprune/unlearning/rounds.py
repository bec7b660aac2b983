"""Rounds of a training, as methods that replay them need them.

Every `interval` rounds the server keeps its variables before the round and what each
participant sent: one copy of the parameters per participant. A kept round is a plain
tree of host arrays, which a run writes to a file.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils

from fuprune.errors import InputError, UnlearnError
from fuprune.federated.aggregate import Rule, weighted_mean
from fuprune.federated.server import RoundInfo, follow
from fuprune.models.adapt import Variables


class KeptRound(NamedTuple):
    """One round of the training."""

    round_number: int  # t, the rounds before it
    variables: Any  # of the server before the round: GM_t, BatchNorm statistics too
    clients: np.ndarray  # [M] int32, ids of those whose updates counted
    weights: np.ndarray  # [M] float32, theirs in the aggregation
    updates: Any  # params-shaped, leaves [M, ...]: what they sent


class Server(NamedTuple):
    """How a training's server makes a step of what clients send."""

    optimizer: optax.GradientTransformation  # fed the aggregate
    rule: Rule = weighted_mean


PLAIN_SERVER = Server(follow(optax.sgd(1.0)))  # of FedAvg


def is_kept(round_number: int, interval: int) -> bool:
    """Whether round t, counted from 0, is kept; an interval of 0 keeps none."""
    return interval > 0 and round_number % interval == 0


def keep_round(round_number: int, variables: Variables, info: RoundInfo) -> KeptRound:
    """What is kept of round t: the server's variables before it and what clients sent.

    `info` is from an algorithm made with `keep_updates=True`.
    """
    if info.updates is None:
        raise InputError(
            "the round kept no updates; make the algorithm with keep_updates=True."
        )
    sent = (variables, info.updates, info.weights, info.clients)
    # Devices of other processes may hold a part.
    arrays = [x for x in jax.tree.leaves(sent) if isinstance(x, jax.Array)]
    if all(x.is_fully_addressable or x.is_fully_replicated for x in arrays):
        before, updates, weights, clients = jax.device_get(sent)
    else:
        before, updates, weights, clients = multihost_utils.process_allgather(
            sent, tiled=True
        )
    # Those turned away, or without data, have weight zero, and their rows mean nothing.
    counted = np.flatnonzero(np.asarray(weights) > 0)
    return KeptRound(
        int(round_number),
        before,
        np.asarray(clients, np.int32)[counted],
        np.asarray(weights, np.float32)[counted],
        jax.tree.map(lambda x: np.asarray(x)[counted], updates),
    )


def check_kept(rounds: Sequence[KeptRound]) -> None:
    """Raises an error unless rounds were kept."""
    if not len(rounds):
        raise UnlearnError(
            "the method needs rounds of the training and none was kept; train with "
            "train.history_interval=1, or more for fed_eraser."
        )
