"""A client's answers to the server's requests: header and arrays in, the same out.

Every request carries the forget orders in force, so a client that slept through one
logs it before it does anything else; and the network's spec, so a client that slept
through a cut needs nothing else. Which images a request may read is decided here, by
the client's own log, not by the server.
"""

import functools
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuprune import config as configuration
from fuprune.data.dataset import Dataset
from fuprune.data.normalisation import channel_sums
from fuprune.data.preprocess import crop_padding, make_preprocess
from fuprune.errors import InputError
from fuprune.federated.cohort import for_one_client
from fuprune.federated.evaluate import make_evaluator
from fuprune.federated.program import Client, Shared
from fuprune.flower import node as nodes
from fuprune.flower import secure, tasks
from fuprune.flower.node import Node
from fuprune.flower.records import digest
from fuprune.surgery import rebuild

PROTOCOL = 1
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
        orders = nodes.log_orders(node.folder, header.get("orders", ()))
        reply["orders"] = sorted(orders)
        reply["closed"] = sorted(o.order for o in orders.values() if o.closed)
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
    return said, channel_sums(node.images, [usable])[0]


def _forget(header, tree, node: Node) -> Answer:
    """The order is in the log by now: that is the confirmation."""
    del tree
    wanted = header.get("order")
    if wanted not in nodes.read_orders(node.folder):
        raise InputError(f"order {wanted!r:.80} came without its text.")
    return {"confirmed": wanted}, None


def _task(header, tree, node: Node) -> Answer:
    """Runs a program on this client's images, as a cohort of one."""
    # Of what was received, so that the server sees which model was worked on.
    worked_on = {"model": digest(tree)}
    name = header.get("task", "")
    longest = _longest(header, node)
    positions, labels = _selected(header, node)
    row = np.zeros(max(longest, 1), np.int32)
    row[: len(positions)] = positions
    # Put on the device in one go: each array apart would be a program of its own.
    client = Client(
        *jax.device_put((row, np.int32(len(positions)), np.int32(node.client)))
    )
    held = (node.images, labels.astype(np.int32), tasks.as_context(name, tree))
    shared = Shared(*jax.device_put(held))
    asked = {field: header.get(field) for field in ("spec", "settings", "arguments")}
    shape = node.images.shape[1:]
    run = _make_run(name, json.dumps(asked, sort_keys=True), shape)
    total, each = jax.device_get(run(shared, client))
    if name == "relabel":
        # The answers stay here: which image was taken for what is nobody's business.
        taught = np.array(node.labels)
        taught[positions] = each[: len(positions)]
        nodes.keep_labels(node.folder, header["order"], taught)
        return worked_on, None
    if header.get("secure") is None:
        return worked_on, (total, each)
    return worked_on, secure.masked_upload(each, header["secure"], node)


@functools.lru_cache(maxsize=8)
def _make_run(name: str, asked: str, shape: tuple[int, ...]):
    """A program, ready to run; kept, for clients that answer more than once."""
    request = json.loads(asked)
    setting = _setting(request, shape)
    program = tasks.make_program(name, setting, request["arguments"])
    return for_one_client(program)


def _evaluate(header, tree, node: Node) -> Answer:
    """The confusion matrix of the model on this client's usable images."""
    setting = _setting(header, node.images.shape[1:])
    positions, labels = _selected(header, node)
    held = Dataset(node.images[positions], labels[positions])
    evaluation = make_evaluator(
        setting.model,
        held,
        num_classes=setting.model.num_classes,
        preprocess=setting.prepare,
    )(jax.tree.map(jnp.asarray, tree))
    loss = np.float32(evaluation.loss * len(positions))
    return {"model": digest(tree)}, (evaluation.confusion, loss)


def _selected(header, node: Node) -> tuple[np.ndarray, np.ndarray]:
    """Which images a request may read, and every image's label in it.

    A class beyond the last, `num_classes` + u, is class u under the labels that the
    order's own request gave it.
    """
    classes, size = header.get("classes"), header.get("num_classes")
    if not isinstance(classes, list) or not all(type(u) is int for u in classes):
        raise InputError(f"classes are {classes!r:.80}, but must be whole numbers.")
    if type(size) is not int or size <= max(node.labels, default=0):
        raise InputError(
            f"the request knows {size!r:.40} classes, and this client has images of "
            f"class {max(node.labels, default=0)}."
        )
    order = header.get("order")
    orders = nodes.read_orders(node.folder)
    positions = nodes.usable(node, orders, [u % size for u in classes], order)
    renamed = [u - size for u in classes if u >= size]
    if not renamed:
        return positions, node.labels
    taught = np.isin(node.labels, renamed)
    labels = np.where(taught, nodes.recall_labels(node.folder, order), node.labels)
    return positions, labels


def _longest(header, node: Node) -> int:
    """How many images the largest client has, as the server was told."""
    settings = header.get("settings")
    longest = settings.get("max_length") if isinstance(settings, dict) else None
    if type(longest) is not int or longest < len(node.labels):
        raise InputError(
            f"the request is for at most {longest!r:.40} images, and this client has "
            f"{len(node.labels)}; ask it again how many it holds."
        )
    return longest


def _setting(header, shape: tuple[int, ...]) -> tasks.Setting:
    """The config, the network and the preprocessing of a request."""
    try:
        settings = header["settings"]
        config = configuration.from_json(settings["config"])
        mean, std = settings["mean"], settings["std"]
        numbers = np.asarray([*mean, *std, settings["learning_rate"]], np.float64)
        longest = int(settings["max_length"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "the request's settings cannot be read; it is of another version."
        ) from error
    if not np.all(np.isfinite(numbers)) or len(mean) != shape[-1]:
        raise InputError(
            f"the request normalises {len(mean)} colours, and this client's images "
            f"have {shape[-1]}."
        )
    model = rebuild.from_spec(header.get("spec"))
    if tuple(model.input_shape) != tuple(shape):
        raise InputError(
            f"the network takes {tuple(model.input_shape)} images, and this client has "
            f"{tuple(shape)}."
        )
    padding = crop_padding(shape)
    return tasks.Setting(
        config,
        model,
        make_preprocess(mean, std),
        make_preprocess(mean, std, augment=config.train.augment, padding=padding),
        longest,
        float(settings["learning_rate"]),
    )


def _secure_keys(header, tree, node: Node) -> Answer:
    del tree
    return secure.publish_keys(header.get("secure"), node), None


def _secure_shares(header, tree, node: Node) -> Answer:
    del tree
    return secure.seal_shares(header.get("secure"), node), None


def _secure_reveal(header, tree, node: Node) -> Answer:
    del tree
    return secure.reveal(header.get("secure"), node), None


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
