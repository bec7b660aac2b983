"""The server's book of forget orders: what was ordered, who confirmed it, what is done.

`orders.json` in the workdir is written whole before an order is sent, so that no
restart loses one; every later request of every run carries all orders along.
"""

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

from fuprune.classes import check_classes
from fuprune.errors import InputError
from fuprune.files import write_whole
from fuprune.flower.node import Order

ORDERS_FILE = "orders.json"


def read(workdir: Path) -> dict[str, Order]:
    """Every order of the workdir, by id."""
    return {
        row["order"]: Order(row["order"], tuple(row["classes"]), row["closed"])
        for row in _rows(workdir)
    }


def open_order(
    workdir: Path, name: str, classes: tuple[int, ...], num_classes: int
) -> Order:
    """Enters an order, or finds the same one again after an interruption.

    Raises:
      InputError: the id was used for other classes, or the classes do not exist.
    """
    classes = tuple(sorted(check_classes(classes, num_classes)))
    if not re.fullmatch(r"[\w.:@+-]{1,100}", name):
        raise InputError(
            f"order is {name!r:.120}, but an id is up to 100 letters, digits and "
            ". : @ + - _."
        )
    known = read(workdir).get(name)
    if known is None:
        row = {"order": name, "classes": list(classes), "closed": False}
        row |= {"ordered": _now(), "confirmed": {}, "closed_by": {}}
        _write(workdir, [*_rows(workdir), row])
        return Order(name, classes)
    if known.classes != classes:
        raise InputError(
            f"order {name!r} is for classes {list(known.classes)}, not "
            f"{list(classes)}; give another request another id."
        )
    return known


def close_order(workdir: Path, name: str) -> dict[str, Order]:
    """Marks an order as carried out; gives all orders."""
    rows = _rows(workdir)
    for row in rows:
        if row["order"] == name:
            row["closed"] = True
            row["done"] = _now()
    _write(workdir, rows)
    return read(workdir)


def confirm(workdir: Path, name: str, roster: Any) -> None:
    """Enters which clients have an order in their log, and which know it as closed."""
    rows = _rows(workdir)
    for row in rows:
        if row["order"] != name:
            continue
        for field, known in (
            ("confirmed", roster.confirmed),
            ("closed_by", roster.closed),
        ):
            for client, names in known.items():
                if name in names:
                    row[field].setdefault(str(client), _now())
    _write(workdir, rows)


def confirm_all(workdir: Path, roster: Any) -> None:
    """`confirm` for every order: clients that were away hear of it by any request."""
    for name in read(workdir):
        confirm(workdir, name, roster)


def holders(roster: Any, name: str) -> list[int]:
    """The clients that have confirmed an order."""
    return sorted(k for k, names in roster.confirmed.items() if name in names)


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
