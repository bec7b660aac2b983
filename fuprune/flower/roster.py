"""Who takes part, and one exchange of messages with them.

Nodes come and go; a client is known by the id that it says it has, and proves by its
key if keys are known here. A reply counts only if it answers the request that was sent
to its node, on the model that was sent. Messages go out one by one and replies are
handed on as they come, so that memory does not grow with the number of clients.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from fuprune.errors import TooFewClientsError
from fuprune.flower.orders import Entry, is_signed
from fuprune.flower.records import PROTOCOL, Blob, MessageError, pack, unpack
from fuprune.flower.settings import Timeouts

_LOGGER = logging.getLogger(__name__)
GREETINGS = 3  # without an answer, and a node is left out
SILENCES = 3  # without an answer, and a client is left alone for a while
AT_ONCE = 8  # replies that are taken from Flower together
SMALL_REPLY = 2**20  # bytes that an answer without a model may have
Content = tuple[Mapping[str, Any], Any]  # header and arrays
Requests = Mapping[int, Content]  # by client
Reply = tuple[int, Content]


@dataclass(eq=False)
class Roster:
    """Who is there: the one thing here that changes.

    Ids are the federation's, so a client that comes back as another Flower node is
    still the same client.
    """

    grid: Any  # Flower's
    num_clients: int
    timeouts: Timeouts
    shape: tuple[int, ...]  # of images, as the server's own
    least: int = 1  # clients that every request waits for
    normalise: bool = False  # whether clients tell sums of their colours
    max_images: int = 100_000  # that one client may say it has
    keys: Path | None = None  # folder of node-K.pub, by which clients prove their ids
    orders: dict[str, Entry] = field(default_factory=dict)  # in force
    # By client: orders in its log, those it knows as closed, its number of images as it
    # said, and the sums of its colours, [2 * C + 1].
    confirmed: dict[int, set[str]] = field(default_factory=dict)
    closed: dict[int, set[str]] = field(default_factory=dict)
    examples: dict[int, int] = field(default_factory=dict)
    channel_sums: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        self._node_of: dict[int, int] = {}  # client -> Flower's node id
        self._refused: set[int] = set()  # nodes that are not of this federation
        self._unanswered: Counter[int] = Counter()  # by node: greetings
        self._silent: Counter[int] = Counter()  # by client: requests one after another
        self._resting: Counter[int] = Counter()  # by client: looks to leave it out of
        # Tells this server's requests from those of another, or of an earlier start.
        self._series, self._number = secrets.token_hex(8), 0

    def refresh(self) -> list[int]:
        """The clients that are there and take part, in order."""
        closed = (order for order in self.orders.values() if order.closed)
        gone = {k for order in closed for k in order.clients}
        return [k for k in self.reachable() if k not in gone]

    def reachable(self) -> list[int]:
        """Greets nodes that are new; who is there, also of those who have left."""
        present = set(self.grid.get_node_ids())
        if new := present - {*self._node_of.values()} - self._refused:
            self._greet(sorted(new))
        return sorted(k for k, n in self._node_of.items() if n in present)

    def wait_for(self, number: int) -> list[int]:
        """The clients that are there, once there are `number` of them.

        Who has not answered several times is left out, for twice as long each time.
        """
        until = time.monotonic() + self.timeouts.join
        while True:
            present = self.refresh()
            rested = [k for k in present if not self._resting[k]]
            self._resting -= Counter(dict.fromkeys(self._resting, 1))
            if len(present) >= number:
                return rested if len(rested) >= number else present
            if time.monotonic() > until:
                raise TooFewClientsError(
                    f"{len(present)} clients are there after "
                    f"{self.timeouts.join:.0f} s, and {number} are needed; start more "
                    "SuperNodes, or lower min-clients."
                )
            time.sleep(self.timeouts.poll)

    def exchange(self, kind: str, requests: Requests) -> dict[int, Content]:
        """As `stream`, all replies."""
        return dict(self.stream(kind, requests))

    def stream(self, kind: str, requests: Requests) -> Iterator[Reply]:
        """Sends messages of a type of Flower's; replies that answer, as they come."""
        nodes, silent = {self._node_of[k]: k for k in requests}, {*requests}
        for node, reply in self._send(kind, {n: requests[nodes[n]] for n in nodes}):
            client = nodes[node]
            silent.discard(client)
            self._silent[client] = 0
            self._note(client, reply[0])
            yield client, reply
        for client in silent:
            self._silent[client] += 1
            more = self._silent[client] - SILENCES
            if more >= 0:
                self._resting[client] = 2 ** min(more + 1, 10)
                _LOGGER.warning(
                    "client %d has not answered %d requests; it is left out of %d",
                    *(client, self._silent[client], self._resting[client]),
                )

    def _greet(self, nodes: Sequence[int]) -> None:
        asked = {"normalise": self.normalise}, None
        replies = dict(self._send("query.hello", dict.fromkeys(nodes, asked)))
        for node in nodes:
            header, sums = replies.get(node, ({}, None))
            client: Any = header.get("client")
            if node in replies:
                problem = self._check_greeting(node, client, header)
            else:
                self._unanswered[node] += 1
                if self._unanswered[node] < GREETINGS:
                    continue
                problem = "it does not say who it is"
            if problem:
                _LOGGER.warning("node %d is left out: %s", node, problem)
                self._refused.add(node)
                continue
            self._node_of[client] = node
            self.examples[client] = header["examples"]
            self._silent[client] = self._resting[client] = 0
            self._note(client, header)
            told = isinstance(sums, np.ndarray) and sums.dtype == np.int64
            if told and sums.shape == (2 * self.shape[-1] + 1,):
                self.channel_sums[client] = sums

    def _check_greeting(self, node: int, client: Any, header) -> str | None:
        examples, shape = header.get("examples"), header.get("shape")
        if type(client) is not int or not 0 <= client < self.num_clients:
            most = self.num_clients - 1
            return f"its client id is {client!r:.40}, and ids run from 0 to {most}"
        if type(examples) is not int or not 0 <= examples <= self.max_images:
            most = self.max_images
            return f"it has {examples!r:.40} images, and max-images allows {most}"
        if shape != list(self.shape) and examples:
            return f"its images are {shape!r:.80}, and the server's {list(self.shape)}"
        if self.keys is not None:
            key, text = self.keys / f"node-{client}.pub", f"{header['request']} {node}"
            if not key.exists() or not is_signed(key, text, header.get("proof")):
                return f"it does not prove that it is client {client}; see node-config"
        holder = self._node_of.get(client)
        if holder in {*self.grid.get_node_ids()}:
            return f"client {client} is there already, as node {holder}"
        return None

    def _send(self, kind: str, requests: Requests) -> Iterator[Reply]:
        """Replies by Flower's node id."""
        expected, awaited = {}, set()
        client_of = {n: k for k, n in self._node_of.items()}
        for node, (header, tree) in requests.items():
            self._number += 1
            request = f"{self._series}-{self._number}"
            blob = tree if isinstance(tree, Blob | None) else Blob(tree)
            expected[node], client = (request, blob), client_of.get(node, -1)
            # Who has not said yet who it is hears of orders with the next request.
            told = () if client < 0 else self.orders.values()
            orders = [order.for_client(client)._asdict() for order in told]
            own = {"protocol": PROTOCOL, "request": request, "orders": orders}
            message = Message(
                pack({**header, **own}, blob),
                message_type=kind,
                dst_node_id=node,
                group_id=request,
                ttl=self.timeouts.reply + 60,
            )
            awaited |= {name for name in self.grid.push_messages([message]) if name}
        for message in self._arriving(awaited):
            node = message.metadata.src_node_id
            if node not in expected:
                continue
            try:
                reply = _read(message, *expected[node])
            except MessageError as problem:
                _LOGGER.warning("%s: node %d: %s", kind, node, problem)
                continue
            del expected[node]
            yield node, reply
        for node in expected:
            _LOGGER.warning("%s: no usable answer from node %d", kind, node)

    def _arriving(self, awaited: set[str]) -> Iterator[Message]:
        """The replies to messages, until all or the time for them have come."""
        # Not `send_and_receive`, which looks every three seconds: a client answers an
        # order in less. And a few at a time, because they are as large as models.
        until = time.monotonic() + self.timeouts.reply
        while awaited:
            names = sorted(awaited)
            for i in range(0, len(names), AT_ONCE):
                for message in self.grid.pull_messages(names[i : i + AT_ONCE]):
                    awaited.discard(message.metadata.reply_to_message_id)
                    yield message
            if not awaited or time.monotonic() > until:
                break
            time.sleep(self.timeouts.poll)

    def _note(self, client: int, header: Mapping[str, Any]) -> None:
        """Notes what a client says of its log, under its own id alone."""
        for name, kept in (("orders", self.confirmed), ("closed", self.closed)):
            names = header.get(name)
            if isinstance(names, list):
                kept[client] = {n for n, o in self.orders.items() if o.name in names}


def _read(message: Message, request: str, sent: Blob | None) -> Content:
    """Header and arrays of an answer to the request, on the model that was sent."""
    if message.has_error():
        raise MessageError(f"Flower says: {message.error.reason!r:.300}")
    # Statistics may be larger than a small model, but not than a large one.
    limit = SMALL_REPLY if sent is None else 16 * SMALL_REPLY + 4 * len(sent.data)
    header, tree = unpack(message.content, limit=limit)
    answered = header.get("request")
    if answered != request:
        raise MessageError(f"it answers request {answered!r:.60}, not {request}")
    if header.get("problem"):
        raise MessageError(f"it cannot answer: {header['problem']!r:.500}")
    if sent is not None and header.get("model") != sent.digest:
        raise MessageError("it worked on another model than the one that was sent")
    return header, tree
