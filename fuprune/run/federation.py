"""The data of a run: loaded, dealt to clients, and put on the devices.

Config keys say which dataset, which partition and which statistics of colours; the
functions of `fuprune.data` take them as plain arguments.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from fuprune.config import ConfigError
from fuprune.data import backdoor, normalisation, partition, sources
from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset
from fuprune.data.preprocess import make_preprocessing
from fuprune.federated.evaluate import make_evaluator
from fuprune.run import requests
from fuprune.run.machine import Runtime
from fuprune.run.placement import check_memory, place_federation
from fuprune.unlearning.request import ForgetRequest

NO_IMAGES = Dataset(np.zeros((0, 1, 1, 1), np.uint8), np.zeros(0, np.int32))


class Federation(NamedTuple):
    """The data of a run."""

    data: FederatedDataset  # training images, dealt to clients
    train: Dataset  # the same images in host memory
    validation: Dataset  # clients' images held out for choices; may be empty
    test: Dataset  # for tables
    num_classes: int
    class_names: tuple[str, ...]
    prepare: Callable  # (key, uint8 images) -> what the model sees in evaluation
    prepare_training: Callable  # the same with augmentation, if it is on
    request: ForgetRequest = ForgetRequest()  # what the run forgets
    # Training images of the clients or examples that it names; none for classes.
    forgotten: Dataset = NO_IMAGES

    def evaluator(self, model, split: Dataset, mesh: Mesh | None = None):
        """`evaluate(variables)` of a model on one of the splits."""
        return make_evaluator(
            model,
            split,
            num_classes=self.num_classes,
            preprocess=self.prepare,
            mesh=mesh,
        )


def first_of_each_class(labels: np.ndarray, limit: int) -> np.ndarray | slice:
    """Where the first `limit` images of every class are; 0 takes all."""
    if not limit:
        # Not a list of all numbers, which would copy the images.
        return slice(None)
    rank = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange(np.sum(labels == label))
    return np.flatnonzero(rank < limit)


def make_federation(config, runtime: Runtime) -> Federation:
    """Load the dataset, deal it to clients, put it on the devices."""
    name, where = config.data.name, config.data.dir or None
    train = sources.load(name, split="train", data_dir=where)
    test = sources.load(name, split="test", data_dir=where)
    chosen = first_of_each_class(train.labels, config.data.limit)
    numbers = np.arange(len(train.labels))[chosen]
    train = Dataset(train.images[chosen], train.labels[chosen])
    tested = first_of_each_class(test.labels, config.data.test_limit)
    test = Dataset(test.images[tested], test.labels[tested])
    num_classes = sources.num_classes(name, where)
    parts = _deal(config, train.labels, num_classes, chosen)
    parts, held_out = partition.hold_out(
        parts, train.labels, config.data.validation, config.seed
    )
    validation = Dataset(train.images[held_out], train.labels[held_out])
    numbers, _ = partition.restrict(Dataset(numbers, numbers), parts)
    train, parts = partition.restrict(train, parts)
    whole = config.runtime.pool == "whole"
    check_memory(train, parts, runtime, whole=whole)
    data = place_federation(train, parts, runtime, whole=whole)
    places = requests.pool_places(data, parts)
    counted = np.where(places < 0, -1, numbers.labels[places])
    request = requests.make_request(config, data, counted)
    gone = requests.forgotten_images(request, data, places)
    if config.audit.backdoor:
        train = backdoor.plant(train, gone, config.audit.backdoor, config.seed)
        data = place_federation(train, parts, runtime, whole=whole)
    # What the run will forget has no part in the colours that clients sum up.
    left = [part[~np.isin(part, gone)] for part in map(np.asarray, parts)]
    mean, std = _statistics(config, train, left, request.classes)
    prepared = make_preprocessing(
        mean, std, train.images.shape[1:], augment=config.train.augment
    )
    return Federation(
        data=data,
        train=train,
        validation=validation,
        test=test,
        num_classes=num_classes,
        class_names=sources.class_names(name, where),
        prepare=prepared.evaluation,
        prepare_training=prepared.training,
        request=request,
        forgotten=Dataset(train.images[gone], train.labels[gone]),
    )


def _deal(config, labels, num_classes, chosen) -> list[np.ndarray]:
    """The images of each client, as places in `labels` [N].

    `chosen` says which images of the training split these are.
    """
    how, data = config.partition, config.data
    if how.kind == "natural":
        ids = sources.column(data.name, how.column, data.dir or None)
        return partition.natural_partition(ids[chosen])
    if how.kind == "file":
        if data.limit:
            raise ConfigError(
                f"data.limit is {data.limit} with partition.kind=file, whose numbers "
                "count all training images; allowed: 0."
            )
        return partition.read_partition(how.file, len(labels))
    deal, names = _DRAWN[how.kind]
    given = {**how, "num_classes": num_classes}
    own = {name: given[name] for name in names}
    return deal(labels, num_clients=how.clients, seed=config.seed, **own)


# partition.kind -> the function that draws it, and what only this one asks for
_DRAWN = {
    "bias": (partition.bias_partition, ("num_classes", "bias")),
    "dirichlet": (partition.dirichlet_partition, ("num_classes", "alpha")),
    "iid": (partition.iid_partition, ()),
    "pathological": (
        partition.pathological_partition,
        ("num_classes", "classes_per_client"),
    ),
}


def _statistics(config, train: Dataset, parts, classes) -> normalisation.Statistics:
    """Mean and deviation of the colours, from where `data.normalise` says.

    Sums over clients are those of `parts`, without `classes`.
    """
    kind, channels = config.data.normalise, train.images.shape[-1]
    if kind == "constants":
        return normalisation.constant_statistics(config.data.name, channels)
    if kind == "central":  # all training images in one place, as no federation has
        return normalisation.channel_statistics(train.images)
    uploads = normalisation.channel_sums(
        train.images, parts, labels=train.labels, without_classes=classes
    )
    return normalisation.statistics_of_sums(uploads)
