"""The machine a run has: devices, convolutions, the compilation cache.

`start` is the first thing a run calls, because devices and cache must be set up before
JAX opens its backend. How several processes find each other is in `processes`.
"""

import logging
import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from fuprune.federated.cohort import resolve_backend
from fuprune.federated.sharded import make_client_mesh
from fuprune.files import cache_folder
from fuprune.models.layers import loops_are_fast
from fuprune.run import processes
from fuprune.run.processes import RuntimeSetupError

_LOGGER = logging.getLogger(__name__)


class Runtime(NamedTuple):
    """What a run computes on."""

    mesh: Mesh | None = None  # over all devices, None when there is one
    backend: str = "auto"  # or loop, map, vmap, shard_map
    conv: str = "xla"  # or onednn
    process_index: int = 0
    process_count: int = 1

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
    """
    who, waits = (coordinator, num_processes, process_id), heartbeat_seconds
    several = processes.join(*who, heartbeat_seconds=waits, timeout=join_seconds)
    platforms = getattr(jax.config, "jax_platforms", None)
    # CPU devices can only be made before JAX opens them.
    if not platforms or "cpu" in platforms.split(","):
        cores = len(os.sched_getaffinity(0))
        most = min(cores, cohort) if cohort else cores
        _make_cpu_devices(devices or (1 if several else most))
    if compilation == "quick":
        _compile_quickly()
    use_cache(compilation_cache)
    # From here on the backend is open.
    processes.open_devices(join_seconds)
    processes.check_same_config(config or {})
    if several and backend not in ("auto", "shard_map"):
        raise RuntimeSetupError(
            f"runtime.backend is {backend} with {jax.process_count()} processes; "
            "allowed: auto or shard_map, because only those span processes."
        )
    conv = _choose_convolution(conv)
    used = jax.devices()
    # More devices than clients would idle; an explicit number is taken as it is, also
    # where JAX was running before and has more.
    if not several:
        used = used[: devices or cohort or None]
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


_compiling = [0.0]


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event.startswith("/jax/core/compile/"):
        _compiling[0] += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


def compiling_seconds() -> float:
    """Seconds in which this process traced and compiled so far."""
    return _compiling[0]


def _choose_convolution(conv: str) -> str:
    """The convolutions to use, the same on every process."""
    if conv == "xla" or jax.default_backend() != "cpu":
        return "xla"
    from fuprune.kernels import library

    missing = "" if library.available() else str(library.why_not()).rstrip(".")
    if processes.any_process(bool(missing)):
        logging.warning(
            "XLA computes the convolutions, and this run takes about eight times as "
            "long as with oneDNN's: %s.",
            missing or "not every process has them",
        )
        return "xla"
    return "onednn"


def choose_dtype(asked: str, conv: str) -> str:
    """The type of activations: what is asked for, or with "auto" the faster one here.

    `conv` are the convolutions of the run, as in `Runtime`. The answer is the same on
    every process.
    """
    if asked != "auto":
        return asked
    platform = jax.default_backend()
    if platform == "cpu":
        from fuprune.kernels import library

        fast = conv == "onednn" and library.multiplies_bfloat16()
    else:
        # Tensor cores take bfloat16 since compute capability 8.0.
        capability = getattr(jax.devices()[0], "compute_capability", 0)
        fast = platform == "tpu" or float(capability) >= 8
    found = "float32" if processes.any_process(not fast) else "bfloat16"
    _LOGGER.info(
        "runtime.dtype=auto: activations are %s; bfloat16 is %s on this %s.",
        found,
        "multiplied faster" if found == "bfloat16" else "no faster",
        platform,
    )
    return found


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
    given = os.environ.get("XLA_FLAGS", "")
    known = metadata.version("jaxlib").startswith("0.10.")
    if known and "xla_cpu_use_fusion_emitters" not in given:
        flag = "--xla_cpu_use_fusion_emitters=false"
        os.environ["XLA_FLAGS"] = f"{given} {flag}".strip()


def use_cache(directory: str) -> None:
    """Has JAX keep what it compiles, for other processes and runs."""
    if not directory or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    if directory == "auto":
        directory = str(cache_folder() / "xla")
    jax.config.update("jax_compilation_cache_dir", directory)
    # A run has a hundred small programs, which take longer to compile than to read.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
