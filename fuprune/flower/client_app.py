"""The ClientApp: Flower's messages in, a client's answers out.

Every request carries the forget orders in force, so a client that slept through one
logs it before it does anything else; and the network's spec, so a client that slept
through a cut needs nothing else. Whatever needs JAX is imported by the answer that
needs it, because Flower starts a process for every message.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fuprune.errors import FupruneError, InputError
from fuprune.flower.node import Node, load_node, usable
from fuprune.flower.orders import left_by, log_orders, read_log, sign
from fuprune.flower.records import PROTOCOL, pack, unpack

app = ClientApp()
Answer = tuple[dict[str, Any], Any]
# Flower's message types, and the functions `(header, tree, node)` that answer them;
# what follows the dot is the name of Flower's handler.
KINDS = {
    "train": "run_task",
    "evaluate": "evaluate",
    "query.hello": "hello",
    "query.forget": "forget",
    "query.class_statistics": "run_task",
    "query.sums": "run_task",
    "query.relabel": "run_task",
    "query.secure_keys": "publish_keys",
    "query.secure_shares": "seal_shares",
    "query.secure_reveal": "reveal",
}


def answer(
    kind: str, header: Mapping[str, Any], tree: Any, load: Callable[[], Node]
) -> Answer:
    """The header and the arrays that a client replies to a message of one of `KINDS`.

    A request that cannot be answered gives a header with `problem`, one line.
    """
    reply: dict[str, Any] = {"request": header.get("request"), "problem": None}
    content = None
    try:
        node = load()
        reply["client"] = node.client
        if header.get("protocol") != PROTOCOL:
            raise InputError(
                f"the request is of protocol {header.get('protocol')!r:.40} and this "
                f"client speaks {PROTOCOL}; install the same version of fuprune."
            )
        # Before the request itself: whatever it asks for is already bound by the orders
        # that came with it.
        orders = log_orders(node, header.get("orders", ()))
        reply["orders"] = sorted(orders)
        reply["closed"] = sorted(o.order for o in orders.values() if o.closed)
        # Who has left still says who it is and confirms orders, its own among them.
        gone = left_by(node.client, orders, header.get("order"))
        if gone is not None and kind not in ("query.hello", "query.forget"):
            raise InputError(
                f"this client has left the federation by order {gone!r}, and takes "
                "part in nothing."
            )
        more, content = _handler(kind)(header, tree, node)
        reply |= more
    except (FupruneError, OSError) as error:
        reply["problem"] = _one_line(str(error))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reply["problem"] = _one_line(
            f"the request cannot be read ({type(error).__name__}: {error})"
        )
    return reply, content


def _handler(kind: str) -> Callable[[Mapping[str, Any], Any, Node], Answer]:
    if kind == "query.hello":
        return hello
    if kind == "query.forget":
        return forget
    from fuprune.flower import secure, work

    return getattr(secure if "secure" in kind else work, KINDS[kind])


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def hello(header: Mapping[str, Any], tree: Any, node: Node) -> Answer:
    """Who this client is: its id, how many images it holds and of which shape."""
    images, labels = node.data
    said: dict[str, Any] = {"examples": len(labels), "shape": list(images.shape[1:])}
    if node.key is not None:
        # The request's number is the server's own, and the node's Flower's own: this
        # proof is of no use to anybody else.
        said["proof"] = sign(node.key, f"{header['request']} {header['node']}")
    if not header.get("normalise"):
        return said, None
    from fuprune.data.normalisation import channel_sums

    classes = range(int(labels.max(initial=-1)) + 1)  # none without images
    allowed = usable(node, read_log(node.folder), classes, None)
    return said, channel_sums(images, [allowed])[0]


def forget(header: Mapping[str, Any], tree: Any, node: Node) -> Answer:
    """The order is in the log by now: that is the confirmation."""
    wanted = header["order"]
    if wanted not in read_log(node.folder):
        raise InputError(f"order {wanted!r:.80} came without its text.")
    return {"confirmed": wanted}, None


def _register(kind: str) -> None:
    category, _, action = kind.partition(".")

    @getattr(app, category)(action or "default")
    def reply(message: Message, context: Context) -> Message:
        # Not caught: without a header there is no request to answer to.
        header, tree = unpack(message.content)
        header["node"] = context.node_id
        answered = answer(kind, header, tree, lambda: load_node(context.node_config))
        return Message(pack(*answered), reply_to=message)


for _kind in KINDS:
    _register(_kind)
