"""The ClientApp: Flower's messages in, a client's answers out.

The node's config says who the client is: `client-id`, the `folder` for its log, secrets
and compiled programs, and `data`, the source of its own images. Without `data` the node
plays one client of a rehearsal: it takes its part of the dataset that the run names,
and keeps it in the folder, since the next message is a process of its own.
"""

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fuprune import __version__
from fuprune.errors import FupruneError, InputError
from fuprune.files import write_whole
from fuprune.flower import answers, records
from fuprune.flower.node import Node

app = ClientApp()


def reply_to(kind: str, message: Message, context: Context) -> Message:
    """Answers one message; whatever cannot be done is told in one line."""
    # Not caught: without a header there is no request to answer to.
    header, tree = records.unpack(message.content)
    node_config, run_config = dict(context.node_config), dict(context.run_config)
    try:
        node = load_node(node_config, run_config, data=kind not in answers.WITHOUT_DATA)
    except FupruneError as error:
        reply, content = {"request": header.get("request"), "problem": str(error)}, None
    else:
        reply, content = answers.answer(kind, header, tree, node)
    return Message(records.pack(reply, content), reply_to=message)


def load_node(
    node_config: dict[str, Any], run_config: dict[str, Any], *, data: bool = True
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
    name = node_config.get("data")
    where = str(node_config.get("data-dir", "")) or None
    if not data:
        images, labels = np.zeros((0, 0, 0, 0), np.uint8), np.zeros(0, np.int32)
    elif name:
        images, labels = _own_data(str(name), where)
    else:
        images, labels = _part(folder, str(run_config.get("config", "")), client)
    return Node(client, folder, images, labels)


@functools.lru_cache(maxsize=1)
def _own_data(name: str, where: str | None):
    from fuprune.data import sources

    held = sources.load(name, split="train", data_dir=where)
    return held.images, held.labels


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
    """One client's part of the dataset that the run names."""
    import jax

    from fuprune.flower.settings import read_config
    from fuprune.run.federation import make_federation
    from fuprune.run.machine import Runtime

    config = read_config(text)
    federation = make_federation(config, Runtime(None, "auto", "xla", 0, 1))
    if client >= federation.data.num_clients:
        raise InputError(
            f"client-id is {client}, but the rehearsal has "
            f"{federation.data.num_clients} clients; set partition.clients."
        )
    rows, lengths = jax.device_get((federation.data.rows, federation.data.lengths))
    chosen = rows[client][: lengths[client]]
    return federation.train.images[chosen], federation.train.labels[chosen]


def _register(kind: str) -> None:
    category, _, action = kind.partition(".")

    @getattr(app, category)(action or "default")
    def answer(message: Message, context: Context) -> Message:
        return reply_to(kind, message, context)


for _kind in answers.KINDS:
    _register(_kind)
