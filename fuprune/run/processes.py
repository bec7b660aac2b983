"""Several processes of one run: how they meet, agree, and part.

JAX's own runtime connects them (`jax.distributed`); SLURM, Open MPI, Kubernetes and
Cloud TPU are found by its cluster detection. What is added here is what a user sees
when something is amiss: every wait has an end that names what was waited for, every
disagreement is one line on every process, and a process that the runtime aborts
because another died still says so.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune import config as configuration
from fuprune.errors import FupruneError
from fuprune.run import witnesses

_RESUME = "start all processes again with the same command, and the run continues"
# What the runtime says when another process, or the network to it, is gone.
_LOSSES = ("Gloo", "NCCL", "coordination", "UNAVAILABLE", "ABORTED", "Connection")


class RuntimeSetupError(FupruneError):
    """Processes or devices that do not fit together."""


class _Session(NamedTuple):
    """This process among the others."""

    process_id: int
    num_processes: int
    timeout: int  # seconds to wait for the others at the start
    witness: subprocess.Popen
    calls: dict[str, int]  # how often each name was used, the same on every process

    @property
    def name(self) -> str:
        return f"process {self.process_id} of {self.num_processes}"


_session: _Session | None = None


def find_cluster(environment: Mapping[str, str]) -> str | None:
    """The manager that started this process as one of several, None if none did.

    JAX must be imported by then: it notes in the environment that there is no TPU.
    """
    if "SLURM_STEP_NODELIST" in environment and _number(environment, "SLURM_NTASKS"):
        return "slurm"
    if _number(environment, "OMPI_COMM_WORLD_SIZE"):
        return "ompi"
    several = "," in environment.get("TPU_WORKER_HOSTNAMES", "")
    if several or "TPU_SKIP_MDS_QUERY" not in environment:
        if importlib.util.find_spec("libtpu") is not None:
            return "tpu"
    if {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= environment.keys():
        return "k8s"
    return None


def join(
    coordinator: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    *,
    heartbeat_seconds: int = 100,
    timeout: int = 60,
) -> bool:
    """Meet the other processes of the run; whether there are any.

    It comes before any array exists. Without a coordinator, the `host:port` of process
    0, the cluster says how many there are and which this is. `heartbeat_seconds` of
    silence count as death, and `timeout` is how many to wait for all.

    Raises:
      RuntimeSetupError: if they cannot meet; should the wait be too long, the process
        says so in the same form and exits with code 2.
    """
    global _session
    check_flags(coordinator, num_processes, process_id)
    cluster = None if coordinator else find_cluster(os.environ)
    if not coordinator and cluster is None:
        return False
    options: dict[str, Any] = {}
    if coordinator:
        options = dict(
            coordinator_address=coordinator,
            num_processes=num_processes,
            process_id=process_id,
            cluster_detection_method="deactivate",
        )
    else:
        _check_cluster(cluster, os.environ)
    me = f"process {process_id}" if coordinator else f"a process of {cluster}"
    all_of_them = f"all {num_processes} processes" if coordinator else "all processes"
    place = coordinator or f"the coordinator that {cluster} names"
    witness = witnesses.call()
    # The runtime aborts a process that the coordinator does not know.
    witnesses.say_if_killed(
        witness,
        f"{me} was turned away by {place}; give every process the same --num_processes "
        "and each its own --process_id, from 0.",
    )
    # Stops are agreed on by the run itself, which handles SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with witnesses.deadline(
            witness,
            timeout,
            f"{me} waited {timeout} s for {all_of_them} to meet at {place}, and not "
            "all came; is process 0 running there, was each of the others started "
            "once, and do all give the same --num_processes?",
        ):
            jax.distributed.initialize(
                **options,
                initialization_timeout=timeout + 60,  # the deadline comes first
                heartbeat_timeout_seconds=heartbeat_seconds,
            )
    except (RuntimeError, ValueError, OSError) as error:
        witnesses.dismiss(witness)
        raise RuntimeSetupError(
            f"{me} cannot meet the others at {place}: "
            f"{str(error).splitlines()[0][:200]}; give --coordinator, --num_processes "
            "and --process_id, all three."
        ) from None
    # The same attributes that orbax reads: the public API has no way to ask for them
    # without opening the devices, which waits for processes that may not exist.
    state = _state()
    _session = _Session(state.process_id, state.num_processes, timeout, witness, {})
    witnesses.say_if_killed(
        witness,
        f"{_session.name} ended before its time: it was killed, or another process "
        f"died or could not be reached for {heartbeat_seconds} s (see above and in the "
        f"other processes' output); {_RESUME}.",
    )
    counts = tell_all("num_processes", str(_session.num_processes))
    if len(set(counts)) > 1:
        raise RuntimeSetupError(
            f"{_session.name} sees another number of processes than the others, which "
            f"count {', '.join(counts)}; give the same --num_processes to all."
        )
    return _session.num_processes > 1


def open_devices() -> None:
    """Open the devices of all processes and connect each with each.

    Gloo waits half a minute, no longer, for the partners of the first operation among
    the same devices: here all arrive together, later a compilation may lie between.
    """
    if _session is None:
        return
    patience = max(_session.timeout, 60)
    with witnesses.deadline(
        _session.witness,
        patience,
        f"{_session.name} waited {patience} s for the devices of the others; do all "
        "run on the same kind of device?",
    ):
        devices = jax.devices()
        mesh = jax.sharding.Mesh(np.asarray(devices), ("all",))
        everybody = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.psum(x, "all"),
                mesh=mesh,
                in_specs=jax.sharding.PartitionSpec(),
                out_specs=jax.sharding.PartitionSpec(),
                check_vma=False,
            )
        )
        barrier("devices")
        jax.block_until_ready(everybody(np.float32(1.0)))
        any_process(False)


def check_flags(coordinator: str, num_processes: int, process_id: int) -> None:
    """Raise unless the three flags are all there and fit, or none is given."""
    given = [bool(coordinator), num_processes != 0, process_id != -1]
    if any(given) and not all(given):
        raise RuntimeSetupError(
            f"--coordinator={coordinator!r} --num_processes={num_processes} "
            f"--process_id={process_id} are not complete; give all three, or none."
        )
    if not any(given):
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise RuntimeSetupError(
            f"--coordinator={coordinator!r} is not an address; write host:port."
        )
    if num_processes < 1:
        raise RuntimeSetupError(f"--num_processes={num_processes}; allowed: 1 or more.")
    if not 0 <= process_id < num_processes:
        raise RuntimeSetupError(
            f"--process_id={process_id} does not fit --num_processes={num_processes}; "
            f"allowed: 0 to {num_processes - 1}."
        )


def tell_all(name: str, text: str, *, seconds: int = 0) -> list[str]:
    """Every process's text, in the order of their numbers, on every process.

    Goes by process 0 and needs no devices. All processes call it with the same names
    in the same order, and wait so many seconds, with 0 as long as at the start.

    Raises:
      RuntimeSetupError: on every process, naming those that did not come in time.
    """
    if _session is None:
        return [text]
    client, me = _state().client, _session.process_id
    seconds = seconds or _session.timeout
    place = f"fuprune/{name}/{_turn(name)}"
    if me == 0:
        until = time.monotonic() + seconds
        texts: list[str | None] = [text]
        for other in range(1, _session.num_processes):
            left = max(0.1, until - time.monotonic())
            texts.append(_get(client, f"{place}/{other}", left))
        client.key_value_set(f"{place}/all", json.dumps(texts))
    else:
        client.key_value_set(f"{place}/{me}", text)
        answer = _get(client, f"{place}/all", 2 * seconds)
        texts = [None] if answer is None else json.loads(answer)
    missing = [str(i) for i, other in enumerate(texts) if other is None]
    if missing:
        raise RuntimeSetupError(
            f"{_session.name} waited {seconds} s for process "
            f"{', '.join(missing)} to compare {name}; see what stopped it, then "
            f"{_RESUME}."
        )
    return [str(other) for other in texts]


def check_same_config(config: Mapping[str, Any]) -> None:
    """Raise on every process if they were started with different configs."""
    if _session is None:
        return
    leaves = {
        key: hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
        for key, value in configuration.flatten(config).items()
    }
    configs = [json.loads(text) for text in tell_all("config", json.dumps(leaves))]
    different = sorted(
        key
        for key in set().union(*configs)
        if len({other.get(key) for other in configs}) > 1
    )
    if different:
        raise RuntimeSetupError(
            f"{_session.name} has another config than the others: they differ in "
            f"{', '.join(different)}; start all with the same --config flags."
        )


def check_shared(folder: Path) -> None:
    """Raise on every process unless all see the same folder."""
    if _session is None:
        return
    main = _session.process_id == 0
    token = tell_all("token", secrets.token_hex(8) if main else "")[0]
    path = folder / f".shared-{token}"
    if main:
        path.touch()
    tell_all("token written", "")
    seen = tell_all("shared", "yes" if wait_for_file(path, seconds=20) else "no")
    if main:
        path.unlink(missing_ok=True)
    blind = [str(i) for i, answer in enumerate(seen) if answer == "no"]
    if blind:
        raise RuntimeSetupError(
            f"process {', '.join(blind)} does not see the --workdir {folder} of "
            "process 0; choose one on a filesystem that all processes share."
        )


def await_file(path: Path, *, seconds: int = 60) -> None:
    """Wait until a file that process 0 has written can be seen here.

    Raises:
      RuntimeSetupError: when it does not come into sight.
    """
    if not wait_for_file(path, seconds):
        raise RuntimeSetupError(
            f"{path}, which process 0 wrote, did not come into sight within "
            f"{seconds} s; choose a --workdir on a filesystem that all processes share."
        )


def wait_for_file(path: Path, seconds: float) -> bool:
    """Whether `path` comes into sight: network filesystems show it late."""
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # makes NFS look again
        if path.exists():
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.2)


def any_process(flag: bool) -> bool:
    """Whether `flag` is set on any process; all call it."""
    if _session is None:
        return flag
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.bool_(flag))))


def barrier(name: str, *, seconds: int = 3600) -> None:
    """Wait until every process is here.

    Raises:
      RuntimeSetupError: when they are not all here after `seconds`.
    """
    if _session is None:
        return
    try:
        _state().client.wait_at_barrier(
            f"fuprune/{name}/{_turn(name)}", timeout_in_ms=1000 * seconds
        )
    except jax.errors.JaxRuntimeError:
        raise RuntimeSetupError(
            f"{_session.name} waited {seconds} s at {name!r} for the others; see what "
            f"stopped them, then {_RESUME}."
        ) from None


@contextlib.contextmanager
def explaining_losses():
    """Turn the runtime's error for a process that is gone into one line."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = " ".join(str(error).split())
        if _session is None or not any(word in text for word in _LOSSES):
            raise
        raise RuntimeSetupError(
            f"{_session.name} lost another process, which died or is out of reach "
            f"({text[:160]}); see its output, then {_RESUME}."
        ) from None


def leave(code: int) -> None:
    """End this process's part; with several processes it returns only if all is well.

    After an error the others may never come to the same place, so the process ends at
    once; process 0 first gives those with the same error a moment to read its message.
    """
    global _session
    if _session is None:
        return
    session = _session
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if code == 0:
            barrier("the end of the run")
        witnesses.say_if_killed(session.witness, "")
        if code == 0:
            jax.distributed.shutdown()
        elif session.process_id == 0:
            time.sleep(3)
    except Exception as error:
        if code == 0:
            witnesses.complain(" ".join(str(error).split())[:300])
            code = 2
    witnesses.dismiss(session.witness)
    _session = None
    if code:
        os._exit(code)


def _state() -> Any:
    from jax._src import distributed

    return distributed.global_state


def _turn(name: str) -> int:
    """How often `name` was used before; keys of the runtime's store are used once."""
    assert _session is not None
    _session.calls[name] = _session.calls.get(name, -1) + 1
    return _session.calls[name]


def _get(client, key: str, seconds: float) -> str | None:
    try:
        return client.blocking_key_value_get(key, max(1, int(1000 * seconds)))
    except jax.errors.JaxRuntimeError:
        return None


def _number(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "")
    return value.isdigit() and int(value) > 1


def _check_cluster(cluster: str | None, environment: Mapping[str, str]) -> None:
    """Raise where JAX's own detection would not find what it needs."""
    by_hand = "give --coordinator, --num_processes and --process_id"
    if cluster == "k8s" and importlib.util.find_spec("kubernetes") is None:
        raise RuntimeSetupError(
            "this is an indexed job on Kubernetes, but the package kubernetes, which "
            f"JAX asks for the others, is not installed; {by_hand} as in "
            "launch/k8s-jobset.yaml, or pip install 'jax[k8s]'."
        )
    if cluster == "ompi" and "OMPI_MCA_orte_hnp_uri" not in environment:
        raise RuntimeSetupError(
            "this is one of several processes of Open MPI 5, which does not say where "
            f"its first process is; {by_hand}=$OMPI_COMM_WORLD_RANK."
        )
