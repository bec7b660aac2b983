"""A client's answers to the server's requests: header and arrays in, the same out.

Every request carries the forget orders in force, so a client that slept through one
logs it before it does anything else; and the network's spec, so a client that slept
through a cut needs nothing else. Whatever needs JAX is imported by the answer that
needs it, because Flower starts a process for every message.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from fuprune.errors import InputError
from fuprune.flower import node as nodes
from fuprune.flower.node import Node
from fuprune.flower.records import PROTOCOL

Answer = tuple[dict[str, Any], Any]


def answer(kind: str, header: Mapping[str, Any], tree: Any, node: Node) -> Answer:
    """What a client replies to one message.

    Args:
      kind: of the message, one of `KINDS`.
      header: of the request.
      tree: the arrays of the request.
      node: the client.

    Returns:
      The header and the arrays of the reply. A request that cannot be answered gives
      a header with `problem`, one line.
    """
    reply: dict[str, Any] = {
        "request": header.get("request"),
        "client": node.client,
        "problem": None,
    }
    content = None
    try:
        if header.get("protocol") != PROTOCOL:
            raise InputError(
                f"the request is of protocol {header.get('protocol')!r:.40} and this "
                f"client speaks {PROTOCOL}; install the same version of fuprune."
            )
        # Before the request itself: whatever it asks for is already bound by the orders
        # that came with it.
        orders = nodes.log_orders(node.folder, header.get("orders", ()))
        reply["orders"] = sorted(orders)
        reply["closed"] = sorted(o.order for o in orders.values() if o.closed)
        # Who has left still says who it is and confirms orders, its own among them.
        gone = nodes.left_by(node.client, orders, header.get("order"))
        if gone is not None and kind not in ("query.hello", "query.forget"):
            raise InputError(
                f"this client has left the federation by order {gone!r}, and takes "
                "part in nothing."
            )
        more, content = KINDS[kind](header, tree, node)
        reply |= more
    except InputError as error:
        reply["problem"] = " ".join(str(error).split())[:500]
    # Flower starts a process for each message: it is all that the message has cost.
    reply["cpu_seconds"] = round(time.process_time(), 3)
    return reply, content


def _hello(header, tree, node: Node) -> Answer:
    """Who this client is: its id, how many images it holds and of which shape."""
    del tree
    said: dict[str, Any] = {
        "examples": len(node.labels),
        "shape": list(node.images.shape[1:]),
    }
    if not header.get("normalise"):
        return said, None
    usable = nodes.usable(
        node, nodes.read_orders(node.folder), range(int(node.labels.max()) + 1), None
    )
    from fuprune.data.normalisation import channel_sums

    return said, channel_sums(node.images, [usable])[0]


def _forget(header, tree, node: Node) -> Answer:
    """The order is in the log by now: that is the confirmation."""
    del tree
    wanted = header.get("order")
    if wanted not in nodes.read_orders(node.folder):
        raise InputError(f"order {wanted!r:.80} came without its text.")
    return {"confirmed": wanted}, None


def _task(header, tree, node: Node) -> Answer:
    from fuprune.flower import work

    return work.run_task(header, tree, node)


def _evaluate(header, tree, node: Node) -> Answer:
    from fuprune.flower import work

    return work.evaluate(header, tree, node)


def _secure_keys(header, tree, node: Node) -> Answer:
    from fuprune.flower import secure

    del tree
    return secure.publish_keys(header.get("secure"), node), None


def _secure_shares(header, tree, node: Node) -> Answer:
    from fuprune.flower import secure

    del tree
    return secure.seal_shares(header.get("secure"), node), None


def _secure_reveal(header, tree, node: Node) -> Answer:
    from fuprune.flower import secure

    del tree
    return secure.reveal(header.get("secure"), node), None


# Those whose answer needs none of the client's images, which are then not loaded.
WITHOUT_DATA = frozenset(
    f"query.{name}"
    for name in ("forget", "secure_keys", "secure_shares", "secure_reveal")
)
# Those that run a program of JAX's.
WITH_PROGRAMS = frozenset(
    ("train", "evaluate")
    + tuple(f"query.{name}" for name in ("class_statistics", "sums", "relabel"))
)
# Flower's message types; what follows the dot is the name of the handler.
KINDS: Mapping[str, Callable[[Mapping[str, Any], Any, Node], Answer]] = {
    "train": _task,
    "evaluate": _evaluate,
    "query.hello": _hello,
    "query.forget": _forget,
    "query.class_statistics": _task,
    "query.sums": _task,
    "query.relabel": _task,
    "query.secure_keys": _secure_keys,
    "query.secure_shares": _secure_shares,
    "query.secure_reveal": _secure_reveal,
}
