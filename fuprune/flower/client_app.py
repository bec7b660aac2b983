"""The ClientApp: Flower's messages in, a client's answers out.

Every request carries the forget orders in force, so a client that slept through one
logs it before it does anything else; and the network's spec, so a client that slept
through a cut needs nothing else. Whatever needs JAX is imported by the answer that
needs it, because Flower starts a process for every message.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fuprune.errors import FupruneError, InputError
from fuprune.flower import node as nodes
from fuprune.flower.node import Node
from fuprune.flower.records import PROTOCOL, pack, unpack

app = ClientApp()
Answer = tuple[dict[str, Any], Any]
Handler = Callable[[Mapping[str, Any], Any, Node], Answer]


def reply_to(kind: str, message: Message, context: Context) -> Message:
    """Answers one message; whatever cannot be done is told in one line."""
    # Not caught: without a header there is no request to answer to.
    header, tree = unpack(message.content)
    load = functools.partial(nodes.load_node, context.node_config, context.run_config)
    header["node"] = context.node_id
    return Message(pack(*answer(kind, header, tree, load)), reply_to=message)


def answer(
    kind: str, header: Mapping[str, Any], tree: Any, load: Callable[..., Node]
) -> Answer:
    """The header and the arrays that a client replies to a message of one of `KINDS`.

    A request that cannot be answered gives a header with `problem`, one line. `load`
    gives the client, with `data=False` without its images.
    """
    reply: dict[str, Any] = {"request": header.get("request"), "problem": None}
    content = None
    try:
        node = load(data=kind not in WITHOUT_DATA)
        reply["client"] = node.client
        if header.get("protocol") != PROTOCOL:
            raise InputError(
                f"the request is of protocol {header.get('protocol')!r:.40} and this "
                f"client speaks {PROTOCOL}; install the same version of fuprune."
            )
        # Before the request itself: whatever it asks for is already bound by the orders
        # that came with it.
        orders = nodes.log_orders(node, header.get("orders", ()), load)
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
    except (FupruneError, OSError) as error:
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
    if node.key is not None:
        from fuprune.flower.signatures import sign

        # The request's number is the server's own, and the node's Flower's own: this
        # proof is of no use to anybody else.
        text = f"{header.get('request')} {header.get('node')}"
        said["proof"] = sign(node.key, text)
    if not header.get("normalise"):
        return said, None
    classes = range(int(node.labels.max(initial=-1)) + 1)  # none without images
    usable = nodes.usable(node, nodes.read_orders(node.folder), classes, None)
    from fuprune.data.normalisation import channel_sums

    return said, channel_sums(node.images, [usable])[0]


def _forget(header, tree, node: Node) -> Answer:
    """The order is in the log by now: that is the confirmation."""
    del tree
    wanted = header.get("order")
    if wanted not in nodes.read_orders(node.folder):
        raise InputError(f"order {wanted!r:.80} came without its text.")
    return {"confirmed": wanted}, None


def _work(task: str) -> Handler:
    """The answer to a message that runs a program of JAX's."""

    def handle(header, tree, node: Node) -> Answer:
        from fuprune.flower import work

        nodes.keep_compiled_programs(node.folder)
        return getattr(work, task)(header, tree, node)

    return handle


def _secure(step: str) -> Handler:
    """The answer to one of the messages of a secure sum that need no images."""

    def handle(header, tree, node: Node) -> Answer:
        from fuprune.flower import secure

        del tree
        return getattr(secure, step)(header.get("secure"), node), None

    return handle


# Flower's message types; what follows the dot is the name of the handler.
KINDS: Mapping[str, Handler] = {
    "train": _work("run_task"),
    "evaluate": _work("evaluate"),
    "query.hello": _hello,
    "query.forget": _forget,
    "query.class_statistics": _work("run_task"),
    "query.sums": _work("run_task"),
    "query.relabel": _work("run_task"),
    "query.secure_keys": _secure("publish_keys"),
    "query.secure_shares": _secure("seal_shares"),
    "query.secure_reveal": _secure("reveal"),
}
# Those whose answer needs none of the client's images, which are then not loaded.
WITHOUT_DATA = frozenset(
    kind for kind in KINDS if kind.startswith(("query.forget", "query.secure_"))
)


def _register(kind: str) -> None:
    category, _, action = kind.partition(".")

    @getattr(app, category)(action or "default")
    def answer(message: Message, context: Context) -> Message:
        return reply_to(kind, message, context)


for _kind in KINDS:
    _register(_kind)
