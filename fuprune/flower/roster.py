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
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from fuprune.errors import TooFewClientsError
from fuprune.flower import orders as books
from fuprune.flower.records import PROTOCOL, Blob, MessageError, pack, unpack
from fuprune.flower.settings import Settings, Timeouts
from fuprune.flower.signatures import is_signed

_LOGGER = logging.getLogger(__name__)
COLOURS_FILE = "colours.json"  # in the workdir: what clients' images are scaled with
GREETINGS = 3  # without an answer, and a node is left out
SILENCES = 3  # without an answer, and a client is left alone for a while
AT_ONCE = 8  # replies that are taken from Flower together
SMALL_REPLY = 2**20  # bytes that an answer without a model may have
Requests = Mapping[int, tuple[Mapping[str, Any], Any]]  # by client: header and arrays
Replies = dict[int, tuple[dict[str, Any], Any]]  # the same
Reply = tuple[int, tuple[dict[str, Any], Any]]


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
        shape: Sequence[int],
        least: int = 1,
        normalise: bool = False,
        max_images: int = 100_000,
        keys: Path | None = None,
    ):
        self.grid = grid
        self.shape = tuple(shape)  # of images, as the server's own
        self.least = least  # clients that every request waits for
        self.normalise = normalise  # whether clients tell sums of their colours
        self.max_images = max_images  # that one client may say it has
        self.keys = keys  # folder of node-K.pub, by which clients prove their ids
        self.channel_sums: dict[int, np.ndarray] = {}  # by client, [2 * C + 1]
        self.num_clients = num_clients
        self.timeouts = timeouts
        self.orders: dict[str, books.Entry] = {}  # in force
        self.confirmed: dict[int, set[str]] = {}  # by client: orders in its log
        self.closed: dict[int, set[str]] = {}  # by client: those it knows as closed
        self.examples: dict[int, int] = {}  # by client, as it said
        self.costs: list[dict[str, Any]] = []  # what each answer cost its client
        self._node_of: dict[int, int] = {}  # client -> Flower's node id
        self._refused: set[int] = set()  # nodes that are not of this federation
        self._unanswered: Counter[int] = Counter()  # by node: greetings
        self._silent: Counter[int] = Counter()  # by client: requests one after another
        self._resting: Counter[int] = Counter()  # by client: looks to leave it out of
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

        Who has not answered several times is left out, for twice as long each time.

        Raises:
          TooFewClientsError: they did not come in time.
        """
        until = time.monotonic() + self.timeouts.join
        while True:
            present = self.refresh()
            rested = [k for k in present if not self._resting[k]]
            self._resting -= Counter(dict.fromkeys(self._resting, 1))
            if len(rested) >= number:
                return rested
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
        return dict(self.stream(kind, requests))

    def stream(self, kind: str, requests: Requests) -> Iterator[Reply]:
        """As `exchange`, but every reply as it comes."""
        nodes = {self._node_of[k]: k for k in requests}
        answered = set()
        for node, reply in self._send(kind, {n: requests[nodes[n]] for n in nodes}):
            client = nodes[node]
            answered.add(client)
            self._note(kind, client, reply[0])
            yield client, reply
        for client in requests:
            silences = 0 if client in answered else self._silent[client] + 1
            self._silent[client] = silences
            if silences >= SILENCES:
                self._resting[client] = 2 ** min(silences - SILENCES + 1, 10)
                _LOGGER.warning(
                    "client %d has not answered %d requests; it is left out of %d",
                    *(client, silences, self._resting[client]),
                )

    def _greet(self, nodes: Sequence[int]) -> None:
        asked = {"normalise": self.normalise}
        replies = dict(self._send("query.hello", {n: (asked, None) for n in nodes}))
        for node in set(nodes) - replies.keys():
            self._unanswered[node] += 1
            if self._unanswered[node] >= GREETINGS:
                _LOGGER.warning("node %d is left out: it does not say who it is", node)
                self._refused.add(node)
        for node, (header, sums) in sorted(replies.items()):
            client: Any = header.get("client")
            problem = self._check_greeting(node, client, header)
            if problem:
                _LOGGER.warning("node %d is left out: %s", node, problem)
                self._refused.add(node)
                continue
            self._node_of[client] = node
            self.examples[client] = header["examples"]
            self._silent[client] = self._resting[client] = 0
            self._note("query.hello", client, header)
            told = isinstance(sums, np.ndarray) and sums.dtype == np.int64
            if told and sums.shape == (2 * self.shape[-1] + 1,):
                self.channel_sums[client] = sums

    def _check_greeting(self, node: int, client: Any, header) -> str | None:
        examples, shape = header.get("examples"), header.get("shape")
        if type(client) is not int or not 0 <= client < self.num_clients:
            return (
                f"its client id is {client!r:.40}, and ids run from 0 to "
                f"{self.num_clients - 1}"
            )
        if type(examples) is not int or not 0 <= examples <= self.max_images:
            return (
                f"it says that it has {examples!r:.40} images; max-images allows "
                f"{self.max_images}"
            )
        if shape != list(self.shape) and examples:
            return f"its images are {shape!r:.80}, and the server's {list(self.shape)}"
        text = f"{header.get('request')} {node}"
        if self.keys is not None:
            key = self.keys / f"node-{client}.pub"
            if not key.exists() or not is_signed(key, text, header.get("proof")):
                return f"it does not prove that it is client {client}; see node-config"
        holder = self._node_of.get(client)
        if holder is not None and holder in set(self.grid.get_node_ids()):
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
            expected[node] = (request, blob)
            client = client_of.get(node)
            # Who has not said yet who it is hears of orders with the next request.
            orders = (
                []
                if client is None
                else [o.for_client(client)._asdict() for o in self.orders.values()]
            )
            header = {**header, "protocol": PROTOCOL, "request": request}
            message = Message(
                pack({**header, "orders": orders}, blob),
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

    def _note(self, kind: str, client: int, header) -> None:
        """Notes what a client says of its log and its time, under its own id alone."""
        for field, kept in (("orders", self.confirmed), ("closed", self.closed)):
            names = header.get(field)
            if isinstance(names, list):
                kept[client] = {n for n, o in self.orders.items() if o.name in names}
        seconds = header.get("cpu_seconds")
        # Bounded, because JSON has numbers that no float holds.
        if isinstance(seconds, int | float) and 0 <= seconds < 2**31:
            cost = {"kind": kind, "client": client, "cpu_seconds": float(seconds)}
            self.costs.append(cost)


def _read(message: Message, request: str, sent: Blob | None) -> tuple[dict, Any]:
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


def join_clients(grid, settings: Settings, shape: Sequence[int]) -> Roster:
    """Waits for enough clients, whose images have the shape of the server's.

    Raises:
      TooFewClientsError: they did not come in time.
    """
    config, workdir = settings.config, settings.workdir
    roster = Roster(
        grid,
        config.partition.clients,
        settings.timeouts,
        shape=shape,
        least=settings.min_clients,
        max_images=settings.max_images,
        keys=settings.keys,
        # Sums of colours are told once, before anything was ordered to be forgotten.
        normalise=config.data.normalise == "federated"
        and not (workdir / COLOURS_FILE).exists(),
    )
    roster.orders = books.read_book(workdir)
    present = roster.wait_for(settings.min_clients)
    _LOGGER.info("clients %s are there", ", ".join(map(str, present)))
    return roster
