"""Flower's nodes as a backend of `for_each_client`: the server's half of the transport.

A program's task, arrays and the network's spec go out, one message per client; what
comes back is checked for being the answer to this request, on this model and of this
form, and then goes through the same doors as in a simulation. A client that does not
answer counts for nothing in the round, and one that answers nonsense is turned away.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import FederatedDataset
from fuprune.errors import InputError, TooFewClientsError
from fuprune.federated.client import ClientUpdate, TrainContext
from fuprune.federated.evaluate import Evaluation
from fuprune.federated.program import (
    Client,
    ClientProgram,
    CohortFn,
    Receive,
    Shared,
    Task,
)
from fuprune.federated.uploads import check_tree
from fuprune.files import write_whole
from fuprune.flower.records import Blob, digest, plain
from fuprune.flower.roster import Replies, Reply, Requests, Roster
from fuprune.flower.secure import UPLOAD, secure_statistics
from fuprune.flower.work import PROGRAMS
from fuprune.surgery import rebuild

_LOGGER = logging.getLogger(__name__)
FIRST = 16  # replies of a round that say how long updates are
FAR = 10.0  # times their median is too long, or too much weight


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteClients:
    """The clients of a roster as a backend; `federated.program.Transport`.

    Beside the roster it has what goes along with every request of one phase.
    """

    roster: Roster
    config: Mapping[str, Any]  # of the run, JSON-able
    num_classes: int
    mean: Sequence[float]  # of the colours
    std: Sequence[float]
    secure: bool = False  # class statistics are summed under masks
    order: str | None = None  # the forget order that is being carried out
    # `spec` and `masked_classes` of fine-tuning's teacher, whose arrays are part of the
    # objective and travel with the model.
    teacher: Mapping[str, Any] | None = None
    # Where answers are kept that a server which was killed must not ask for again: the
    # same question to fewer clients would show the others' part in a sum.
    answers: Path | None = None

    def under(self, **terms) -> "RemoteClients":
        """The same clients under other terms."""
        return dataclasses.replace(self, **terms)

    def training(self, objective: Any) -> "RemoteClients":
        """The same clients, training with an objective.

        Raises:
          InputError: the objective is none that clients know.
        """
        teacher = None
        if objective is not None:
            task = objective.task
            if task is None:
                raise InputError(
                    "this objective is a function of its own, and remote clients know "
                    "no other than a teacher's; use fine_tune.distill_weight."
                )
            spec = rebuild.spec(getattr(task.model, "module", task.model))
            teacher = {"spec": spec, **task.arguments}
        return self.under(teacher=teacher)

    def sizes(self, clients: np.ndarray) -> np.ndarray:
        """How many images clients [M] say they have, [M]."""
        return np.asarray([self.roster.examples.get(int(k), 0) for k in clients])

    def __call__(
        self, program: ClientProgram, receive: Receive | None = None
    ) -> CohortFn:
        """`run(shared, clients)`: the program on nodes, through the server's doors."""
        task = program.task
        if task is None or task.name not in PROGRAMS:
            raise InputError(
                "this method reads clients' data in a way that is no request of the "
                "federation; use one that needs uploads only, such as class_pruning."
            )

        # One program in place of a hundred small ones, which each server would compile.
        door = None if receive is None else jax.jit(receive)

        def run(shared: Shared, clients: Client):
            template = _template(program, shared, clients)
            hidden = self.secure and PROGRAMS[task.name][0] == UPLOAD
            form = (template[1], None) if hidden else template

            def ask():
                present = self.roster.wait_for(self.roster.least)
                requests = self._requests(task, shared, clients, present)
                exchange, sizes = self.roster.exchange, self.roster.examples
                if hidden:
                    return secure_statistics(exchange, requests, form[0], sizes), None
                if task.name == "relabel":
                    replies = exchange(PROGRAMS[task.name][0], requests)
                    return (), self._renamed(shared, clients, replies)
                replies = self.roster.stream(PROGRAMS[task.name][0], requests)
                return self._receive(door, shared, clients, template, replies)

            # A round's answers are in its checkpoint.
            if self.answers is None or PROGRAMS[task.name][0] == "train":
                return ask()
            return _kept(
                self.answers / f"{_question(task, shared, clients)}.npz", form, ask
            )

        return run

    def evaluate(self, model, variables, classes: Sequence[int]) -> Evaluation:
        """What the model does on clients' own images, as they count themselves."""
        header = self._header(rebuild.spec(model), classes)
        present = self.roster.refresh()
        blob = Blob(variables)
        replies = self.roster.exchange("evaluate", {k: (header, blob) for k in present})
        size = model.num_classes
        template = (
            jax.ShapeDtypeStruct((size, size), np.int64),
            jax.ShapeDtypeStruct((), np.float32),
        )
        confusion, loss = np.zeros((size, size), np.int64), 0.0
        for client, (_, tree) in replies.items():
            held = self.roster.examples[client]
            # A client cannot have looked at more images than it said it has. As floats,
            # whose sum does not wrap around.
            if (
                check_tree(tree, template)
                or tree[0].min() < 0
                or tree[0].sum(dtype=np.float64) > held
            ):
                _LOGGER.warning("evaluate: client %d is turned away", client)
                continue
            confusion += tree[0]
            loss += float(tree[1])
        return Evaluation(confusion, loss / max(int(confusion.sum()), 1))

    def _header(self, spec, classes) -> dict[str, Any]:
        return {
            "spec": spec,
            "classes": [int(u) for u in classes],
            "num_classes": self.num_classes,
            "order": self.order,
            "settings": {
                "config": dict(self.config),
                "mean": list(self.mean),
                "std": list(self.std),
                "max_length": max(self.roster.examples.values(), default=1),
                "teacher": self.teacher,
            },
        }

    def _requests(
        self, task: Task, shared: Shared, clients: Client, present: Sequence[int]
    ) -> Requests:
        """By id, header and arrays for those of the cohort who are there.

        Of a client whose row is empty there is nothing to ask.
        """
        spec = rebuild.spec(getattr(task.model, "module", task.model))
        clients, labels = jax.device_get((clients, shared.labels))
        requests, context = {}, shared.context
        # Made once, unless clients start from statistics of their own.
        own = isinstance(context, TrainContext) and context.client_stats is not None
        blob = None if own else Blob(context)
        for row, length, client in zip(*clients, strict=True):
            if length > 0 and client in present:
                # The stand-ins in its row say which classes the program is to read.
                header = self._header(spec, labels[row[:length]])
                header |= {"task": task.name, "arguments": dict(task.arguments)}
                sent = blob or Blob(_for_client(context, int(client)))
                requests[int(client)] = header, sent
        return requests

    def _receive(self, door, shared, clients, template, replies: Iterator[Reply]):
        """What the cohort gave: the total, added up as replies come, and each part."""
        ids = [int(k) for k in np.asarray(clients.client_id)]

        def admitted(client: int, sent):
            if door is None:
                return sent
            # The door compares claims with what the client said it holds.
            size = jnp.int32(self.roster.examples.get(client, 0))
            known = Client(clients.row[ids.index(client)], size, jnp.int32(client))
            return jax.device_get(door(shared, known, sent[1]))

        arrived = ((k, *_sent(template, reply, k)) for k, reply in replies)
        if door is not None:
            arrived = self._bounded(shared.context, arrived)
        answered, each, total = 0, {}, None
        for client, sent, known in arrived:
            answered += known  # type: ignore
            part, each[client] = admitted(client, sent)  # type: ignore
            # In float64, so that it hardly matters who comes first.
            part = jax.tree.map(lambda x: np.asarray(x, np.float64), part)
            total = part if total is None else jax.tree.map(np.add, total, part)
        if not answered and door is None:
            raise TooFewClientsError(
                "no client answered; look at the SuperNodes, or raise reply-seconds."
            )
        # Silence counts for nothing.
        blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), template)
        like, nothing = admitted(ids[0], blank)
        total = like if total is None else total
        parts = [each.get(client, nothing) for client in ids]
        return (
            jax.tree.map(lambda x, to: np.asarray(x, to.dtype), total, like),
            jax.tree.map(lambda *x: np.stack(x), *parts),
        )

    def _bounded(self, context: TrainContext, arrived: Iterator) -> Iterator:
        """Turns away updates that no training gives, and those far from the others'.

        The first replies say how long updates are, as far as a median of three or more
        does. A client's weight is bounded by what the others hold, likewise.
        """
        before = context.variables.get("batch_stats", {})
        own = context.client_stats is not None
        most = FAR * float(np.median([*self.roster.examples.values()]))
        first = sorted(itertools.islice(arrived, FIRST), key=lambda one: one[0])
        lengths = [
            _lengths(sent[1], before)
            for _, sent, known in first
            if known and sent[1].num_examples > 0
        ]
        bound = FAR * np.median(lengths, axis=0) if len(lengths) > 2 else np.zeros(2)
        bound[bound == 0] = np.inf
        bound[1] = np.inf if own else bound[1]
        for client, (total, update), known in itertools.chain(first, arrived):
            problem = known and _problem(update, _lengths(update, before), bound)
            if problem:
                _LOGGER.warning("client %d is turned away: %s", client, problem)
                update = jax.tree.map(_nonsense, update)
            elif update.num_examples > most:
                update = update._replace(num_examples=np.float32(most))
            yield client, (total, update), known

    def _renamed(self, shared, clients: Client, replies: Replies) -> np.ndarray:
        """[M, L] labels in place of the answers, which stay with the clients.

        Class u under the new labels is class `num_classes` + u.
        """
        if not replies:
            raise TooFewClientsError(
                "no client gave its images new labels; look at the SuperNodes, or "
                "raise reply-seconds."
            )
        return np.asarray(shared.labels)[np.asarray(clients.row)] + self.num_classes


def _question(task: Task, shared: Shared, clients: Client) -> str:
    """A name for what clients are asked, the same when a server asks it again."""
    asked = [task.name, rebuild.spec(getattr(task.model, "module", task.model))]
    text = json.dumps([*asked, dict(task.arguments)], sort_keys=True)
    arrays = jax.device_get((shared.labels, tuple(clients)))
    return hashlib.sha256(
        f"{text}{digest((arrays, shared.context))}".encode()
    ).hexdigest()


def _kept(file: Path, form: Any, ask: Callable[[], Any]) -> Any:
    """What was answered to a question: from its file, or asked now and kept there."""
    if not file.exists():
        leaves = jax.tree.leaves(ask())
        write_whole(file, lambda to: np.savez(to, *leaves, allow_pickle=False))
    with np.load(file, allow_pickle=False) as kept:
        return jax.tree.unflatten(jax.tree.structure(form), list(kept.values()))


def _for_client(context: TrainContext, client: int) -> TrainContext:
    """What one client gets to see of statistics kept by client: its own."""
    own = jax.tree.map(lambda x: x[client], context.client_stats)
    variables = {**context.variables, "batch_stats": own}
    return context._replace(variables=variables, client_stats=None)


def stand_ins(
    num_clients: int,
    num_classes: int,
    shape: Sequence[int],
    named: Sequence[int] = (),
) -> FederatedDataset:
    """What the server has in place of clients' data: one blank image per class.

    Every client's row names every class. `drop_classes` and its kin then say what a
    client is to read, and the client looks up which of its images that is. If an order
    names single images, one more blank, number U with the label 2 * U, stands for them
    in their holders' rows; `named` are the ids of the holders.
    """
    labels = [*range(num_classes), *([2 * num_classes] if len(named) else [])]
    rows = np.tile(np.arange(len(labels), dtype=np.int32), (num_clients, 1))
    holds = np.isin(np.arange(num_clients), named)
    return FederatedDataset(
        images=jnp.zeros((len(labels), *shape), jnp.uint8),
        labels=jnp.asarray(labels, jnp.int32),
        rows=jnp.asarray(rows),
        lengths=jnp.asarray(num_classes + holds, jnp.int32),
    )


def _lengths(update: ClientUpdate, before: Any) -> np.ndarray:
    """[2] lengths: of an update, and of what becomes of BatchNorm's statistics."""

    def length(tree) -> float:
        leaves = jax.tree.leaves(tree)
        return math.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in leaves))

    change = jax.tree.map(np.subtract, update.batch_stats, jax.device_get(before))
    return np.asarray([length(update.update), length(change)])


def _problem(update: ClientUpdate, lengths, bound) -> str | None:
    """Why an update is turned away before the door looks at it, or None."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(update.batch_stats):
        if "var" in jax.tree_util.keystr(path[-1:]) and np.any(leaf < 0):
            return "a variance of its statistics is negative"
    for what, length, most in zip(
        ("update", "statistics"), lengths, bound, strict=True
    ):
        if length > most:
            return f"its {what} moved by {length:.3g}, and {most:.3g} is allowed"
    return None


def _template(program: ClientProgram, shared: Shared, clients: Client):
    """`(total, each)` of one client, as shapes."""

    def one(shared, client):
        # A fold of no steps has the form of one of many.
        return program.finish(shared, client, program.init(shared, client))

    first = jax.tree.map(lambda x: jnp.asarray(x)[0], clients)
    return jax.eval_shape(one, shared, first)


def _sent(template, reply, client: int):
    """What a client sent, in the template's form, and whether it sent anything.

    Silence counts for nothing: zeros. Nonsense becomes NaN, which the door of training
    and of statistics turns away; a sum has no other door, so there it is left out.
    """
    blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), template)
    if reply is None:
        return blank, False
    tree = reply[1]
    problem = check_tree(tree, plain(template))
    if problem is None:
        leaves = jax.tree.leaves(tree)
        sent = jax.tree.unflatten(jax.tree.structure(template), leaves)
        bad = [x for x in jax.tree.leaves(sent[0]) if not np.all(np.isfinite(x))]
        if not bad:
            return sent, True
        problem = "a sum that is not finite"
    _LOGGER.warning("client %d is turned away: %s", client, problem)
    each = jax.tree.map(_nonsense, template[1])
    return (blank[0], each), False


def _nonsense(like):
    # An integer has no value that says it is none; the NaN beside it does.
    value = np.nan if np.issubdtype(like.dtype, np.floating) else 0
    return np.full(like.shape, value, like.dtype)
