"""What a client keeps on its own disk: its data, its log of forget orders, its secrets.

The node's config says who the client is: `client-id`, the `folder` for its files, and
`data`, the source of its own images. Without `data` the node plays one client of a
rehearsal: it takes its part of the dataset that the run names. With `operator`, orders
count only if they are signed by that key; with `key`, the client proves who it is.

Flower starts a process for every message, so whatever a client must remember is in its
folder, readable by its owner alone: `orders.jsonl`, appended to and never rewritten;
`sums/`, the keys of secure sums under way and what was answered; `compiled/`, JAX's
compilation cache; and its part of a rehearsal.
"""

import fcntl
import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fuprune import __version__
from fuprune.errors import InputError
from fuprune.files import write_whole
from fuprune.results import from_plain, to_plain

ORDERS_FILE = "orders.jsonl"
# What the arrays of an .npz file may be called, as in `data.npz_source`.
_IMAGES = ("train_images", "images", "x_train")
_LABELS = ("train_labels", "labels", "y_train")


class Order(NamedTuple):
    """A forget order as a client is told it: what is not to be used from now on.

    An order may name nothing of a client's. It is logged all the same.
    """

    order: str  # the federation's id and its own: "5f0c/2026-001"
    classes: tuple[int, ...] = ()  # of images
    clients: tuple[int, ...] = ()  # ids of those who leave the federation
    examples: tuple[int, ...] = ()  # positions in this client's own data
    closed: bool = False  # forgetting is done: not even the method reads them any more
    signature: str = ""  # the operator's
    hashes: tuple[str, ...] = ()  # of the examples' images, when they were ordered


NAMES = ("classes", "clients", "examples", "hashes")


class Node(NamedTuple):
    """A client: who it is and what it holds."""

    client: int  # id, from 0
    folder: Path
    images: np.ndarray  # [n, H, W, C] uint8
    labels: np.ndarray  # [n] int32
    operator: Path | None = None  # whose signature orders need
    key: Path | None = None  # that proves who it is


def load_node(
    node_config: Mapping[str, Any], run_config: Mapping[str, Any], *, data: bool = True
) -> Node:
    """The client that a node's config describes.

    Args:
      node_config: `client-id`; `folder`, by default in the user's home; `data` and
        `data-dir`, the client's own source of images; `operator` and `key`.
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
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = np.zeros((0, 0, 0, 0), np.uint8), np.zeros(0, np.int32)
    if data and (name := node_config.get("data")):
        held = _own(str(name), str(node_config.get("data-dir", "")))
    elif data:
        held = _part(folder, str(run_config.get("config", "")), client)
    keys = (node_config.get(name) for name in ("operator", "key"))
    return Node(
        client, folder, *held, *(Path(str(key)) if key else None for key in keys)
    )


def _own(name: str, where: str) -> tuple[np.ndarray, np.ndarray]:
    """All images of the client's own source, in their order; of classes it may lack.

    Of an .npz file all, whereas a set that is to be trained and tested on in one place
    has a part set aside.
    """
    from fuprune.data import sources
    from fuprune.data.dataset import checked

    if not name.startswith("npz:"):
        return sources.load(name, split="train", data_dir=where or None)
    path = Path(where, name.removeprefix("npz:")).expanduser()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = [[n for n in names if n in arrays] for names in (_IMAGES, _LABELS)]
            images, labels = (arrays[name] for (name, *_) in found)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is no .npz file with {_IMAGES[0]} and {_LABELS[0]} ({error})."
        ) from None
    return checked(images, labels, path)


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
        file,
        lambda to: np.savez(to, named=named, images=images, labels=labels),
        mode=0o600,
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


def log_orders(
    node: Node,
    received: Sequence[Any],
    load: Callable[[], Node] | None = None,
) -> dict[str, Order]:
    """Appends what is new to the log, on disk before it returns; gives all orders.

    `load` gives the node with its images, if an order names some of them.

    Raises:
      InputError: one of them is not an order, or is not the operator's.
    """
    if not isinstance(received, list | tuple):
        raise InputError(f"orders are {received!r:.80}, but must be a list.")
    told = [_order(row)._replace(hashes=()) for row in received]
    with open(node.folder / ORDERS_FILE, "a+", encoding="utf-8") as file:
        # Two processes of one client may receive the same order.
        fcntl.flock(file, fcntl.LOCK_EX)
        known = read_orders(node.folder)
        new = [o for o in told if _joined(known.get(o.order), o) != known.get(o.order)]
        rows = [_checked(order, node, known, load) for order in new]
        file.seek(0)
        # Half a line that a kill left behind must not take the next one with it.
        if (logged := file.read()) and not logged.endswith("\n"):
            file.write("\n")
        for order in rows:
            row = {**order._asdict(), "received": round(time.time(), 3)}
            file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_orders(node.folder)


def _checked(
    order: Order, node: Node, known: Mapping[str, Order], load: Callable | None
) -> Order:
    """An order of the operator's, with hashes of the images that it names."""
    if node.operator is not None:
        from fuprune.flower.signatures import is_signed, order_text

        text = order_text(order.order, node.client, *order[1:4])
        if not is_signed(node.operator, text, order.signature):
            raise InputError(
                f"order {order.order!r} is not signed by {node.operator}; sign it as "
                "`fuprune.flower.launch run` does."
            )
    before = known.get(order.order)
    places = set(order.examples) - set(before.examples if before else ())
    if not places:
        return order
    images = (node if load is None else load()).images
    if max(places) >= len(images):
        raise InputError(
            f"order {order.order!r} names image {max(places)}, and this client has "
            f"{len(images)}."
        )
    found = hashes_of(images)
    return order._replace(hashes=tuple(sorted({found[i] for i in places})))


def hashes_of(images: np.ndarray) -> list[str]:
    """SHA-256 of each image, by which it is known wherever it moves."""
    return [hashlib.sha256(image.tobytes()).hexdigest() for image in images]


def _joined(known: Order | None, order: Order) -> Order:
    """What was closed stays closed, and what was to be forgotten stays so."""
    if known is None:
        return order
    named = {n: tuple(sorted({*getattr(known, n), *getattr(order, n)})) for n in NAMES}
    return known._replace(closed=known.closed or order.closed, **named)


def _order(row: Any) -> Order:
    said = to_plain(row) if isinstance(row, Mapping) else {}
    # What it does not name is as by default; a log says more than an order.
    said = {**to_plain(Order("")), **said}
    order = from_plain({n: said[n] for n in Order._fields}, Order, "an order")
    numbers = (*order.classes, *order.clients, *order.examples)
    name, lowest = order.order, min(numbers, default=0)
    if not (0 < len(name) <= 150 and name.isprintable()) or lowest < 0:
        raise InputError(
            f"an order is {row!r:.200}, but must have an id of up to 150 characters, "
            "and whole numbers from 0 for classes, clients and examples."
        )
    return order._replace(**{n: tuple(sorted({*getattr(order, n)})) for n in NAMES})


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
    single = set(itertools.chain.from_iterable(o.hashes for o in orders.values()))
    if single:
        # By what they show and not by where they are: files change.
        found = np.asarray(hashes_of(node.images))
        # Also of the order that the request carries out: single images are asked for
        # by `named` only, never by their class.
        wanted &= ~np.isin(found, sorted(single))
        carried_out = orders.get(order or "")
        if named and carried_out is not None and not carried_out.closed:
            # What another order names is out of reach for this one as well.
            others = {h for known in binding for h in known.hashes}
            own = np.isin(found, sorted({*carried_out.hashes} - others))
            wanted |= own & ~np.isin(node.labels, sorted(forgotten))
    return np.flatnonzero(wanted).astype(np.int32)


def keep_labels(folder: Path, order: str, labels: np.ndarray) -> None:
    """Keeps the labels that an order's images are to be taught under, [n] int32."""
    write_whole(
        _labels_path(folder, order),
        lambda file: np.save(file, labels, allow_pickle=False),
        mode=0o600,
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


def answer_once(folder: Path, question: str, *, look: bool = False) -> None:
    """Notes that the answer to a question goes into a sum that is opened.

    Two sums of the same statistics, of other clients each, differ by a client's own.
    With `look` it only looks whether it may.

    Raises:
      InputError: it went into one before.
    """
    path = folder / "sums" / "answered" / hashlib.sha256(question.encode()).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        if look and not path.exists():
            return
        path.touch(exist_ok=False)
    except FileExistsError:
        raise InputError(
            "this client's statistics of this model are in a secure sum already; two "
            "sums would show by their difference what one client sent."
        ) from None


def _secret_path(folder: Path, session: str) -> Path:
    if not (isinstance(session, str) and session.isalnum() and len(session) <= 64):
        raise InputError(f"session is {session!r:.80}, but must be letters and digits.")
    return folder / "sums" / f"{session}.json"
