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
from fuprune.federated.program import Client, ClientProgram, Receive, Shared, Task
from fuprune.federated.uploads import check_tree
from fuprune.files import write_whole
from fuprune.flower.records import Blob, digest, plain
from fuprune.flower.roster import Reply, Requests, Roster
from fuprune.flower.secure import UPLOAD, secure_statistics
from fuprune.flower.work import PROGRAMS
from fuprune.surgery import rebuild

_LOGGER = logging.getLogger(__name__)
FIRST = 16  # replies of a round that say how long updates are
FAR = 10.0  # times their median is too long, or too much weight


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteClients:
    """The clients of a roster as a backend; `federated.program.Transport`."""

    roster: Roster
    config: Mapping[str, Any]  # of the run, JSON-able
    num_classes: int
    mean: Sequence[float]  # of the colours
    std: Sequence[float]
    secure: bool = False  # class statistics are summed under masks
    order: str | None = None  # the forget order that is being carried out
    # Of fine-tuning, `spec` and `masked_classes`; its arrays travel with the model.
    teacher: Mapping[str, Any] | None = None
    # Where answers are kept: a server that was killed must not ask again, because the
    # same question to fewer clients would show the others' part in a sum.
    answers: Path | None = None

    def training(self, objective: Any) -> "RemoteClients":
        """The same clients, training with an objective."""
        if objective is None:
            return dataclasses.replace(self, teacher=None)
        task = objective.task
        if task is None:
            raise InputError(
                "this objective is a function of its own, and remote clients know no "
                "other than a teacher's; use fine_tune.distill_weight."
            )
        teacher = {"spec": _spec(task), **task.arguments}
        return dataclasses.replace(self, teacher=teacher)

    def sizes(self, clients: np.ndarray) -> np.ndarray:
        """How many images clients [M] say they have, [M]."""
        return np.asarray([self.roster.examples.get(int(k), 0) for k in clients])

    def __call__(self, program: ClientProgram, receive: Receive | None = None):
        """`run(shared, clients)`: the program on nodes, through the server's doors."""
        task = program.task
        if task is None or task.name not in PROGRAMS:
            raise InputError(
                "this method reads clients' data in a way that is no request of the "
                "federation; use one that needs uploads only, such as class_pruning."
            )
        kind, _ = PROGRAMS[task.name]
        hidden = self.secure and kind == UPLOAD
        # One program in place of a hundred small ones, which each server would compile.
        door = None if receive is None else jax.jit(receive)

        def run(shared: Shared, clients: Client):
            template = _template(program, shared, clients)

            def ask():
                present = self.roster.wait_for(self.roster.least)
                requests = self._requests(task, shared, clients, present)
                exchange, sizes = self.roster.exchange, self.roster.examples
                if hidden:
                    return secure_statistics(exchange, requests, template[1], sizes)
                replies = self.roster.stream(kind, requests)
                if task.name != "relabel":
                    return self._receive(door, shared, clients, template, replies)
                _check_somebody(len(dict(replies)))
                # The answers stay with the clients: class u under the new labels is
                # class `num_classes` + u.
                rows = np.asarray(clients.row)
                return (), np.asarray(shared.labels)[rows] + self.num_classes

            # A round's answers are in its checkpoint.
            if self.answers is not None and kind != "train":
                file = self.answers / f"{_question(task, shared, clients)}.npz"
                answer = _kept(file, template[1] if hidden else template, ask)
            else:
                answer = ask()
            return (answer, None) if hidden else answer

        return run

    def evaluate(self, model, variables, classes: Sequence[int]) -> Evaluation:
        """What the model does on clients' images, as they count themselves."""
        asked = self._header(rebuild.spec(model), classes), Blob(variables)
        present = self.roster.refresh()
        replies = self.roster.exchange("evaluate", dict.fromkeys(present, asked))
        confusion = np.zeros((model.num_classes,) * 2, np.int64)
        template, loss = (confusion, np.float32(0)), 0.0
        for client, (_, tree) in replies.items():
            # A client cannot have looked at more images than it said it has. As floats,
            # whose sum does not wrap around.
            if (
                check_tree(tree, template)
                or tree[0].min() < 0
                or tree[0].sum(dtype=np.float64) > self.roster.examples[client]
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

    def _requests(self, task: Task, shared: Shared, clients, present) -> Requests:
        """To those of the cohort who are there and have something to be asked."""
        asked = {"task": task.name, "arguments": dict(task.arguments)}
        clients, labels = jax.device_get((clients, shared.labels))
        requests, context = {}, shared.context
        # Made once, unless clients start from statistics of their own.
        own = isinstance(context, TrainContext) and context.client_stats is not None
        blob = None if own else Blob(context)
        for row, length, client in zip(*clients, strict=True):
            if length > 0 and client in present:
                # The stand-ins in its row say which classes the program is to read.
                header = self._header(_spec(task), labels[row[:length]]) | asked
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

        arrived: Iterator[Any] = (
            (client, *_sent(template, tree, client)) for client, (_, tree) in replies
        )
        if door is not None:
            arrived = self._bounded(shared.context, arrived)
        # Silence counts for nothing.
        blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), template)
        like, nothing = admitted(ids[0], blank)
        # In float64, so that it hardly matters who comes first.
        total = jax.tree.map(lambda x: np.zeros(x.shape, np.float64), like)
        answered, each = 0, {}
        for client, sent, known in arrived:
            answered += known
            part, each[client] = admitted(client, sent)
            total = jax.tree.map(np.add, total, part)
        if door is None:
            _check_somebody(answered)
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
        before = jax.device_get(context.variables.get("batch_stats", {}))
        most = FAR * float(np.median([*self.roster.examples.values()]))
        first = sorted(itertools.islice(arrived, FIRST), key=lambda one: one[0])
        lengths = [
            _lengths(sent[1], before)
            for _, sent, known in first
            if known and sent[1].num_examples > 0
        ]
        bound = FAR * np.median(lengths, axis=0) if len(lengths) > 2 else np.zeros(2)
        bound[bound == 0] = np.inf
        if context.client_stats is not None:
            bound[1] = np.inf
        for client, (total, update), known in itertools.chain(first, arrived):
            problem = known and _problem(update, _lengths(update, before), bound)
            if problem:
                _LOGGER.warning("client %d is turned away: %s", client, problem)
                update = jax.tree.map(_nonsense, update)
            elif update.num_examples > most:
                update = update._replace(num_examples=np.float32(most))
            yield client, (total, update), known


def _check_somebody(answered: int) -> None:
    if not answered:
        raise TooFewClientsError(
            "no client answered; look at the SuperNodes, or raise reply-seconds."
        )


def _spec(task: Task) -> dict[str, Any]:
    return rebuild.spec(getattr(task.model, "module", task.model))


def _question(task: Task, shared: Shared, clients: Client) -> str:
    """A name for what clients are asked, the same when a server asks it again."""
    asked = [task.name, _spec(task), dict(task.arguments)]
    arrays = jax.device_get((shared.labels, tuple(clients)))
    text = json.dumps(asked, sort_keys=True) + digest((arrays, shared.context))
    return hashlib.sha256(text.encode()).hexdigest()


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


def stand_ins(num_clients: int, num_classes: int, shape, named=()) -> FederatedDataset:
    """What the server has in place of clients' data: one blank image per class.

    `drop_classes` and its kin say which of them a client is to read, and the client
    looks up its images. For single images of an order, one more, number U with the
    label 2 * U, is in the rows of those who hold them, the ids `named`.
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
    change = jax.tree.map(np.subtract, update.batch_stats, before)
    squares = [
        sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(tree))
        for tree in (update.update, change)
    ]
    return np.sqrt(squares)


def _problem(update: ClientUpdate, lengths, bound) -> str | None:
    """Why an update is turned away before the door looks at it, or None."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(update.batch_stats):
        if "var" in jax.tree_util.keystr(path[-1:]) and np.any(leaf < 0):
            return "a variance of its statistics is negative"
    for i in np.flatnonzero(lengths > bound):
        what = ("update", "statistics")[i]
        return f"its {what} moved by {lengths[i]:.3g}, and {bound[i]:.3g} is allowed"
    return None


def _template(program: ClientProgram, shared: Shared, clients: Client):
    """`(total, each)` of one client, as shapes."""

    def one(shared, client):
        # A fold of no steps has the form of one of many.
        return program.finish(shared, client, program.init(shared, client))

    first = jax.tree.map(lambda x: jnp.asarray(x)[0], clients)
    return jax.eval_shape(one, shared, first)


def _sent(template, tree, client: int):
    """What a client sent, in the template's form, and whether it is usable.

    Nonsense is NaN for the door of training and of statistics, and nothing in a sum.
    """
    problem = check_tree(tree, plain(template))
    if problem is None:
        leaves = jax.tree.leaves(tree)
        sent = jax.tree.unflatten(jax.tree.structure(template), leaves)
        if all(np.all(np.isfinite(x)) for x in jax.tree.leaves(sent[0])):
            return sent, True
        problem = "a sum that is not finite"
    _LOGGER.warning("client %d is turned away: %s", client, problem)
    blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), template[0])
    return (blank, jax.tree.map(_nonsense, template[1])), False


def _nonsense(like):
    # An integer has no value that says it is none; the NaN beside it does.
    value = np.nan if np.issubdtype(like.dtype, np.floating) else 0
    return np.full(like.shape, value, like.dtype)
