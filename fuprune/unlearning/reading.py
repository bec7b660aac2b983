"""How a method reads clients' data, and whose: what all such methods share.

The paper's participants are those that send statistics. Every method that reads
clients' data (statistics, gradients, answers) reads the same ones, so that none has
more evidence than another. Fine-tuning is federated training and draws its own cohorts
from all clients.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import FederatedDataset, sample_cohort, whole_cohort
from fuprune.data.preprocess import to_float
from fuprune.errors import InputError
from fuprune.federated.client import Preprocess
from fuprune.federated.cohort import ClientProgram, Shared, clients_of, for_each_client
from fuprune.federated.program import CohortFn, Transport
from fuprune.models.layers import loops_are_fast
from fuprune.unlearning.request import (
    ForgetRequest,
    forgotten,
    held_classes,
    remaining,
)


class Reading(NamedTuple):
    """How clients' data are read."""

    participants: Sequence[int] | None = None  # ids of those that are read; None: all
    preprocess: Preprocess = to_float  # as in training, without augmentation
    # How clients are iterated, one of `cohort.BACKENDS`, or by a transport.
    backend: str | Transport = "auto"
    mesh: Any = None  # devices for `shard_map`; all by default

    def for_each_client(self, model, program: ClientProgram) -> CohortFn:
        """The program, which calls `model`, on every client of a cohort."""
        return for_each_client(
            program,
            backend=self.backend,
            mesh=self.mesh,
            loops_are_fast=loops_are_fast(model),
        )

    def make_run(
        self, model, program: ClientProgram
    ) -> Callable[[Any, FederatedDataset], tuple[Any, Any]]:
        """`run(context, data) -> (total, each)`: the program on all clients."""
        run_cohort = self.for_each_client(model, program)

        def run(context, data: FederatedDataset):
            cohort = whole_cohort(data)
            shared = Shared(cohort.images, cohort.labels, context)
            return run_cohort(shared, clients_of(cohort))

        return run

    def forgotten(
        self, data: FederatedDataset, request: ForgetRequest
    ) -> FederatedDataset:
        """What the request names, as far as participants hold it.

        Clients and examples are named one by one, so their holders are read whether
        or not they are participants.
        """
        if request.kind == "classes":
            data = participating(data, self.participants)
        return forgotten(data, request)

    def remaining(
        self, data: FederatedDataset, request: ForgetRequest
    ) -> FederatedDataset:
        """What remains with the participants."""
        return participating(remaining(data, request), self.participants)


READ_ALL = Reading()


def choose_participants(
    key: jax.Array, data: FederatedDataset, number: int
) -> tuple[int, ...]:
    """Draws `number` different clients, all equally likely; client ids in their order.

    Of K clients 1 to K.
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
    # Who is named twice would count twice, and have noise for once.
    ids = tuple(dict.fromkeys(int(client) for client in participants))
    if not ids or min(ids) < 0 or max(ids) >= data.num_clients:
        raise InputError(
            f"participants are {list(ids)}, but must be one or more client ids from "
            f"0 to {data.num_clients - 1}."
        )
    return ids
