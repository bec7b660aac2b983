"""Who takes part in forgetting: the clients whose data a method may read.

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

    Of K clients 1 to K.
    """
    return tuple(
        int(k) for k in jax.device_get(sample_cohort(key, data, number).clients)
    )


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
    ids = np.asarray(participants, np.int64).reshape(-1)
    if not ids.size or ids.min() < 0 or ids.max() >= data.num_clients:
        raise InputError(
            f"participants are {ids.tolist()}, but must be one or more client ids from "
            f"0 to {data.num_clients - 1}."
        )
    takes_part = np.zeros(data.num_clients, bool)
    takes_part[ids] = True
    return data._replace(lengths=jnp.where(takes_part, data.lengths, 0))
