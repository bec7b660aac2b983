"""How a method reads clients' data, and whose: what all such methods share.

The paper's participants are those that send statistics. Every method that reads
clients' data (statistics, gradients, answers) reads the same ones, so that none has
more evidence than another. Fine-tuning is federated training and draws its own cohorts
from all clients.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import FederatedDataset, sample_cohort
from fuprune.errors import InputError
from fuprune.unlearning.request import held_classes


def choose_participants(
    key: jax.Array, data: FederatedDataset, number: int
) -> tuple[int, ...]:
    """Draws `number` different clients, all equally likely; client ids in their order.

    `number` must be in [1, K] for K clients.
    """
    drawn = sample_cohort(key, data, number)
    return tuple(jax.device_get(drawn.clients).tolist())


def missing_classes(
    data: FederatedDataset, participants: Sequence[int] | None, classes: Iterable[int]
) -> tuple[int, ...]:
    """Those of `classes` of which no participant (None: all) holds an example.

    It needs no model: whether a class can be scored is known before any training.
    """
    held = held_classes(participating(data, participants))
    return tuple(int(u) for u in classes if int(u) not in held)


def participating(
    data: FederatedDataset, participants: Sequence[int] | None
) -> FederatedDataset:
    """The federation in which every client but the participants holds nothing.

    Shapes, ids and the places of clients on devices stay as they are. Participants are
    client ids, or None for all.
    """
    if participants is None:
        return data
    ids = check_participants(participants, data)
    takes_part = np.isin(np.arange(data.num_clients), ids)
    return data._replace(lengths=jnp.where(takes_part, data.lengths, 0))


def check_participants(
    participants: Sequence[int], data: FederatedDataset
) -> tuple[int, ...]:
    """Client ids, each once and in their order, if there are such clients."""
    # A repeated id would be counted twice but noised once.
    ids = tuple(dict.fromkeys(int(client) for client in participants))
    if not ids or min(ids) < 0 or max(ids) >= data.num_clients:
        raise InputError(
            f"participants are {list(ids)}, but must be one or more client ids from "
            f"0 to {data.num_clients - 1}."
        )
    return ids
