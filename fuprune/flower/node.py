"""What a client keeps on its own disk: its data, its log of forget orders, its secrets.

The node's config says who the client is: `client-id`, the `folder` for its files, and
`data`, the source of its own images. Without `data` the node plays one client of a
rehearsal: it takes its part of the dataset that the run names.

Flower starts a process for every message, so whatever a client must remember is in its
folder: `orders.jsonl`, appended to and never rewritten; `sums/`, the keys of secure
sums under way, readable by their owner alone; `compiled/`, JAX's compilation cache; and
its part of a rehearsal.
"""

import fcntl
import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fuprune import __version__
from fuprune.errors import InputError
from fuprune.files import write_whole
from fuprune.results import from_plain, to_plain

ORDERS_FILE = "orders.jsonl"


class Order(NamedTuple):
    """A forget order as a client is told it: what is not to be used from now on.

    An order may name nothing of a client's. It is logged all the same.
    """

    order: str  # its id
    classes: tuple[int, ...] = ()  # of images
    clients: tuple[int, ...] = ()  # ids of those who leave the federation
    examples: tuple[int, ...] = ()  # positions in this client's own data
    closed: bool = False  # forgetting is done: not even the method reads them any more


NAMES = ("classes", "clients", "examples")


class Node(NamedTuple):
    """A client: who it is and what it holds."""

    client: int  # id, from 0
    folder: Path
    images: np.ndarray  # [n, H, W, C] uint8
    labels: np.ndarray  # [n] int32


def load_node(
    node_config: Mapping[str, Any], run_config: Mapping[str, Any], *, data: bool = True
) -> Node:
    """The client that a node's config describes.

    Args:
      node_config: `client-id`; `folder`, by default in the user's home; `data` and
        `data-dir`, the client's own source of images.
      run_config: of the app; read only if the node has no data of its own.
      data: whether its images are loaded; without, the node has none.

    Raises:
      InputError: an id or the data are missing or of the wrong kind.
    """
    client = node_config.get("client-id")
    if type(client) is not int or client < 0:
        raise InputError(
            f"client-id is {client!r}, but must be a whole number from 0; start the "
            'SuperNode with --node-config "client-id=0 ...".'
        )
    default = Path.home() / ".fuprune" / f"client-{client}"
    folder = Path(str(node_config.get("folder") or default)).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not data:
        held = np.zeros((0, 0, 0, 0), np.uint8), np.zeros(0, np.int32)
    elif name := node_config.get("data"):
        from fuprune.data import sources

        where = str(node_config.get("data-dir", "")) or None
        held = sources.load(str(name), split="train", data_dir=where)
    else:
        held = _part(folder, str(run_config.get("config", "")), client)
    return Node(client, folder, *held)


def _part(folder: Path, text: str, client: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's part of the dataset that the run names, from its folder if there."""
    # Another version may deal the same config otherwise.
    named = hashlib.sha256(f"{__version__} {client} {text}".encode()).hexdigest()
    file = folder / "rehearsal.npz"
    if file.exists():
        with np.load(file, allow_pickle=False) as kept:
            if str(kept["named"]) == named:
                return kept["images"], kept["labels"]
    images, labels = _rehearsed_data(text, client)
    write_whole(
        file, lambda to: np.savez(to, named=named, images=images, labels=labels)
    )
    return images, labels


@functools.lru_cache(maxsize=8)
def _rehearsed_data(text: str, client: int):
    """One client's part of the dataset that the run names, dealt afresh."""
    import jax

    from fuprune.flower.settings import read_config
    from fuprune.run.data import load_data
    from fuprune.run.machine import Runtime

    config = read_config(text)
    federation = load_data(config, Runtime())
    if client >= federation.data.num_clients:
        raise InputError(
            f"client-id is {client}, but the rehearsal has "
            f"{federation.data.num_clients} clients; set partition.clients."
        )
    rows, lengths = jax.device_get((federation.data.rows, federation.data.lengths))
    chosen = rows[client][: lengths[client]]
    return federation.train.images[chosen], federation.train.labels[chosen]


def keep_compiled_programs(folder: Path) -> None:
    """Has JAX keep what it compiles for the next message or run, another process."""
    import jax

    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(folder / "compiled")
    jax.config.update("jax_compilation_cache_dir", cache)
    # Everything, however small: each message may be a process of its own.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def read_orders(folder: Path) -> dict[str, Order]:
    """The orders in a client's log, by id; a line that was cut short is left out."""
    path = folder / ORDERS_FILE
    orders: dict[str, Order] = {}
    if not path.exists():
        return orders
    for line in path.read_text("utf-8").splitlines():
        try:
            order = _order(json.loads(line))
        except (ValueError, InputError):
            continue
        orders[order.order] = _joined(orders.get(order.order), order)
    return orders


def log_orders(folder: Path, received: Sequence[Any]) -> dict[str, Order]:
    """Appends what is new to the log, on disk before it returns; gives all orders.

    Raises:
      InputError: one of them is not an order.
    """
    if not isinstance(received, list | tuple):
        raise InputError(f"orders are {received!r:.80}, but must be a list.")
    new = [_order(row) for row in received]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ORDERS_FILE, "a+", encoding="utf-8") as file:
        # Two processes of one client may receive the same order.
        fcntl.flock(file, fcntl.LOCK_EX)
        known = read_orders(folder)
        file.seek(0)
        # Half a line that a kill left behind must not take the next one with it.
        if (logged := file.read()) and not logged.endswith("\n"):
            file.write("\n")
        for order in new:
            before = known.get(order.order)
            if _joined(before, order) != before:
                row = {**order._asdict(), "received": round(time.time(), 3)}
                file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_orders(folder)


def _joined(known: Order | None, order: Order) -> Order:
    """What was closed stays closed, and what was to be forgotten stays so."""
    if known is None:
        return order
    named = (sorted({*getattr(known, n), *getattr(order, n)}) for n in NAMES)
    closed = known.closed or order.closed
    return Order(order.order, *map(tuple, named), closed=closed)


def _order(row: Any) -> Order:
    said = to_plain(row) if isinstance(row, Mapping) else {}
    # What it does not name is as by default; a log says more than an order.
    said = {**to_plain(Order("")), **said}
    order = from_plain({n: said[n] for n in Order._fields}, Order, "an order")
    name, *named, closed = order
    lowest = min(itertools.chain(*named), default=0)
    if not (0 < len(name) <= 100 and name.isprintable()) or lowest < 0:
        raise InputError(
            f"an order is {row!r:.200}, but must have an id of up to 100 characters, "
            "and whole numbers from 0 for classes, clients and examples."
        )
    return Order(name, *(tuple(sorted({*u})) for u in named), closed=closed)


def in_force(orders: Mapping[str, Order], order: object) -> list[Order]:
    """The orders that bind a request: all but the open one that it carries out."""
    return [o for o in orders.values() if o.closed or o.order != order]


def left_by(client: int, orders: Mapping[str, Order], order: object) -> str | None:
    """The id of an order by which a client takes part in nothing any more, or None."""
    for known in in_force(orders, order):
        if client in known.clients:
            return known.order
    return None


def usable(
    node: Node,
    orders: Mapping[str, Order],
    classes: Sequence[int],
    order: str | None,
    *,
    named: bool = False,
) -> np.ndarray:
    """Positions of the images that a request may read.

    Args:
      node: the client.
      orders: its log.
      classes: those that the request asks for.
      order: the open order that the request carries out, and may read what it names.
      named: whether the request also asks for the single images that the order names,
        which belong to no class as long as the order is known.

    Returns:
      [m] int32 in the client's own order.
    """
    binding = in_force(orders, order)
    if left_by(node.client, orders, order) is not None:
        return np.zeros(0, np.int32)
    forgotten = {u for known in binding for u in known.classes}
    wanted = np.isin(node.labels, sorted({int(u) for u in classes} - forgotten))
    places = np.arange(len(node.labels))
    # Also of the order that the request carries out: single images are asked for by
    # `named` only, never by their class.
    wanted &= ~np.isin(places, [i for o in orders.values() for i in o.examples])
    carried_out = orders.get(order or "")
    if named and carried_out is not None and not carried_out.closed:
        own = np.isin(places, carried_out.examples)
        # What another order names is out of reach for this one as well.
        own &= ~np.isin(places, [i for o in binding for i in o.examples])
        wanted |= own & ~np.isin(node.labels, sorted(forgotten))
    return np.flatnonzero(wanted).astype(np.int32)


def keep_labels(folder: Path, order: str, labels: np.ndarray) -> None:
    """Keeps the labels that an order's images are to be taught under, [n] int32."""
    write_whole(
        _labels_path(folder, order),
        lambda file: np.save(file, labels, allow_pickle=False),
    )


def recall_labels(folder: Path, order: str) -> np.ndarray:
    """What `keep_labels` kept.

    Raises:
      InputError: this client was not asked for new labels.
    """
    path = _labels_path(folder, order)
    if not path.is_file():
        raise InputError(f"this client has no new labels for order {order[:80]!r}.")
    return np.load(path, allow_pickle=False)


def _labels_path(folder: Path, order: str) -> Path:
    name = hashlib.sha256(order.encode()).hexdigest()[:32]
    return folder / "labels" / f"{name}.npy"


def keep_secret(folder: Path, session: str, secret: Mapping[str, Any]) -> None:
    """Keeps what one secure sum needs until its last message; mode 0600."""
    path = _secret_path(folder, session)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(path.parent, 0o700)
    write_whole(path, json.dumps(dict(secret)), mode=0o600)


def recall_secret(folder: Path, session: str) -> dict[str, Any]:
    """What `keep_secret` kept.

    Raises:
      InputError: there is nothing, because this client did not start that sum or is
        through with it.
    """
    path = _secret_path(folder, session)
    if not path.is_file():
        raise InputError(
            f"secure sum {session[:40]!r} is unknown here, or was answered before; "
            "start another one."
        )
    return json.loads(path.read_text("utf-8"))


def drop_secret(folder: Path, session: str) -> None:
    """Forgets the keys of a secure sum: its last message has been answered."""
    _secret_path(folder, session).unlink(missing_ok=True)


def _secret_path(folder: Path, session: str) -> Path:
    if not (isinstance(session, str) and session.isalnum() and len(session) <= 64):
        raise InputError(f"session is {session!r:.80}, but must be letters and digits.")
    return folder / "sums" / f"{session}.json"
