"""Who takes part, and one exchange of messages with them.

Nodes come and go; a client is known by the id that it says it has. A reply counts only
if it answers the request that was sent to its node, on the model that was sent.
"""

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message

from fuprune.errors import TooFewClientsError
from fuprune.flower import ledger
from fuprune.flower.records import PROTOCOL, MessageError, digest, pack, unpack
from fuprune.flower.settings import Settings, Timeouts

_LOGGER = logging.getLogger(__name__)
COLOURS_FILE = "colours.json"  # in the workdir: what clients' images are scaled with
GREETINGS = 3  # without an answer, and a node is left out
Requests = Mapping[int, tuple[Mapping[str, Any], Any]]  # by client: header and arrays
Replies = dict[int, tuple[dict[str, Any], Any]]  # the same


class Roster:
    """Who is there: the one thing here that changes.

    A node is known by the client id that it says it has. Ids are the federation's, so
    a client that comes back as another Flower node is still the same client.
    """

    def __init__(
        self,
        grid,
        num_clients: int,
        timeouts: Timeouts,
        *,
        least: int = 1,
        normalise: bool = False,
    ):
        self.grid = grid
        self.least = least  # clients that every request waits for
        self.normalise = normalise  # whether clients tell sums of their colours
        self.channel_sums: dict[int, np.ndarray] = {}  # by client, [2 * C + 1]
        self.num_clients = num_clients
        self.timeouts = timeouts
        self.orders: dict[str, ledger.Entry] = {}  # in force
        self.confirmed: dict[int, set[str]] = {}  # by client: orders in its log
        self.closed: dict[int, set[str]] = {}  # by client: those it knows as closed
        self.examples: dict[int, int] = {}  # by client, as it said
        self.shape: tuple[int, ...] | None = None
        self.costs: list[dict[str, Any]] = []  # what each answer cost its client
        self._node_of: dict[int, int] = {}  # client -> Flower's node id
        self._refused: set[int] = set()  # nodes that are not of this federation
        self._unanswered: dict[int, int] = {}  # node -> greetings without an answer
        # Tells this server's requests from those of another, or of an earlier start.
        self._series = secrets.token_hex(8)
        self._number = 0

    def refresh(self) -> list[int]:
        """The clients that are there and take part, in order."""
        gone = {
            k for order in self.orders.values() if order.closed for k in order.clients
        }
        return [k for k in self.reachable() if k not in gone]

    def reachable(self) -> list[int]:
        """Greets nodes that are new; who is there, also of those who have left."""
        present = set(self.grid.get_node_ids())
        known = set(self._node_of.values())
        new = sorted(present - known - self._refused)
        if new:
            self._greet(new)
        return sorted(k for k, n in self._node_of.items() if n in present)

    def wait_for(self, number: int) -> list[int]:
        """The clients that are there, once there are `number` of them.

        Raises:
          TooFewClientsError: they did not come in time.
        """
        until = time.monotonic() + self.timeouts.join
        while True:
            present = self.refresh()
            if len(present) >= number:
                return present
            if time.monotonic() > until:
                raise TooFewClientsError(
                    f"{len(present)} clients are there after "
                    f"{self.timeouts.join:.0f} s, and {number} are needed; start more "
                    "SuperNodes, or lower min-clients."
                )
            time.sleep(self.timeouts.poll)

    def exchange(self, kind: str, requests: Requests) -> Replies:
        """Sends each client a header and arrays; the replies that are answers.

        `kind` is Flower's message type.
        """
        nodes = {k: self._node_of[k] for k in requests}
        answered = self._send(kind, {nodes[k]: requests[k] for k in nodes})
        replies = {k: answered[n] for k, n in nodes.items() if n in answered}
        for client, (header, _) in replies.items():
            self._note(kind, client, header)
        return replies

    def _greet(self, nodes: Sequence[int]) -> None:
        asked = {"normalise": self.normalise}
        replies = self._send("query.hello", {n: (asked, None) for n in nodes})
        for node in set(nodes) - replies.keys():
            self._unanswered[node] = self._unanswered.get(node, 0) + 1
            if self._unanswered[node] >= GREETINGS:
                _LOGGER.warning("node %d is left out: it does not say who it is", node)
                self._refused.add(node)
        for node, (header, sums) in replies.items():
            client: Any = header.get("client")
            problem = self._check_greeting(client, header)
            if problem:
                _LOGGER.warning("node %d is left out: %s", node, problem)
                self._refused.add(node)
                continue
            self._node_of[client] = node
            self.examples[client] = header["examples"]
            self._note("query.hello", client, header)
            size = 2 * header["shape"][-1] + 1
            told = isinstance(sums, np.ndarray) and sums.dtype == np.int64
            if told and sums.shape == (size,):
                self.channel_sums[client] = sums

    def _check_greeting(self, client: Any, header) -> str | None:
        examples, shape = header.get("examples"), header.get("shape")
        if type(client) is not int or not 0 <= client < self.num_clients:
            return (
                f"its client id is {client!r:.40}, and ids run from 0 to "
                f"{self.num_clients - 1}"
            )
        if type(examples) is not int or not 0 <= examples < 2**31:
            return f"it says that it has {examples!r:.40} images"
        formed = isinstance(shape, list) and len(shape) == 3
        if not formed or not all(type(size) is int and size >= 0 for size in shape):
            return f"its images are {shape!r:.80}, and must be [height, width, colours]"
        if self.shape not in (None, tuple(shape)):
            return f"its images are {shape}, and others' are {self.shape}"
        holder = self._node_of.get(client)
        if holder is not None and holder in set(self.grid.get_node_ids()):
            return f"client {client} is there already, as node {holder}"
        self.shape = tuple(shape)
        return None

    def _send(self, kind: str, requests: Requests) -> Replies:
        """Replies by Flower's node id."""
        messages, expected = [], {}
        client_of = {n: k for k, n in self._node_of.items()}
        for node, (header, tree) in requests.items():
            self._number += 1
            request = f"{self._series}-{self._number}"
            expected[node] = (request, None if tree is None else digest(tree))
            header = {
                **header,
                "protocol": PROTOCOL,
                "request": request,
                "orders": [
                    order.for_client(client_of.get(node))._asdict()
                    for order in self.orders.values()
                ],
            }
            messages.append(
                Message(
                    pack(header, tree),
                    message_type=kind,
                    dst_node_id=node,
                    group_id=request,
                    ttl=self.timeouts.reply + 60,
                )
            )
        replies: Replies = {}
        if not messages:
            return replies
        for message in self._post(messages):
            node = message.metadata.src_node_id
            if node not in expected or node in replies:
                continue
            try:
                replies[node] = _read(message, *expected[node])
            except MessageError as problem:
                _LOGGER.warning("%s: node %d: %s", kind, node, problem)
        for node in expected.keys() - replies.keys():
            _LOGGER.warning("%s: no usable answer from node %d", kind, node)
        return replies

    def _post(self, messages: Sequence[Message]) -> list[Message]:
        """The replies to messages, once all or the time for them have come."""
        # Not `send_and_receive`, which looks every three seconds: a client answers an
        # order in less.
        until = time.monotonic() + self.timeouts.reply
        awaited = {name for name in self.grid.push_messages(messages) if name}
        arrived: list[Message] = []
        while awaited:
            for message in self.grid.pull_messages(awaited):
                awaited.discard(message.metadata.reply_to_message_id)
                arrived.append(message)
            if not awaited or time.monotonic() > until:
                break
            time.sleep(self.timeouts.poll)
        return arrived

    def _note(self, kind: str, client: int, header) -> None:
        """Notes what a client says of its log and its time, under its own id alone."""
        for field, kept in (("orders", self.confirmed), ("closed", self.closed)):
            names = header.get(field)
            if isinstance(names, list):
                kept[client] = {name for name in self.orders if name in names}
        seconds = header.get("cpu_seconds")
        # Bounded, because JSON has numbers that no float holds.
        if isinstance(seconds, int | float) and 0 <= seconds < 2**31:
            cost = {"kind": kind, "client": client, "cpu_seconds": float(seconds)}
            self.costs.append(cost)


def _read(message: Message, request: str, model: str | None) -> tuple[dict, Any]:
    """Header and arrays of an answer to the request, on the model of that digest."""
    if message.has_error():
        raise MessageError(f"Flower says: {message.error.reason!r:.300}")
    header, tree = unpack(message.content)
    answered = header.get("request")
    if answered != request:
        raise MessageError(f"it answers request {answered!r:.60}, not {request}")
    if header.get("problem"):
        raise MessageError(f"it cannot answer: {header['problem']!r:.500}")
    if model is not None and header.get("model") != model:
        raise MessageError("it worked on another model than the one that was sent")
    return header, tree


def join_clients(grid, settings: Settings) -> Roster:
    """Waits for enough clients.

    Raises:
      TooFewClientsError: they did not come in time.
    """
    config, workdir = settings.config, settings.workdir
    workdir.mkdir(parents=True, exist_ok=True)
    roster = Roster(
        grid,
        config.partition.clients,
        settings.timeouts,
        least=settings.min_clients,
        # Sums of colours are told once, before anything was ordered to be forgotten.
        normalise=config.data.normalise == "federated"
        and not (workdir / COLOURS_FILE).exists(),
    )
    roster.orders = ledger.read(workdir)
    present = roster.wait_for(settings.min_clients)
    _LOGGER.info("clients %s are there", ", ".join(map(str, present)))
    return roster
