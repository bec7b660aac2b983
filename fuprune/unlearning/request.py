"""What is to be forgotten, and whose data are read for it.

A request is of one kind: classes, clients or single examples. `forgotten` is what it
names and `remaining` is the rest, on which every method trains.

The paper's participants are the clients that send statistics. Every method that reads
clients' data reads the same ones, so that none has more evidence than another.
Fine-tuning draws its own cohorts from all clients.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import (
    FederatedDataset,
    drop_classes,
    drop_clients,
    drop_examples,
    keep_classes,
    keep_clients,
    keep_examples,
    sample_cohort,
)
from fuprune.errors import InputError, distinct_integers

# By kind: what leaves the named targets out, and what leaves out everything else.
_SPLIT: dict[str, Any] = {
    "classes": (drop_classes, keep_classes),
    "clients": (drop_clients, keep_clients),
    "examples": (drop_examples, keep_examples),
}
_ONE_OF = {"classes": "class", "clients": "client", "examples": "example"}


class ForgetRequest(NamedTuple):
    """What to forget; exactly one of the three is not empty."""

    classes: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()  # ids
    examples: tuple[int, ...] = ()  # indices into the pool of training images

    @property
    def kind(self) -> str:
        """The name of the one that is not empty."""
        (kind,) = (name for name in self._fields if getattr(self, name))
        return kind

    @property
    def targets(self) -> tuple[int, ...]:
        """What is named, whatever its kind."""
        return getattr(self, self.kind)


def as_request(request: ForgetRequest | int | Iterable[int]) -> ForgetRequest:
    """A request of one kind, from one or from the class or classes to forget."""
    if not isinstance(request, ForgetRequest):
        request = ForgetRequest(classes=distinct_integers(request))
    request = ForgetRequest(*map(distinct_integers, request))
    kinds = [name for name in request._fields if getattr(request, name)]
    if not kinds:
        raise InputError(
            "the request names no class to forget, and no client or example; name one "
            "or more of one kind."
        )
    if len(kinds) > 1:
        raise InputError(
            f"the request names {' and '.join(kinds)}; allowed: one kind, so make a "
            "request of each, one after the other."
        )
    return request


def check_request(
    request: ForgetRequest | Iterable[int], data: FederatedDataset
) -> ForgetRequest:
    """The request as distinct numbers in their order, if this federation can serve it.

    How many classes there are is not known here: see `errors.check_classes`.
    """
    request = as_request(request)
    if request.kind == "classes":
        return request
    number, why = len(data.labels), "which no client holds"
    present = held_examples(data)
    if request.kind == "clients":
        number, why = data.num_clients, "who holds no example"
        present = np.flatnonzero(jax.device_get(data.lengths))
    absent = np.setdiff1d(request.targets, present)
    if absent.size:
        raise InputError(
            f"the request names {_ONE_OF[request.kind]} {absent[0]}, {why}; allowed: "
            f"those of 0 to {number - 1} that take part."
        )
    if not np.any(jax.device_get(remaining(data, request).lengths)):
        raise InputError(
            f"the request names {describe_request(request)}, and no example would "
            "remain; leave at least one client with data."
        )
    return request


def describe_request(request: ForgetRequest) -> str:
    """The request in a few words, such as `clients 3, 17` or `40 examples`."""
    kind, targets = request.kind, request.targets
    if kind == "examples" and len(targets) > 5:
        return f"{len(targets)} examples"
    shown = ", ".join(map(str, targets[:5])) + (", ..." if len(targets) > 5 else "")
    return f"{kind if len(targets) > 1 else _ONE_OF[kind]} {shown}"


def remaining(data: FederatedDataset, request: ForgetRequest) -> FederatedDataset:
    """The federation without what the request names, all shapes as they were."""
    drop, _ = _SPLIT[request.kind]
    return drop(data, request.targets)


def forgotten(data: FederatedDataset, request: ForgetRequest) -> FederatedDataset:
    """The federation with nothing but what the request names, shapes as they were."""
    _, keep = _SPLIT[request.kind]
    return keep(data, request.targets)


def held_examples(data: FederatedDataset) -> np.ndarray:
    """Indices of the images that some client holds, increasing."""
    rows, lengths = jax.device_get((data.rows, data.lengths))
    return np.unique(rows[np.arange(rows.shape[1]) < lengths[:, None]])


def held_classes(data: FederatedDataset) -> set[int]:
    """Classes of which some client holds an example."""
    # The pool keeps images that every client has dropped; they do not count.
    labels = np.asarray(jax.device_get(data.labels))
    return set(labels[held_examples(data)].tolist())


def holders(data: FederatedDataset, request: ForgetRequest) -> tuple[int, ...]:
    """Ids of the clients that hold something of what the request names."""
    named = forgotten(data, request)
    return tuple(np.flatnonzero(jax.device_get(named.lengths)).tolist())


def warn_of(data: FederatedDataset, request: ForgetRequest) -> list[str]:
    """What a request does beyond its own words: the only holder takes a class away."""
    if request.kind == "classes":
        return []
    gone = sorted(held_classes(data) - held_classes(remaining(data, request)))
    if not gone:
        return []
    hold = "hold" if len(request.targets) > 1 else "holds"
    classes = f"class{'es' if len(gone) > 1 else ''} {', '.join(map(str, gone))}"
    return [
        f"{describe_request(request)} alone {hold} every example of {classes}: no "
        "training image of it remains, so a retrained model never sees it, accuracy on "
        "it falls to chance or below, and the request forgets the whole class."
    ]


def choose_participants(
    key: jax.Array, data: FederatedDataset, number: int
) -> tuple[int, ...]:
    """Draws `number` different clients, all equally likely; ids in their order."""
    drawn = sample_cohort(key, data, number)
    return tuple(jax.device_get(drawn.clients).tolist())


def missing_classes(
    data: FederatedDataset, participants: Sequence[int] | None, classes: Iterable[int]
) -> tuple[int, ...]:
    """Those of `classes` of which no participant (None: all) holds an example."""
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
