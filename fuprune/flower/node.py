"""A client: who it is, its images, and which of them a request may read.

The node's config says who it is: `client-id`, the `folder` for its files, and `data`,
the source of its images. With `operator`, orders count only if they are signed by that
key; with `key`, the client proves who it is. Flower starts a process for every message,
so what a client must remember is in its folder, readable by its owner alone.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuprune.data import sources
from fuprune.data.dataset import Dataset, checked
from fuprune.errors import InputError
from fuprune.flower.orders import Order, hashes_of, in_force, left_by

# What the arrays of an .npz file may be called, as in `data.npz_source`.
_NAMES = (
    ("train_images", "train_labels"),
    ("images", "labels"),
    ("x_train", "y_train"),
)


@dataclasses.dataclass(frozen=True)
class Node:
    """A client: who it is and what it holds."""

    client: int  # id, from 0
    folder: Path
    load: Callable[[], Dataset]  # its images; most messages need none
    operator: Path | None = None  # whose signature orders need
    key: Path | None = None  # that proves who it is

    @functools.cached_property
    def data(self) -> Dataset:
        """Its images and labels, in their order."""
        return self.load()


def load_node(config: Mapping[str, Any]) -> Node:
    """The client that a node's config describes."""
    client, data = config.get("client-id"), config.get("data")
    if type(client) is not int or client < 0 or not data:
        raise InputError(
            f"client-id is {client!r} and data {data!r}, but must be a whole number "
            "from 0 and a source of images; start the SuperNode with --node-config "
            "'client-id=0 data=\"npz:/data/mine.npz\" ...'."
        )
    default = Path.home() / ".fuprune" / f"client-{client}"
    folder = Path(str(config.get("folder") or default)).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    load = functools.partial(_load, str(data), str(config.get("data-dir", "")))
    keys = (config.get(name) for name in ("operator", "key"))
    return Node(client, folder, load, *(Path(str(k)) if k else None for k in keys))


def _load(name: str, where: str) -> Dataset:
    """All images of the client's own source, in their order; of classes it may lack.

    Of an .npz file all, whereas a set that is to be trained and tested on in one place
    has a part set aside.
    """
    if not name.startswith("npz:"):
        return sources.load(name, split="train", data_dir=where or None)
    path = Path(where, name.removeprefix("npz:")).expanduser()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = next(pair for pair in _NAMES if pair[0] in arrays)
            images, labels = (arrays[name] for name in names)
    except (OSError, ValueError, KeyError, StopIteration) as error:
        raise InputError(
            f"{path} is no .npz file with {' and '.join(_NAMES[0])} ({error})."
        ) from None
    # Of a rehearsal's clients some may have nothing.
    return checked(images, labels, path) if len(images) else Dataset(images, labels)


def usable(
    node: Node,
    orders: Mapping[str, Order],
    classes: Sequence[int],
    order: str | None,
    *,
    named: bool = False,
) -> np.ndarray:
    """Positions of the images that a request may read, [m] int32.

    It asks for `classes`, and if `named` for the single images of the open `order` that
    it carries out, which belong to no class as long as the order is known.
    """
    images, labels = node.data
    binding = in_force(orders, order)
    if left_by(node.client, orders, order) is not None:
        return np.zeros(0, np.int32)
    forgotten = {u for known in binding for u in known.classes}
    wanted = np.isin(labels, sorted({*classes} - forgotten))
    single = {*itertools.chain.from_iterable(o.hashes for o in orders.values())}
    if single:
        # By what they show and not by where they are: files change.
        found = np.asarray(hashes_of(images))
        # Also of the order that the request carries out: single images are asked for
        # by `named` only, never by their class.
        wanted &= ~np.isin(found, sorted(single))
        carried_out = orders.get(order or "")
        if named and carried_out is not None and not carried_out.closed:
            # What another order names is out of reach for this one as well.
            others = {h for known in binding for h in known.hashes}
            own = np.isin(found, sorted({*carried_out.hashes} - others))
            wanted |= own & ~np.isin(labels, sorted(forgotten))
    return np.flatnonzero(wanted).astype(np.int32)
