"""A client's work for one request: a program run on its images, or a model evaluated.

Kept apart from `client_app`, because this is where JAX is loaded: Flower starts a
process for every message, and one that only logs an order need not wait for it. Which
images a request may read is decided here, by the client's own log, not by the server.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuprune import config as configuration
from fuprune.data.dataset import Dataset
from fuprune.data.preprocess import make_preprocessing
from fuprune.errors import InputError
from fuprune.federated.cohort import for_one_client
from fuprune.federated.evaluate import make_evaluator
from fuprune.federated.objective import Objective, classification
from fuprune.federated.program import Client, Shared
from fuprune.flower import node as nodes
from fuprune.flower import secure, tasks
from fuprune.flower.node import Node
from fuprune.flower.records import digest
from fuprune.run import build
from fuprune.surgery import rebuild

Answer = tuple[dict[str, Any], Any]


def run_task(header: Mapping[str, Any], tree: Any, node: Node) -> Answer:
    """Runs a program on this client's images, as a cohort of one."""
    # Of what was received, so that the server sees which model was worked on.
    worked_on = {"model": digest(tree)}
    name = header.get("task", "")
    longest = _longest(header, node)
    positions, labels = _selected(header, node)
    # As long as the largest client's, so that shapes, and the draws that depend on
    # them, are those of a simulation.
    row = np.zeros(max(longest, 1), np.int32)
    row[: len(positions)] = positions
    # Put on the device in one go: each array apart would be a program of its own.
    client = Client(
        *jax.device_put((row, np.int32(len(positions)), np.int32(node.client)))
    )
    shape = node.images.shape[1:]
    # Programs look at the first image of a batch that is all padding, too.
    images = node.images if len(labels) else np.zeros((1, *shape), np.uint8)
    labels = labels.astype(np.int32) if len(labels) else np.zeros(1, np.int32)
    shared = Shared(*jax.device_put((images, labels, tasks.as_context(name, tree))))
    asked = {field: header.get(field) for field in ("spec", "settings", "arguments")}
    # As text, which has a hash: an equal request finds its compiled program again.
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
    # The model, what is asked of it, and of which images.
    question = json.dumps([worked_on, name, header["arguments"], header["classes"]])
    return worked_on, secure.masked_upload(each, header["secure"], node, question)


@functools.lru_cache(maxsize=8)
def _make_run(name: str, asked: str, shape: tuple[int, ...]):
    """A program, ready to run; kept, for clients that answer more than once."""
    request = json.loads(asked)
    setting = _setting(request, shape)
    program = tasks.make_program(name, setting, request["arguments"])
    return for_one_client(program)


def evaluate(header: Mapping[str, Any], tree: Any, node: Node) -> Answer:
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
    # A sum: the server divides by the images of all clients.
    loss = np.float32(evaluation.loss * len(positions))
    return {"model": digest(tree)}, (evaluation.confusion, loss)


def _selected(header, node: Node) -> tuple[np.ndarray, np.ndarray]:
    """Which images a request may read, and every image's label in it.

    A class beyond the last, `num_classes` + u, is class u under the labels that the
    order's own request gave it, and 2 * `num_classes` stands for the single images that
    the order names.
    """
    classes, size = header.get("classes"), header.get("num_classes")
    if not isinstance(classes, list) or not all(type(u) is int for u in classes):
        raise InputError(f"classes are {classes!r:.80}, but must be whole numbers.")
    highest = node.labels.max(initial=0)
    if type(size) is not int or size <= highest:
        raise InputError(
            f"the request knows {size!r:.40} classes, and this client has images of "
            f"class {highest}."
        )
    order = header.get("order")
    orders = nodes.read_orders(node.folder)
    named = 2 * size in classes
    classes = [u for u in classes if u != 2 * size]
    plain = [u % size for u in classes]
    positions = nodes.usable(node, orders, plain, order, named=named)
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
        told, mean, std = (settings[name] for name in ("config", "mean", "std"))
        longest = int(settings["max_length"])
        finite = np.all(np.isfinite(np.asarray([*mean, *std], np.float64)))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "the request's settings cannot be read; it is of another version."
        ) from error
    if not finite or not len(mean) == len(std) == shape[-1]:
        raise InputError(
            f"the request normalises {len(mean)} colours, and this client's images "
            f"have {shape[-1]}."
        )
    config = configuration.from_json(told)
    model = rebuild.from_spec(header.get("spec"))
    if tuple(model.input_shape) != tuple(shape):
        raise InputError(
            f"the network takes {tuple(model.input_shape)} images, and this client has "
            f"{tuple(shape)}."
        )
    return tasks.Setting(
        config,
        model,
        *make_preprocessing(mean, std, shape, augment=config.train.augment),
        longest,
        teaching(config, model, settings.get("teacher")),
    )


def teaching(config, student, teacher: Any) -> Objective:
    """What training minimises: the labels, and a teacher's answers if there is one.

    Raises:
      InputError: the request's teacher makes no sense.
    """
    if teacher is None:
        return classification(config.train.label_smoothing)
    known = isinstance(teacher, dict) and {"spec", "masked_classes"} <= set(teacher)
    masked = teacher["masked_classes"] if known else None
    if not isinstance(masked, list) or not all(type(u) is int for u in masked):
        raise InputError(
            "the request's teacher cannot be read; it is of another version."
        )
    model = rebuild.from_spec(teacher["spec"])
    forms = [(m.num_classes, tuple(m.input_shape)) for m in (model, student)]
    if forms[0] != forms[1]:
        raise InputError(
            f"the request's teacher has {forms[0][0]} classes of {forms[0][1]} images, "
            f"and its network {forms[1][0]} of {forms[1][1]}."
        )
    # Its variables arrive as arrays of the request, not here.
    return build.distil_from(config, model, None, masked)
