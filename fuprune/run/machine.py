"""The machine a run has: devices, kernels, the compilation cache, data on the devices.

`start` is the first thing a run calls, because devices and cache must be set up before
JAX opens its backend. How several processes find each other is in `processes`.
"""

import functools
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fuprune import __version__
from fuprune import config as configuration
from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset, federate, federation_bytes
from fuprune.data.pictures import free_memory
from fuprune.federated.cohort import resolve_backend
from fuprune.federated.sharded import AXIS, make_client_mesh, on_mesh
from fuprune.files import cache_folder
from fuprune.models.layers import loops_are_fast
from fuprune.run import processes
from fuprune.run.processes import RuntimeSetupError
from fuprune.run.record import Provenance


class Runtime(NamedTuple):
    """What a run computes on."""

    mesh: Mesh | None  # over all devices, None when there is one
    backend: str  # loop, map, vmap, shard_map or auto
    conv: str  # xla or onednn
    process_index: int
    process_count: int

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.process_index == 0


def start(
    *,
    backend: str = "auto",
    conv: str = "auto",
    devices: int = 0,
    cohort: int = 0,
    compilation: str = "full",
    compilation_cache: str = "auto",
    coordinator: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    heartbeat_seconds: int = 100,
    join_seconds: int = 60,
    config: Mapping[str, Any] | None = None,
) -> Runtime:
    """Set up processes, devices and kernels; call once, before any array exists.

    Arguments are called as in the config's section `runtime`, which explains them, or
    as in `processes.join`. With 0 `devices` there is one per core, only one when there
    are several processes, and never more than `cohort`, the clients per round (0 if
    unknown). `config` is whatever has to be the same on every process, as JSON.

    Raises:
      RuntimeSetupError: if processes, devices and cohort do not fit together.
    """
    several = processes.join(
        coordinator,
        num_processes,
        process_id,
        heartbeat_seconds=heartbeat_seconds,
        timeout=join_seconds,
    )
    processes.check_same_config(config or {})
    platforms = getattr(jax.config, "jax_platforms", None)
    # CPU devices can only be made before JAX opens them.
    if not platforms or "cpu" in platforms.split(","):
        _make_cpu_devices(devices or (1 if several else _cores(cohort)))
    if compilation == "quick":
        _compile_quickly()
    _use_cache(compilation_cache)
    # From here on the backend is open.
    processes.open_devices()
    if several and backend not in ("auto", "shard_map"):
        raise RuntimeSetupError(
            f"runtime.backend is {backend} with {jax.process_count()} processes; "
            "allowed: auto or shard_map, because only those span processes."
        )
    conv = _choose_convolution(conv)
    used = jax.devices()
    # More devices than clients would idle; an explicit number is taken as it is.
    if not several and not devices and cohort:
        used = used[:cohort]
    chosen, _ = resolve_backend(
        backend, loops_are_fast=loops_are_fast(conv), device_count=len(used)
    )
    # Only `shard_map` computes on a mesh; the host loop finds its devices by itself.
    mesh = make_client_mesh(used) if chosen == "shard_map" and len(used) > 1 else None
    if mesh is not None and cohort and mesh.size > cohort:
        raise RuntimeSetupError(
            f"the mesh has {mesh.size} devices, but train.cohort is {cohort} clients "
            f"per round; allowed: at most {cohort} devices over all processes, or a "
            "larger train.cohort."
        )
    return Runtime(mesh, backend, conv, jax.process_index(), jax.process_count())


def describe_run(config) -> Provenance:
    """Everything needed to know, and repeat, what a run did."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    versions |= {"fuprune": __version__, "python": platform.python_version()}
    return Provenance(
        configuration.to_json(config),
        versions,
        _commit(),
        ["python", "-m", "fuprune.main", *sys.argv[1:]],
        f"{jax.default_backend()}, {jax.device_count()} device(s)",
    )


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            [git, "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


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
        "Images and indices take %s on each of %d devices.", _shown_bytes(each), devices
    )
    free, where, number = _free_bytes(local)
    if free is not None and each * number > free:
        raise RuntimeSetupError(
            f"{len(dataset.labels)} training images of shape "
            f"{tuple(dataset.images.shape[1:])} take {_shown_bytes(each * number)} "
            f"{where}, but {_shown_bytes(free)} are free; allowed: fewer images "
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


def _shown_bytes(number: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number / 1000:.0f} kB"


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


def _choose_convolution(conv: str) -> str:
    """The convolutions to use, the same on every process."""
    asked, conv = conv, "xla"
    if asked != "xla" and jax.default_backend() == "cpu":
        from fuprune.kernels import library

        if library.available():
            conv = "onednn"
        elif asked == "onednn":
            logging.warning("oneDNN kernels are not used: %s", library.why_not())
    # Minutes, because the kernels may have to be compiled first.
    everybody = processes.tell_all("convolutions", conv, seconds=300)
    if len(set(everybody)) > 1:
        logging.warning("oneDNN kernels are not used: not every process has them.")
        return "xla"
    return conv


def _cores(cohort: int) -> int:
    cores = len(os.sched_getaffinity(0))
    return min(cores, cohort) if cohort else cores


def _make_cpu_devices(number: int) -> None:
    # On a machine that others load, one device may well keep another waiting longer
    # than the 40 seconds after which XLA would end the process.
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_collective_call" not in flags:
        prefix = "--xla_cpu_collective_call_"
        flags += f" {prefix}warn_stuck_timeout_seconds=300"
        flags += f" {prefix}terminate_timeout_seconds=1800"
        os.environ["XLA_FLAGS"] = flags.strip()
    if "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host" in flags:
        return
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        logging.info("JAX is already running; its devices stay as they are.")


def _compile_quickly() -> None:
    jax.config.update("jax_disable_most_optimizations", True)
    # The fusion emitters take twice as long as the ones before them. XLA reads the
    # variable when it opens, and ends the process if it does not know the flag.
    if metadata.version("jaxlib").startswith("0.10."):
        given = os.environ.get("XLA_FLAGS", "")
        if "xla_cpu_use_fusion_emitters" not in given:
            flag = "--xla_cpu_use_fusion_emitters=false"
            os.environ["XLA_FLAGS"] = f"{given} {flag}".strip()


def _use_cache(directory: str) -> None:
    if not directory or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    if directory == "auto":
        directory = str(cache_folder() / "xla")
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
