"""A client's work for one request: a program run on its images, or a model evaluated.

A request names a program, its arguments and the config of the run; from them the client
makes the same `ClientProgram` as a simulation would. A request cannot bring code. Which
images it may read is decided here, by the client's own log, not by the server.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune import config as configuration
from fuprune.data.dataset import Dataset
from fuprune.data.preprocess import make_preprocessing
from fuprune.errors import InputError
from fuprune.federated.batch_norm import local_statistics
from fuprune.federated.client import TrainContext, local_gradient, local_sgd
from fuprune.federated.cohort import for_one_client
from fuprune.federated.evaluate import make_evaluator
from fuprune.federated.objective import Objective, classification
from fuprune.federated.program import Client, ClientProgram, Shared
from fuprune.files import write_whole
from fuprune.flower import secure
from fuprune.flower.node import Node, usable
from fuprune.flower.orders import read_log
from fuprune.flower.records import digest
from fuprune.options import make
from fuprune.run import build
from fuprune.run.machine import use_cache
from fuprune.run.optimizers import optimizer
from fuprune.surgery import rebuild
from fuprune.unlearning.activations import activations_program
from fuprune.unlearning.ascent import Options as Ascent
from fuprune.unlearning.ascent import local_ascent
from fuprune.unlearning.auto_rate import answers_program as count_program
from fuprune.unlearning.client_sums import gradient_sum, loss_sum, sum_program
from fuprune.unlearning.fisher import fisher_sum
from fuprune.unlearning.relabel import answers_program

Answer = tuple[dict[str, Any], Any]


class Setting(NamedTuple):
    """What a client has when it makes a program."""

    config: Any  # of the run
    model: Any
    prepare: Callable  # (key, uint8 images) -> what the model sees in evaluation
    prepare_training: Callable  # the same with augmentation, if it is on
    max_length: int  # examples of the largest client
    objective: Objective  # of training; a teacher's arrays come with the model


def _training(at: Setting) -> dict[str, Any]:
    return {
        "max_length": at.max_length,
        "preprocess": at.prepare_training,
        "objective": at.objective,
    }


def _ascent(at: Setting, **asked) -> ClientProgram:
    length, prepare = at.max_length, at.prepare
    options = make(Ascent, asked)
    return local_ascent(at.model, options, max_length=length, preprocess=prepare)


def _relabel(at: Setting, *, others, **asked) -> ClientProgram:
    answers = functools.partial(answers_program, at.model, others, at.max_length)
    return answers(preprocess=at.prepare, **asked)


def _evaluating(make_program: Callable, function: Callable | None = None):
    """The maker of a program that reads images as in evaluation."""

    def make(at: Setting, **asked) -> ClientProgram:
        first = at.model if function is None else function(at.model)
        return make_program(first, preprocess=at.prepare, **asked)

    return make


# By name: the message that asks for a program, and its maker, which takes by name what
# the request says; whatever the maker sets itself cannot be said twice. In "train" the
# model learns, and what it needs is a `TrainContext`.
PROGRAMS: Mapping[str, tuple[str, Callable[..., ClientProgram]]] = {
    "local_sgd": (
        "train",
        lambda at, **asked: local_sgd(
            at.model,
            optimizer(at.config.train, 1.0),  # the round brings its rate
            **_training(at),
            **asked,
        ),
    ),
    "local_gradient": (
        "train",
        lambda at, **asked: local_gradient(at.model, **_training(at), **asked),
    ),
    "local_statistics": (
        "train",
        lambda at, **asked: local_statistics(
            at.model, preprocess=at.prepare_training, **asked
        ),
    ),
    "ascent": ("train", _ascent),
    "class_statistics": (secure.UPLOAD, _evaluating(activations_program)),
    "answer_counts": (secure.UPLOAD, _evaluating(count_program)),
    "fisher_sum": ("query.sums", _evaluating(sum_program, fisher_sum)),
    "loss_sum": ("query.sums", _evaluating(sum_program, loss_sum)),
    "gradient_sum": ("query.sums", _evaluating(sum_program, gradient_sum)),
    "relabel": ("query.relabel", _relabel),
}


def run_task(header: Mapping[str, Any], tree: Any, node: Node) -> Answer:
    """Runs a program on this client's images, as a cohort of one."""
    use_cache(str(node.folder / "compiled"))
    # Of what was received, so that the server sees which model was worked on.
    worked_on = {"model": digest(tree)}
    name = header["task"]
    positions, labels = _selected(header, node)
    # As long as the largest client's, so that shapes, and the draws that depend on
    # them, are those of a simulation.
    row = np.zeros(max(header["settings"]["max_length"], 1), np.int32)
    row[: len(positions)] = positions
    # Put on the device in one go: each array apart would be a program of its own.
    client = Client(
        *jax.device_put((row, np.int32(len(positions)), np.int32(node.client)))
    )
    images = node.data.images
    shape = images.shape[1:]
    # Programs look at the first image of a batch that is all padding, too.
    if not len(images):
        images, labels = np.zeros((1, *shape), np.uint8), np.zeros(1, np.int32)
    context = TrainContext(*tree) if PROGRAMS[name][0] == "train" else tree
    shared = Shared(*jax.device_put((images, labels.astype(np.int32), context)))
    asked = {field: header[field] for field in ("spec", "settings", "arguments")}
    # As text, which has a hash: an equal request finds its compiled program again.
    run = _make_run(name, json.dumps(asked, sort_keys=True), shape)
    total, each = jax.device_get(run(shared, client))
    if name == "relabel":
        # The answers stay here: which image was taken for what is nobody's business.
        taught = np.array(node.data.labels)
        taught[positions] = each[: len(positions)]
        write_whole(
            _taught(node, header), lambda file: np.save(file, taught), mode=0o600
        )
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
    return for_one_client(
        PROGRAMS[name][1](_setting(request, shape), **request["arguments"])
    )


def evaluate(header: Mapping[str, Any], tree: Any, node: Node) -> Answer:
    """The confusion matrix of the model on this client's usable images."""
    use_cache(str(node.folder / "compiled"))
    setting = _setting(header, node.data.images.shape[1:])
    positions, labels = _selected(header, node)
    evaluation = make_evaluator(
        setting.model,
        Dataset(node.data.images[positions], labels[positions]),
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
    labels, size, order = node.data.labels, header["num_classes"], header["order"]
    if (highest := labels.max(initial=0)) >= size:
        raise InputError(
            f"the request knows {size!r:.40} classes, and this client has images of "
            f"class {highest}."
        )
    classes = {*header["classes"]}
    named = 2 * size in classes
    classes -= {2 * size}
    plain = [u % size for u in classes]
    positions = usable(node, read_log(node.folder), plain, order, named=named)
    renamed = [u - size for u in classes if u >= size]
    if not renamed:
        return positions, labels
    taught = np.load(_taught(node, header), allow_pickle=False)
    return positions, np.where(np.isin(labels, renamed), taught, labels)


def _taught(node: Node, header: Mapping[str, Any]) -> Path:
    """The file of the labels that an order's images are to be taught under."""
    name = hashlib.sha256(header["order"].encode()).hexdigest()[:32]
    return node.folder / "labels" / f"{name}.npy"


def _setting(request, shape: tuple[int, ...]) -> Setting:
    """The config, the network and the preprocessing of a request."""
    settings = request["settings"]
    config = configuration.from_json(settings["config"])
    model, teacher = rebuild.from_spec(request["spec"]), settings["teacher"]
    if tuple(model.input_shape) != tuple(shape):
        raise InputError(
            f"the network takes {tuple(model.input_shape)} images, and this client has "
            f"{tuple(shape)}."
        )
    objective = classification(config.train.label_smoothing)
    if teacher is not None:
        # Its variables arrive as arrays of the request, not here.
        taught_by = rebuild.from_spec(teacher["spec"])
        masked = teacher["masked_classes"]
        objective = build.distil_from(config, taught_by, None, masked)
    mean, std, augment = settings["mean"], settings["std"], config.train.augment
    return Setting(
        config,
        model,
        *make_preprocessing(mean, std, shape, augment=augment),
        settings["max_length"],
        objective,
    )
