"""The server's book of forget orders: what was ordered, who confirmed it, what is done.

An order names classes, clients who leave, or single examples by client and position in
that client's own data. A client is told only its own positions.

`orders.json` in the workdir is written whole before an order is sent, so that no
restart loses one; every later request of every run carries all orders along.
"""

import hashlib
import itertools
import json
import logging
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fuprune.errors import InputError, check_classes
from fuprune.files import write_whole
from fuprune.flower.node import Order
from fuprune.results import from_plain

_LOGGER = logging.getLogger(__name__)
ORDERS_FILE = "orders.json"


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

    def for_client(self, client: int) -> Order:
        """What one client is told."""
        own = tuple(place for holder, place in self.examples if holder == client)
        signature = self.signatures[client] if client < len(self.signatures) else ""
        named = self.classes, self.clients, own
        return Order(self.name, *named, self.closed, signature)

    def signed(self, key: Path, num_clients: int) -> "Entry":
        """The order with the operator's signatures."""
        from fuprune.flower.signatures import order_text, sign

        told = map(self.for_client, range(num_clients))
        texts = [order_text(o.order, k, *o[1:4]) for k, o in enumerate(told)]
        return self._replace(signatures=tuple(sign(key, text) for text in texts))

    def describe(self) -> str:
        """What it names, in a few words: `class 3`, or `2 examples of client 1`."""
        if self.examples:
            number, holders = len(self.examples), sorted({k for k, _ in self.examples})
            return f"{number} example{'s' * (number > 1)} of {_list('client', holders)}"
        if self.clients:
            return _list("client", self.clients)
        return _list("class", self.classes)


def _list(what: str, numbers: Sequence[int]) -> str:
    plural = {"class": "classes", "client": "clients"}[what]
    named = ", ".join(map(str, numbers))
    return f"{what if len(numbers) == 1 else plural} {named}"


def read(workdir: Path) -> dict[str, Entry]:
    """Every order of the workdir that was not withdrawn, by id."""
    found = {}
    for row in _rows(workdir):
        if "withdrawn" not in row:
            fields = {n: row[n] for n in Entry._fields if n in row}
            entry = from_plain(fields | {"order": row["order"]}, Entry, ORDERS_FILE)
            found[entry.order] = entry
    return found


def federation_id(workdir: Path) -> str:
    """Which federation the workdir is of; drawn when it is first asked for."""
    file = workdir / "federation"
    if not file.exists():
        write_whole(file, secrets.token_hex(8))
    return file.read_text("utf-8").strip()


def check_entry(
    entry: Entry, num_classes: int, num_clients: int, sizes: dict[int, int]
) -> Entry:
    """The order with its numbers sorted, if this federation can have such a one.

    `sizes` are the images of each client, as far as they are known.

    Raises:
      InputError: it names what does not exist.
    """
    name = entry.order
    if entry.classes:
        classes = tuple(sorted(check_classes(entry.classes, num_classes)))
        return entry._replace(classes=classes)
    for client in (*entry.clients, *(k for k, _ in entry.examples)):
        if not 0 <= client < num_clients:
            raise InputError(
                f"order {name!r} names client {client}; ids run from 0 to "
                f"{num_clients - 1}."
            )
    for client, place in entry.examples:
        if client not in sizes:
            raise InputError(
                f"order {name!r} names an example of client {client}, who is not "
                "there to say how many it has; wait until it is."
            )
        if not 0 <= place < sizes[client]:
            raise InputError(
                f"order {name!r} names example {place} of client {client}, whose "
                f"examples run from 0 to {sizes[client] - 1}."
            )
    return entry._replace(
        clients=tuple(sorted(set(entry.clients))),
        examples=tuple(sorted(set(entry.examples))),
    )


def open_order(workdir: Path, entry: Entry) -> Entry:
    """Enters an order that was checked, or finds it again after an interruption.

    Raises:
      InputError: the id was used for something else.
    """
    name = entry.order
    known = read(workdir).get(name)
    if known is None and any(row["order"] == name for row in _rows(workdir)):
        raise InputError(
            f"order {name!r} was withdrawn; give another request another id."
        )
    if known is None:
        row = {**entry._asdict(), "ordered": _now(), "confirmed": {}, "closed_by": {}}
        _write(workdir, [*_rows(workdir), row])
        return entry
    # Signatures are drawn afresh each time.
    if known._replace(closed=False, signatures=entry.signatures) != entry:
        raise InputError(
            f"order {name!r} is for {known.describe()}, not for {entry.describe()}; "
            "give another request another id."
        )
    return known


def withdraw(workdir: Path, name: str) -> None:
    """Takes an order back that no client has confirmed; its id stays used.

    Raises:
      InputError: there is none, or a client has it in its log.
    """
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


def close_order(workdir: Path, name: str) -> dict[str, Entry]:
    """Marks an order as carried out; gives all orders."""
    rows = _rows(workdir)
    for row in rows:
        if row["order"] == name:
            row["closed"] = True
            row.setdefault("done", _now())
    _write(workdir, rows)
    return read(workdir)


def confirm(workdir: Path, roster: Any) -> None:
    """Enters which clients have an order in their log, and which know it as closed.

    Of every order: clients that were away hear of it by any request.
    """
    rows = _rows(workdir)
    known = {"confirmed": roster.confirmed, "closed_by": roster.closed}
    for row, (field, orders) in itertools.product(rows, known.items()):
        for client, names in orders.items():
            if row["order"] in names:
                # The first confirmation counts; clients repeat it in every answer.
                row[field].setdefault(str(client), _now())
    if rows:
        _write(workdir, rows)


def holders(roster: Any, name: str) -> list[int]:
    """The clients that have confirmed an order."""
    return sorted(k for k, names in roster.confirmed.items() if name in names)


def send(workdir: Path, name: str, roster: Any) -> None:
    """Tells everybody who is there; the others hear of it with their next request."""
    present = roster.reachable()
    header = {"order": roster.orders[name].name}
    roster.exchange("query.forget", {k: (header, None) for k in present})
    confirm(workdir, roster)
    _LOGGER.info(
        "order %s is %s, and in the logs of clients %s",
        name,
        "closed" if roster.orders[name].closed else "open",
        ", ".join(map(str, holders(roster, name))) or "none",
    )


def folder_name(name: str) -> str:
    """A folder for an order: its id, and a digest that tells similar ids apart."""
    plain = re.sub(r"[^A-Za-z0-9-]", "_", name)[:40]
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _rows(workdir: Path) -> list[dict[str, Any]]:
    path = workdir / ORDERS_FILE
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def _write(workdir: Path, rows: list[dict[str, Any]]) -> None:
    write_whole(workdir / ORDERS_FILE, json.dumps(rows, indent=1) + "\n")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
