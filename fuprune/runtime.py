"""The machine a run has: processes, devices, kernels and the compilation cache.

Everything here must happen before JAX opens its backend, which is why `start` is the
first thing a run calls. One process needs nothing; SLURM, Open MPI, Kubernetes and
Cloud TPU are found by JAX's own cluster detection, or named by hand.
"""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fuprune.config import FupruneError
from fuprune.federated.cohort import AXIS, make_client_mesh

_CLUSTER_VARIABLES = (
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_SIZE",
    "JOBSET_NAME",
    "TPU_WORKER_HOSTNAMES",
)


class RuntimeSetupError(FupruneError):
    """Processes or devices that do not fit together."""


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
    compilation_cache: str = "auto",
    coordinator: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    heartbeat_seconds: int = 100,
    initialization_timeout: int = 60,
) -> Runtime:
    """Set up processes, devices and kernels; call once, before any array exists.

    Args:
      backend: how cohorts are iterated; see `federated.cohort`.
      conv: `auto` takes the oneDNN kernels where they are installed and help.
      devices: CPU devices to make; 0 makes one a core for the oneDNN kernels or the
        host loop, one otherwise.
      compilation_cache: a directory, `auto` for one in the user's cache, "" for none.
      coordinator: `host:port` of process 0; "" leaves it to cluster detection.
      num_processes: with `coordinator`.
      process_id: with `coordinator`.
      heartbeat_seconds: silence after which a process counts as dead.
      initialization_timeout: seconds to wait for all processes to arrive.
    """
    _check_processes(coordinator, num_processes, process_id)
    if not jax.config.jax_platforms or "cpu" in jax.config.jax_platforms.split(","):
        _make_cpu_devices(devices or _default_cpu_devices(coordinator))
    _join(
        coordinator,
        num_processes,
        process_id,
        heartbeat_seconds,
        initialization_timeout,
    )
    _use_cache(compilation_cache)
    # Only here, for it opens the backend.
    conv = _choose_convolution(conv)
    if conv == "onednn" and jax.default_backend() != "cpu":
        conv = "xla"
    if conv == "onednn":
        from fuprune.kernels import convolution

        convolution.set_threads(
            max(1, (os.cpu_count() or 1) // jax.local_device_count())
        )
    if backend == "loop" and jax.process_count() > 1:
        raise RuntimeSetupError(
            f"runtime.backend is loop with {jax.process_count()} processes; allowed: "
            "auto or shard_map, for only those span processes."
        )
    mesh = make_client_mesh() if jax.device_count() > 1 else None
    return Runtime(mesh, backend, conv, jax.process_index(), jax.process_count())


def place_pool(pool: np.ndarray, runtime: Runtime) -> jax.Array:
    """An array of the image pool on the devices: whole on one, split over many hosts.

    With several processes each holds its own slice of the pool, cut by
    `local_slice`; its rows must be padded to a multiple of the number of devices.
    """
    if runtime.mesh is None:
        return jax.numpy.asarray(pool)
    if runtime.process_count == 1:
        return jax.device_put(pool, NamedSharding(runtime.mesh, P()))
    size = -(-len(pool) // runtime.mesh.size) * runtime.mesh.size
    share = size // runtime.process_count
    first = runtime.process_index * share
    mine = np.zeros((share, *pool.shape[1:]), pool.dtype)
    rows = pool[first : first + share]
    mine[: len(rows)] = rows
    sharding = NamedSharding(runtime.mesh, P(AXIS))
    return jax.make_array_from_process_local_data(
        sharding, mine, (size, *pool.shape[1:])
    )


def replicate(tree, runtime: Runtime):
    """A tree of host arrays as arrays that every process and device holds."""
    if runtime.mesh is None:
        return jax.tree.map(jax.numpy.asarray, tree)
    sharding = NamedSharding(runtime.mesh, P())

    def place(x):
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda at: host[at])

    return jax.tree.map(place, tree)


def check_same_config(config: dict) -> None:
    """Raise on every process if they were started with different configs."""
    if jax.process_count() == 1:
        return
    text = json.dumps(config, sort_keys=True)
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    all_digests = multihost_utils.process_allgather(digest)
    different = [
        i for i, other in enumerate(all_digests) if not np.array_equal(other, digest)
    ]
    if different:
        raise RuntimeSetupError(
            f"process {jax.process_index()} has another config than process "
            f"{', '.join(map(str, different))}; start all with the same --config flags."
        )


def barrier(name: str) -> None:
    """Wait until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _check_processes(coordinator, num_processes, process_id) -> None:
    given = [bool(coordinator), num_processes > 0, process_id >= 0]
    if any(given) and not all(given):
        raise RuntimeSetupError(
            f"--coordinator={coordinator!r} --num_processes={num_processes} "
            f"--process_id={process_id} are not complete; give all three, or none."
        )
    if coordinator and ":" not in coordinator:
        raise RuntimeSetupError(
            f"--coordinator={coordinator!r} has no port; write host:port."
        )
    if num_processes > 0 and process_id >= num_processes:
        raise RuntimeSetupError(
            f"--process_id={process_id} does not fit --num_processes={num_processes}; "
            f"allowed: 0 to {num_processes - 1}."
        )


def _choose_convolution(conv: str) -> str:
    if conv == "xla":
        return conv
    from fuprune.kernels import convolution

    if convolution.available():
        return "onednn"
    if conv == "onednn":
        logging.warning("oneDNN kernels are not used: %s", convolution.why_not())
    return "xla"


def _default_cpu_devices(coordinator: str) -> int:
    """One device a core; in a cluster, one a process."""
    if coordinator or any(name in os.environ for name in _CLUSTER_VARIABLES):
        return 1
    return len(os.sched_getaffinity(0))


def _make_cpu_devices(number: int) -> None:
    if "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host" in os.environ.get(
        "XLA_FLAGS", ""
    ):
        return
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        logging.info("JAX is already running; its devices stay as they are.")


def _join(coordinator, num_processes, process_id, heartbeat, timeout) -> None:
    in_cluster = any(name in os.environ for name in _CLUSTER_VARIABLES)
    if not coordinator and not in_cluster:
        return
    options = dict(initialization_timeout=timeout, heartbeat_timeout_seconds=heartbeat)
    if coordinator:
        options.update(
            coordinator_address=coordinator,
            num_processes=num_processes,
            process_id=process_id,
        )
    try:
        jax.distributed.initialize(**options)
    except (RuntimeError, ValueError) as error:
        waited = coordinator or "the cluster's coordinator"
        raise RuntimeSetupError(
            f"process {process_id if process_id >= 0 else '?'} waited {timeout} s for "
            f"{num_processes or 'all'} processes at {waited} and did not meet them: "
            f"{str(error).splitlines()[0][:200]}; start every process with the same "
            "--coordinator and --num_processes."
        ) from None


def _use_cache(directory: str) -> None:
    if not directory or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    if directory == "auto":
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = str(Path(base) / "fuprune" / "xla")
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
