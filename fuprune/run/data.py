"""A run's data: sources read, dealt to clients, the request resolved, then placed.

All of it happens once and in this order. Until the last step everything is host arrays
and lists of indices; then the images go to the devices, once.

The report has two sets. For classes the U-set are test images of the forgotten classes
and the R-set those of the others. Clients and examples have no test images of their
own, so the U-set are the forgotten training images themselves and the R-set the whole
test split, which is also the held-out data that the audit compares them with.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fuprune import config as configuration
from fuprune.audit import backdoor
from fuprune.config import ConfigError
from fuprune.data import normalisation, partition, sources
from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset, federate
from fuprune.data.preprocess import make_preprocessing
from fuprune.federated.evaluate import make_evaluator
from fuprune.federated.sharded import AXIS, on_mesh
from fuprune.results import RequestRow
from fuprune.run.machine import Runtime
from fuprune.unlearning.request import ForgetRequest, check_request, describe_request

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
    clients: Any = None  # a `Transport` to clients elsewhere; None: they are `data`

    def evaluator(self, model, split: Dataset, mesh: Mesh | None = None):
        """`evaluate(variables)` of a model on one of the splits."""
        return make_evaluator(
            model,
            split,
            num_classes=self.num_classes,
            preprocess=self.prepare,
            mesh=mesh,
        )


def load_data(config, runtime: Runtime) -> Federation:
    """Loads the dataset, deals it to clients and places it on the devices."""
    name, where = config.data.name, config.data.dir or None
    loaded = sources.load(name, split="train", data_dir=where)
    test = sources.load(name, split="test", data_dir=where)
    test = _take(test, first_of_each_class(test.labels, config.data.test_limit))
    num_classes = sources.num_classes(name, where)

    # Numbers count the images of the training split; parts count the numbers.
    numbers = first_of_each_class(loaded.labels, config.data.limit)
    labels = loaded.labels[numbers]
    parts = _deal(config, labels, num_classes, numbers)
    parts, held_out = partition.hold_out(
        parts, labels, config.data.validation, config.seed
    )
    validation = _take(loaded, numbers[held_out])
    held, parts = partition.drop_unheld(parts, len(numbers))
    numbers = numbers[held]
    train = _take(loaded, numbers)
    on_host = federate(train, parts, place=np.asarray)

    request = _read_request(config, on_host, numbers)
    # What clients or examples name, [F], ascending.
    named = [request.examples, *(parts[client] for client in request.clients)]
    gone = np.sort(np.concatenate(named).astype(np.int64))
    if config.audit.backdoor:
        train = backdoor.plant(train, gone, config.audit.backdoor, config.seed)
        on_host = on_host._replace(images=train.images, labels=train.labels)
    # What the run will forget has no part in the colours that clients sum up.
    left = [part[~np.isin(part, gone)] for part in map(np.asarray, parts)]
    mean, std = _statistics(config, train, left, request.classes)
    prepared = make_preprocessing(
        mean, std, train.images.shape[1:], augment=config.train.augment
    )

    split = runtime.process_count > 1 and config.runtime.pool != "whole"
    forgotten = Dataset(train.images[gone], train.labels[gone])
    if split:
        on_host, places = split_over_hosts(on_host, runtime)
        examples = places[np.asarray(request.examples, int)]
        request = request._replace(examples=tuple(examples.tolist()))
    return Federation(
        data=place_federation(on_host, runtime, split=split),
        train=train,
        validation=validation,
        test=test,
        num_classes=num_classes,
        class_names=sources.class_names(name, where),
        prepare=prepared.evaluation,
        prepare_training=prepared.training,
        request=request,
        forgotten=forgotten,
    )


def first_of_each_class(labels: np.ndarray, limit: int) -> np.ndarray:
    """Where the first `limit` images of every class are, ascending; 0 takes all."""
    if not limit:
        return np.arange(len(labels))
    firsts = [np.flatnonzero(labels == x)[:limit] for x in np.unique(labels)]
    return np.sort(np.concatenate(firsts))


def _take(dataset: Dataset, indices: np.ndarray) -> Dataset:
    """The examples at ascending indices; nothing is copied if those are all."""
    if len(indices) == len(dataset.labels):
        return dataset
    return Dataset(dataset.images[indices], dataset.labels[indices])


def _deal(config, labels, num_classes, numbers) -> list[np.ndarray]:
    """The images of each client, as places in `labels` [N]."""
    how, data = config.partition, config.data
    if how.kind == "natural":
        ids = sources.column(data.name, how.column, data.dir or None)
        return partition.natural_partition(ids[numbers])
    if how.kind == "file":
        if data.limit:
            raise ConfigError(
                f"data.limit is {data.limit} with partition.kind=file, whose numbers "
                "count all training images; allowed: 0."
            )
        return partition.read_partition(how.file, len(labels))
    deal, names = _DRAWN_PARTITIONS[how.kind]
    given = {**dataclasses.asdict(how), "num_classes": num_classes}
    own = {name: given[name] for name in names}
    return deal(labels, num_clients=how.clients, seed=config.seed, **own)


# partition.kind -> the function that draws it, and what only this one asks for
_DRAWN_PARTITIONS = {
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


def _read_request(config, data: FederatedDataset, numbers: np.ndarray) -> ForgetRequest:
    """The request of a config, checked against its federation.

    `numbers` [N], ascending, are those of its images as the training split counts them.
    """
    kind = configuration.request_kind(config)
    if kind == "classes":
        return ForgetRequest(classes=configuration.classes(config))
    if kind == "clients":
        request = ForgetRequest(clients=configuration.read(config, "unlearn.clients"))
        return check_request(request, data)
    wanted = _read_examples(config.unlearn.examples)
    missing = np.setdiff1d(wanted, numbers)
    if missing.size:
        raise ConfigError(
            f"unlearn.examples names training image {missing[0]}, which no client "
            "trains on: it is out of range, held out by data.validation, or left out "
            "by data.limit."
        )
    found = np.searchsorted(numbers, wanted).tolist()
    return check_request(ForgetRequest(examples=tuple(found)), data)


def _read_examples(path: str) -> np.ndarray:
    """Numbers of training images from a text file, separated by space or line."""
    try:
        words = Path(path).read_text("utf-8", errors="replace").replace(",", " ")
        return np.unique(np.array(words.split(), str).astype(np.int64))
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"unlearn.examples is {path!r} ({error}); allowed: a text file of numbers "
            "of training images, which count from 0."
        ) from None


def describe_sets(request: ForgetRequest, images: int, tested: int) -> RequestRow:
    """The request as the record keeps it, with what U-set and R-set are."""
    if request.kind == "classes":
        u_set = "test images of the forgotten classes"
        r_set = "test images of the other classes"
    else:
        u_set = f"the {images} training images of {describe_request(request)}"
        r_set = f"the {tested} test images, which nobody trained on"
        if request.kind == "examples":
            u_set = f"the {images} forgotten training images"
    return RequestRow(request.kind, list(request.targets), u_set, r_set)


def place_federation(
    data: FederatedDataset, runtime: Runtime, *, split: bool = False
) -> FederatedDataset:
    """Puts a federation of host arrays on every device of the run.

    If `split`, the images are in the order of `split_over_hosts`, and each device gets
    its share of them.
    """
    if not split:
        return replicate(data, runtime.mesh)
    assert runtime.mesh is not None
    sharding = NamedSharding(runtime.mesh, P(AXIS))
    images = jax.make_array_from_callback(
        data.images.shape, sharding, lambda rows: np.asarray(data.images[rows])
    )
    # Labels take four bytes each, beside the indices that every process has anyway.
    return FederatedDataset(images, *replicate(tuple(data[1:]), runtime.mesh))


def split_over_hosts(
    data: FederatedDataset, runtime: Runtime
) -> tuple[FederatedDataset, np.ndarray]:
    """Gives each process the images of its own clients, in host memory.

    `data.images` may be mapped from a file; then no process ever has all of it in
    memory. Returns the federation over the reordered pool, and each image's place [N].
    """
    assert runtime.mesh is not None
    owners = np.array([device.process_index for device in runtime.mesh.devices.flat])
    lengths = np.asarray(data.lengths)
    pool = deal_to_hosts(lengths, owners)
    is_image = np.arange(data.max_length) < lengths[:, None]
    places = np.zeros(len(data.labels), np.int64)
    places[data.rows[is_image]] = pool.places[is_image]
    labels = np.zeros(pool.size, np.int32)
    labels[pool.places[is_image]] = data.labels[data.rows[is_image]]
    # Rows that nothing is written to, those of other hosts' clients, take no memory.
    images = np.zeros((pool.size, *data.images.shape[1:]), np.uint8)
    own = is_image & (pool.host_of_client == runtime.process_index)[:, None]
    images[pool.places[own]] = data.images[data.rows[own]]
    moved = data._replace(images=images, labels=labels, rows=pool.places)
    return moved, places


class HostPool(NamedTuple):
    """Where each client's images lie in a pool that is split over hosts."""

    size: int  # rows of the pool, a multiple of the number of devices
    host_of_client: np.ndarray  # [K] int
    places: np.ndarray  # [K, L] int32, indices into the pool; 0 past a length


def deal_to_hosts(lengths: np.ndarray, owners: np.ndarray) -> HostPool:
    """Gives neighbouring clients to each host, in proportion to its devices.

    `lengths`, [K], are the images of each client, and `owners`, [D], the host of each
    device in the mesh's order.
    """
    hosts, counts = np.unique(owners, return_counts=True)
    ends = np.cumsum(lengths)
    # A client goes to the host in whose share the middle of its images falls.
    middles = ends - np.asarray(lengths) / 2
    shares = np.cumsum(counts) / counts.sum() * max(int(ends[-1]), 1)
    which = np.minimum(np.searchsorted(shares, middles), len(hosts) - 1)
    held = np.bincount(which, weights=lengths, minlength=len(hosts)).astype(np.int64)
    share = max(1, int(np.max(-(-held // counts))))  # rows of one device
    places = np.zeros((len(lengths), max(1, int(np.max(lengths)))), np.int32)
    for number, host in enumerate(hosts):
        # A host's rows are those of its devices, wherever they stand in the mesh.
        rows = np.flatnonzero(np.repeat(owners == host, share))
        for client in np.flatnonzero(which == number):
            own, rows = np.split(rows, [lengths[client]])
            places[client, : lengths[client]] = own
    return HostPool(share * len(owners), hosts[which], places)


def replicate(tree, mesh: Mesh | None):
    """A tree of host arrays as arrays that every process and device holds."""
    return jax.device_put(tree) if mesh is None else on_mesh(tree, mesh)
