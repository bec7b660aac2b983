"""Forget orders: signed, in the server's book, and in each client's log.

An order names classes, clients who leave, or single examples by client and position in
that client's own data; a client is told only its own positions. `orders.json` in the
server's workdir is written whole before an order is sent, and `orders.jsonl` in a
client's folder is on disk before the client confirms; it is never rewritten.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import pydantic
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from fuprune.errors import InputError, check_classes
from fuprune.files import write_whole
from fuprune.results import from_plain

if TYPE_CHECKING:
    from fuprune.flower.node import Node
    from fuprune.flower.roster import Roster

_LOGGER = logging.getLogger(__name__)
BOOK = "orders.json"  # in the server's workdir
LOG = "orders.jsonl"  # in a client's folder
Numbers: TypeAlias = tuple[pydantic.NonNegativeInt, ...]
PRINTABLE = r"^[^\p{C}\p{Zl}\p{Zp}]{1,150}$"
Name: TypeAlias = Annotated[str, pydantic.StringConstraints(pattern=PRINTABLE)]
NAMED = ("classes", "clients", "examples", "hashes")


class Order(NamedTuple):
    """A forget order as a client is told it: what is not to be used from now on."""

    order: Name  # the federation's id and its own: "5f0c/2026-001"
    classes: Numbers = ()  # of images
    clients: Numbers = ()  # ids of those who leave the federation
    examples: Numbers = ()  # positions in this client's own data
    closed: bool = False  # forgetting is done: not even the method reads them any more
    signature: str = ""  # the operator's
    hashes: tuple[str, ...] = ()  # of the examples' images, when they were ordered

    def text(self, client: int) -> str:
        """What the operator signs of the order for one client."""
        named = (sorted({*getattr(self, name)}) for name in NAMED[:3])
        return json.dumps(["fuprune forget order", self.order, client, *named])


class Entry(NamedTuple):
    """A forget order as the server knows it; of one kind."""

    order: str  # its id
    classes: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()  # ids
    examples: tuple[tuple[int, int], ...] = ()  # (client, position in its data)
    closed: bool = False
    federation: str = ""  # the workdir's id, so that two servers' orders differ
    signatures: tuple[str, ...] = ()  # the operator's, by client

    @property
    def name(self) -> str:
        """Its id among those of all federations, which clients know it by."""
        return f"{self.federation}/{self.order}" if self.federation else self.order

    @property
    def folder(self) -> str:
        """A folder's name: its id, and a digest that tells similar ids apart."""
        plain = re.sub(r"[^A-Za-z0-9-]", "_", self.order)[:40]
        return f"{plain}-{hashlib.sha256(self.order.encode()).hexdigest()[:8]}"

    def for_client(self, client: int) -> Order:
        """What one client is told."""
        own = tuple(place for holder, place in self.examples if holder == client)
        signature = self.signatures[client] if client < len(self.signatures) else ""
        named = self.classes, self.clients, own
        return Order(self.name, *named, self.closed, signature)

    def signed(self, key: Path, num_clients: int) -> "Entry":
        """The order with the operator's signatures."""
        texts = (self.for_client(k).text(k) for k in range(num_clients))
        return self._replace(signatures=tuple(sign(key, text) for text in texts))


def sign(path: Path, text: str) -> str:
    """The signature of a text by a private OpenSSH key, in hexadecimal digits."""
    key = _read_key(path, lambda data: load_ssh_private_key(data, None))
    return key.sign(text.encode(), *_hashed(key)).hex()


def is_signed(path: Path, text: str, signature: Any) -> bool:
    """Whether the signature of a text is by the private half of a public key."""
    key = _read_key(path, load_ssh_public_key)
    with contextlib.suppress(InvalidSignature, TypeError, ValueError):
        key.verify(bytes.fromhex(signature), text.encode(), *_hashed(key))
        return True
    return False


def _hashed(key) -> tuple[ec.ECDSA, ...]:
    """What the nodes' curve takes beside a text, and the operator's does not."""
    of_node = isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey)
    return (ec.ECDSA(hashes.SHA384()),) if of_node else ()


def _read_key(path: Path, load) -> Any:
    try:
        return load(path.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no key that can be read ({error}).") from None


def read_log(folder: Path) -> dict[str, Order]:
    """The orders in a client's log, by id; a line that was cut short is left out."""
    orders: dict[str, Order] = {}
    path = folder / LOG
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(TypeError, ValueError):
            order = _order(json.loads(line))
            orders[order.order] = _joined(orders.get(order.order), order)
    return orders


def log_orders(node: "Node", received: Any) -> dict[str, Order]:
    """Appends what is new to the log, on disk before it returns; gives all orders."""
    told = [_order(row)._replace(hashes=()) for row in received]
    with open(node.folder / LOG, "a+", encoding="utf-8") as file:
        # Two processes of one client may receive the same order.
        fcntl.flock(file, fcntl.LOCK_EX)
        known = read_log(node.folder)
        new = [o for o in told if _joined(known.get(o.order), o) != known.get(o.order)]
        rows = [_checked(order, node, known.get(order.order)) for order in new]
        file.seek(0)
        # Half a line that a kill left behind must not take the next one with it.
        if (logged := file.read()) and not logged.endswith("\n"):
            file.write("\n")
        for order in rows:
            row = {**order._asdict(), "received": round(time.time(), 3)}
            file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_log(node.folder)


def _checked(order: Order, node: "Node", known: Order | None) -> Order:
    """An order of the operator's, with hashes of the images that it names."""
    text, key, name = order.text(node.client), node.operator, order.order
    if key is not None and not is_signed(key, text, order.signature):
        raise InputError(
            f"order {name!r} is not signed by {key}; sign it as "
            "`fuprune.flower.launch run` does."
        )
    places = sorted({*order.examples} - {*(known.examples if known else ())})
    if not places:
        return order
    images = node.data.images
    if places[-1] >= len(images):
        raise InputError(
            f"order {name!r} names image {places[-1]}, and this client has "
            f"{len(images)}."
        )
    return order._replace(hashes=tuple(hashes_of(images[places])))


def hashes_of(images: np.ndarray) -> list[str]:
    """SHA-256 of each image, by which it is known wherever it moves."""
    return [hashlib.sha256(image.tobytes()).hexdigest() for image in images]


def _order(row: Any) -> Order:
    """What a row of a request or of the log says; a log says more than an order."""
    said = {name: row[name] for name in Order._fields if name in row}
    return from_plain(said, Order, "an order")


def _joined(known: Order | None, order: Order) -> Order:
    """What was closed stays closed, and what was to be forgotten stays so."""
    known = known or order
    named = {n: tuple(sorted({*getattr(known, n), *getattr(order, n)})) for n in NAMED}
    return known._replace(closed=known.closed or order.closed, **named)


def in_force(orders: Mapping[str, Order], order: object) -> list[Order]:
    """The orders that bind a request: all but the open one that it carries out."""
    return [o for o in orders.values() if o.closed or o.order != order]


def left_by(client: int, orders: Mapping[str, Order], order: object) -> str | None:
    """The id of an order by which a client takes part in nothing any more, or None."""
    found = (o.order for o in in_force(orders, order) if client in o.clients)
    return next(found, None)


def read_book(workdir: Path) -> dict[str, Entry]:
    """Every order of the workdir that was not withdrawn, by id."""
    found = {}
    for row in _rows(workdir):
        if "withdrawn" not in row:
            fields = {n: row[n] for n in Entry._fields if n in row}
            found[row["order"]] = from_plain(fields, Entry, BOOK)
    return found


def federation_id(workdir: Path) -> str:
    """Which federation the workdir is of; drawn when it is first asked for."""
    file = workdir / "federation"
    if not file.exists():
        write_whole(file, secrets.token_hex(8))
    return file.read_text("utf-8").strip()


def check_entry(
    entry: Entry, num_classes: int, num_clients: int, sizes: Mapping[int, int]
) -> Entry:
    """The order with its numbers sorted, if this federation can have such a one.

    `sizes` are the images of each client that is there.
    """
    classes = check_classes(entry.classes, num_classes) if entry.classes else ()
    named = (*entry.clients, *(client for client, _ in entry.examples))
    wrong = [client for client in named if not 0 <= client < num_clients]
    problem = f"client {wrong[0]}; ids run from 0 to {num_clients - 1}" if wrong else ""
    for client, place in () if wrong else entry.examples:
        if client not in sizes:
            problem = f"an example of client {client}, who is not there; wait for it"
        elif not 0 <= place < sizes[client]:
            most = sizes[client] - 1
            problem = f"example {place} of client {client}; allowed: 0 to {most}"
    if problem:
        raise InputError(f"order {entry.order!r} names {problem}.")
    return entry._replace(
        classes=tuple(sorted(classes)),
        clients=tuple(sorted({*entry.clients})),
        examples=tuple(sorted({*entry.examples})),
    )


def open_order(workdir: Path, entry: Entry) -> Entry:
    """Enters an order that was checked, or finds it again after an interruption."""
    name, rows = entry.order, _rows(workdir)
    if all(row["order"] != name for row in rows):
        row = {**entry._asdict(), "ordered": _now(), "confirmed": {}, "closed_by": {}}
        _write(workdir, [*rows, row])
    known = read_book(workdir).get(name)
    # Signatures are drawn afresh each time.
    if known is None or known[:4] != entry[:4]:
        raise InputError(
            f"order {name!r} was withdrawn, or is for something else; give another "
            "request another id."
        )
    return known


def withdraw(workdir: Path, name: str) -> None:
    """Takes an order back that no client has confirmed; its id stays used."""
    rows = _rows(workdir)
    row = next((row for row in rows if row["order"] == name), None)
    if row is None or row["confirmed"] or row["closed"]:
        holders = ", ".join(row["confirmed"]) if row else ""
        why = f"is in the logs of clients {holders}" if row else "is unknown here"
        raise InputError(
            f"order {name!r} {why}; only one that no client has confirmed is withdrawn."
        )
    row["withdrawn"] = _now()
    _write(workdir, rows)


def close_order(workdir: Path, name: str) -> None:
    """Marks an order as carried out."""
    rows = _rows(workdir)
    row = next(row for row in rows if row["order"] == name)
    row |= {"closed": True, "done": row.get("done", _now())}
    _write(workdir, rows)


def confirm(workdir: Path, roster: "Roster") -> None:
    """Enters which clients have an order in their log, and which know it as closed.

    Of every order: clients that were away hear of it by any request.
    """
    rows = _rows(workdir)
    for row in rows:
        known = {"confirmed": roster.confirmed, "closed_by": roster.closed}
        for field, orders in known.items():
            for client in (k for k, names in orders.items() if row["order"] in names):
                # The first confirmation counts; clients repeat it in every answer.
                row[field].setdefault(str(client), _now())
    if rows:
        _write(workdir, rows)


def send(workdir: Path, name: str, roster: "Roster") -> None:
    """Tells everybody who is there; the others hear of it with their next request."""
    order = roster.orders[name]
    asked = {"order": order.name}, None
    roster.exchange("query.forget", dict.fromkeys(roster.reachable(), asked))
    confirm(workdir, roster)
    holders = sorted(k for k, names in roster.confirmed.items() if name in names)
    state = "closed" if order.closed else "open"
    told = ", ".join(map(str, holders)) or "none"
    _LOGGER.info("order %s is %s, and in the logs of clients %s", name, state, told)


def _rows(workdir: Path) -> list[dict[str, Any]]:
    path = workdir / BOOK
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def _write(workdir: Path, rows: list[dict[str, Any]]) -> None:
    write_whole(workdir / BOOK, json.dumps(rows, indent=1) + "\n")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
