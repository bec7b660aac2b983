"""Where the images of a run lie: on which devices, and on which of several hosts.

One process puts the whole pool on each of its devices; several can split it.
"""

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich import filesize

from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset, federate, federation_bytes
from fuprune.data.pictures import free_memory
from fuprune.federated.sharded import AXIS, on_mesh
from fuprune.run.machine import Runtime
from fuprune.run.processes import RuntimeSetupError


def place_federation(
    dataset: Dataset,
    parts: Sequence[np.ndarray],
    runtime: Runtime,
    *,
    whole: bool = False,
) -> FederatedDataset:
    """`data.federate` onto the devices of the run.

    One process puts the whole pool of images on each of its devices. Of several, each
    has the images of its own clients only: neighbouring clients, so many that hosts
    with equally many devices hold about equally many images. `dataset.images` may be
    mapped from a file; then no process ever has all of it in memory. If `whole`, every
    process holds all images after all, and none are exchanged.
    """
    place = functools.partial(replicate, runtime=runtime)
    if runtime.process_count == 1 or whole:
        return federate(dataset, parts, place=place)
    mesh = runtime.mesh
    assert mesh is not None
    owners = np.array([device.process_index for device in mesh.devices.flat])
    lengths = np.array([len(part) for part in parts], np.int32)
    pool = deal_to_hosts(lengths, owners)
    labels = np.zeros(pool.size, np.int32)
    # The whole pool in address space only: rows that nothing is written to, those of
    # other hosts' clients, take no memory and are never read.
    images = np.zeros((pool.size, *dataset.images.shape[1:]), np.uint8)
    dealt = []
    for client, part in enumerate(parts):
        rows = pool.places[client, : len(part)]
        labels[rows] = np.asarray(dataset.labels)[np.asarray(part)]
        if pool.host_of_client[client] == runtime.process_index:
            images[rows] = dataset.images[np.asarray(part)]
        dealt.append(rows)
    sharding = NamedSharding(mesh, P(AXIS))
    return federate(
        Dataset(images, labels),
        dealt,
        # Four bytes per label, beside the indices that every process has anyway.
        place=place,
        place_images=lambda x: jax.make_array_from_callback(
            x.shape, sharding, lambda rows: x[rows]
        ),
    )


def check_memory(
    dataset: Dataset,
    parts: Sequence[np.ndarray],
    runtime: Runtime,
    *,
    whole: bool = False,
) -> None:
    """Log what a federation will take on the devices; refuse what cannot fit.

    Counts images, labels and indices as `place_federation` puts them, not what a
    network needs to train.

    Raises:
      RuntimeSetupError: if it is more than what is free.
    """
    pool, indices = federation_bytes(dataset.images.shape, parts)
    devices = 1 if runtime.mesh is None else runtime.mesh.size
    split = runtime.process_count > 1 and not whole
    # Only several processes split the pool; every device has all indices.
    each = indices + (-(-pool // devices) if split else pool)
    local = max(1, devices // runtime.process_count)
    logging.info(
        "Images and indices take %s on each of %d devices.",
        filesize.decimal(each),
        devices,
    )
    free, where, number = _free_bytes(local)
    if free is not None and each * number > free:
        raise RuntimeSetupError(
            f"{len(dataset.labels)} training images of shape "
            f"{tuple(dataset.images.shape[1:])} take {filesize.decimal(each * number)} "
            f"{where}, but {filesize.decimal(free)} are free; allowed: fewer images "
            "(data.limit), smaller ones, fewer devices (runtime.devices) or more "
            "processes."
        )


def _free_bytes(local_devices: int) -> tuple[int | None, str, int]:
    """Free bytes, where they are, and how many copies of the data go there."""
    device = jax.local_devices()[0]
    statistics = device.memory_stats() if device.platform != "cpu" else None
    if statistics and "bytes_limit" in statistics:
        free = statistics["bytes_limit"] - statistics.get("bytes_in_use", 0)
        return free, f"on a {device.device_kind}", 1
    if device.platform != "cpu":
        return None, "", 1
    # CPU devices have their copies in the same memory.
    return free_memory(), "in this machine's memory", local_devices


class HostPool(NamedTuple):
    """Where each client's images lie in a pool that is split over hosts."""

    size: int  # rows of the pool, a multiple of the number of devices
    host_of_client: np.ndarray  # [K] int
    places: np.ndarray  # [K, L] int32, indices into the pool; 0 past a length


def deal_to_hosts(lengths: np.ndarray, owners: np.ndarray) -> HostPool:
    """Give neighbouring clients to each host, in proportion to its devices.

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
        rows = np.concatenate(
            [
                np.arange(d * share, (d + 1) * share)
                for d in np.flatnonzero(owners == host)
            ]
        )
        first = 0
        for client in np.flatnonzero(which == number):
            places[client, : lengths[client]] = rows[first : first + lengths[client]]
            first += lengths[client]
    return HostPool(share * len(owners), hosts[which], places)


def replicate(tree, runtime: Runtime):
    """A tree of host arrays as arrays that every process and device holds."""
    if runtime.mesh is None:
        return jax.tree.map(jax.numpy.asarray, tree)
    return on_mesh(tree, runtime.mesh)
