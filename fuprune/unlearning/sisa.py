"""SISA: an ensemble that was trained so that little of it has to be trained again.

Bourtoule et al., "Machine Unlearning" (IEEE S&P 2021), for a federation. Shards are
groups of clients; each trains a network of its own, slice by slice: every slice adds
clients and goes on from the last checkpoint. A request sends a shard back to the
checkpoint before the first slice that holds what is named. A checkpoint is named by the
SHA-256 of all that it has seen, so what a request does not touch is found again.
Forgetting is exact; for a class that most clients hold nothing is saved.
"""

import hashlib
from collections.abc import MutableMapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import FederatedDataset, keep_clients
from fuprune.errors import InputError, UnlearnError
from fuprune.models.ensemble import Ensemble, stack_members
from fuprune.models.fresh import init_variables
from fuprune.options import option, options
from fuprune.unlearning.job import Checkpoint, Job, Stage, TrainRounds, UnlearnResult
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.request import remaining


def slice_rounds(rounds: int, slices: int) -> tuple[int, ...]:
    """Rounds of each of R slices: int((i + 1) a) - int(i a) with a = 2 E / (R + 1).

    Later slices see more clients; together they cost about what E rounds on the whole
    shard cost.
    """
    average = 2 * rounds / (slices + 1)
    return tuple(int((i + 1) * average) - int(i * average) for i in range(slices))


def deal_clients(key: jax.Array, num_clients: int, shards: int) -> list[list[int]]:
    """Clients of each shard, in the order of their slices."""
    if shards > num_clients:
        raise InputError(
            f"sisa.shards is {shards}, but must be 1 to {num_clients}, the clients."
        )
    order = np.asarray(jax.device_get(jax.random.permutation(key, num_clients)))
    return [part.tolist() for part in np.array_split(order, shards)]


@options
class Options:
    """Options of sisa."""

    shards: int = option(5, "groups of clients, a network each", ge=1, le=10_000_000)
    slices: int = option(2, "R, slices per shard, a checkpoint each", ge=1, le=1000)
    vote: Literal["softmax", "votes"] = option(
        "softmax", "average the shards' probabilities, or count one vote per shard"
    )


@method(
    "sisa",
    serves=ALL_KINDS,
    options=Options,
    fine_tunes=False,
    simulated="it trains an ensemble of its own, a network for each group of clients",
)
def sisa(job: Job, o: Options) -> UnlearnResult:
    """Train the ensemble on everything, then again where the request is.

    Each shard trains a network of the model's architecture slice by slice with
    `job.train`, for `job.train_rounds`, E, if it had one slice; nothing is fine-tuned.
    Checkpoints in `job.checkpoints` are not trained again, and new ones are put there.
    The stages are `ensemble`, before forgetting, and `resharded`, after it.
    """
    train = job.train
    if train is None:
        raise UnlearnError("sisa trains its own ensemble; pass how a slice is trained.")
    ensemble = Ensemble(job.model, o.shards, o.vote)
    kept = {} if job.checkpoints is None else job.checkpoints
    deal_key, shard_key = jax.random.split(job.key)
    groups = deal_clients(deal_key, job.data.num_clients, o.shards)
    schedule = slice_rounds(job.train_rounds, o.slices)
    # In this order: the second training finds in `kept` the checkpoints of the first
    # that the request does not touch.
    (before, seen), (after, seen_again) = (
        train_shards(job.model, given, groups, schedule, train, kept, shard_key)
        for given in (job.data, remaining(job.data, job.request))
    )
    trained = sum(sum(images.values()) for images in seen)
    again_only = [
        [number for name, number in again.items() if name not in first]
        for first, again in zip(seen, seen_again, strict=True)
    ]
    retrained = sum(map(sum, again_only))
    notes: dict[str, Any] = {
        "shards_retrained": sum(map(bool, again_only)),
        "slices_retrained": sum(map(len, again_only)),
        "images": retrained,
        "images_of_training": trained,
        "share_of_training": retrained / max(trained, 1),
    }
    stages = (Stage("ensemble", ensemble, before), Stage("resharded", ensemble, after))
    return UnlearnResult(ensemble, after, stages, notes=notes)


def train_shards(
    model,
    data: FederatedDataset,
    groups: Sequence[Sequence[int]],
    schedule: Sequence[int],
    train: TrainRounds,
    kept: MutableMapping[str, Checkpoint],
    key: jax.Array,
) -> tuple[Any, list[dict[str, int]]]:
    """Train a network for every group of clients, slice by slice.

    Clients of a group are in the order of their slices; `schedule` has the rounds of
    each slice; `kept`, the checkpoints that exist, grows. Returns the ensemble's
    variables, and for each shard the images of its slices by their hash.
    """
    image = jnp.zeros((1, *data.images.shape[1:]))
    rows, lengths = jax.device_get((data.rows, data.lengths))
    members, images = [], []
    for shard, clients in enumerate(groups):
        key_here = jax.random.fold_in(key, shard)
        variables = init_variables(model, jax.random.fold_in(key_here, 0), image)
        # The key fixes the initialisation and the order of batches, so it is a part of
        # what a checkpoint has seen. The hash runs on over the slices: a change in one
        # renames all that follow.
        seen = hashlib.sha256(np.asarray(jax.random.key_data(key_here)).tobytes())
        found: dict[str, int] = {}
        for i, rounds in enumerate(schedule):
            # Slices of sizes equal to within one; with few clients some are empty.
            start, end = (n * len(clients) // len(schedule) for n in (i, i + 1))
            for client in clients[start:end]:
                held = np.ascontiguousarray(rows[client, : lengths[client]], np.int64)
                # The length in front keeps two clients' rows from running into each
                # other.
                seen.update(f"client {client}: {len(held)}".encode() + held.tobytes())
            seen.update(f"rounds {rounds}".encode())
            name = seen.hexdigest()
            if name not in kept:
                given = keep_clients(data, clients[:end])
                made = Checkpoint(variables, 0)
                if rounds and np.any(jax.device_get(given.lengths)):
                    # 0 was the initialisation.
                    slice_key = jax.random.fold_in(key_here, i + 1)
                    fit = train(model, variables, given, slice_key, rounds)
                    number = sum(int(x.metrics["images"]) for x in fit.history)
                    made = Checkpoint(fit.state.variables, number)
                kept[name] = made
            variables = kept[name].variables
            found[name] = kept[name].images
        members.append(variables)
        images.append(found)
    return stack_members(members), images
