"""Several processes of one run: start-up, config check, barrier, shared files.

JAX connects them and finds SLURM, Open MPI, Kubernetes and Cloud TPU by itself; with
`--coordinator` the flags say who is there.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fuprune import config as configuration
from fuprune.errors import FupruneError

# Where launchers say how many processes they started.
_COUNTS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


class RuntimeSetupError(FupruneError):
    """Processes or devices that do not fit together."""


def join(
    coordinator: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    *,
    heartbeat_seconds: int = 100,
    timeout: int = 60,
) -> bool:
    """Meet the other processes of the run; whether there are any.

    Call it before any array exists. Without a coordinator, the `host:port` of process
    0, JAX asks the launcher how many processes there are and which one this is.
    """
    check_flags(coordinator, num_processes, process_id)
    if not coordinator and any(os.environ.get(name) == "1" for name in _COUNTS):
        return False
    given: dict[str, Any] = dict(
        coordinator_address=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        cluster_detection_method="deactivate",
    )
    # The run itself handles SIGTERM, and all processes agree on when to stop.
    jax.config.update("jax_enable_preemption_service", False)
    me = f"process {process_id} of {num_processes}" if coordinator else "this process"
    place = coordinator or "the launcher's coordinator"
    late = (
        f"{me} waited {timeout} s for all to meet at {place}; is process 0 running "
        "there, was each of the others started once, and do all give the same "
        "--num_processes?"
    )
    try:
        with _deadline(timeout, late):
            jax.distributed.initialize(
                **(given if coordinator else {}),
                initialization_timeout=timeout + 60,  # the deadline comes first
                heartbeat_timeout_seconds=heartbeat_seconds,
            )
    except (RuntimeError, ValueError, LookupError, OSError) as error:
        # No launcher, or a notebook that has used JAX already: one process.
        if not coordinator and not isinstance(error, jax.errors.JaxRuntimeError):
            logging.getLogger(__name__).debug("one process: %s", error)
            return False
        raise RuntimeSetupError(
            f"{me} cannot meet the others at {place}: "
            f"{' '.join(str(error).split())[:200]}; give --coordinator, "
            "--num_processes and --process_id, all three."
        ) from None
    return num_processes != 1


def open_devices(timeout: int = 60) -> None:
    """Open the devices of all processes, which must have equally many."""
    late = (
        "this process waited for the devices of the others; do all give the same "
        "--num_processes and run on the same kind of device?"
    )
    with _deadline(max(timeout, 60), late):
        here, everywhere = jax.local_device_count(), jax.device_count()
    if here * jax.process_count() != everywhere:
        raise RuntimeSetupError(
            f"process {jax.process_index()} has {here} of the {everywhere} devices of "
            f"{jax.process_count()} processes; give all the same runtime.devices."
        )


@contextlib.contextmanager
def _deadline(seconds: float, text: str):
    """End the process with one line if the block takes longer.

    The block waits in C++, where no exception reaches it, and JAX would then abort.
    """

    def give_up():
        print(f"fuprune: error: {text}", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_flags(coordinator: str, num_processes: int, process_id: int) -> None:
    """Raise unless the three flags are all there and fit, or none is given."""
    if (coordinator, num_processes, process_id) == ("", 0, -1):
        return
    host, _, port = coordinator.rpartition(":")
    is_address = host and port.isdigit() and 0 < int(port) < 65536
    if not is_address or not 0 <= process_id < num_processes:
        raise RuntimeSetupError(
            f"--coordinator={coordinator!r} --num_processes={num_processes} "
            f"--process_id={process_id} do not fit; allowed: host:port of process 0, "
            "the number of processes, and which one this is, from 0 to one less; all "
            "three, or none."
        )


def gather(text: str) -> list[str]:
    """Every process's text, in the order of their numbers; all call it."""
    own = np.frombuffer(text.encode(), np.uint8)
    length = int(np.max(multihost_utils.process_allgather(np.int32(len(own)))))
    rows = multihost_utils.process_allgather(np.pad(own, (0, length - len(own))))
    return [row.tobytes().rstrip(b"\0").decode() for row in rows]


def any_process(flag: bool) -> bool:
    """Whether `flag` is set on any process; all call it."""
    return bool(np.any(multihost_utils.process_allgather(np.bool_(flag))))


def check_same_config(config: Mapping[str, Any]) -> None:
    """Raise on every process if they were started with different configs."""
    own = configuration.flatten(config)
    configs = [json.loads(text) for text in gather(json.dumps(own))]
    different = [key for key in own if any(c[key] != own[key] for c in configs)]
    if different:
        raise RuntimeSetupError(
            f"the {len(configs)} processes have different configs: they differ in "
            f"{', '.join(different)}; start all with the same --config flags."
        )


def await_file(path: Path, *, seconds: int = 60) -> None:
    """Wait until all processes see a file that process 0 has written; all call it."""
    any_process(False)  # process 0 has come here, so the file is written
    until = time.monotonic() + seconds
    while jax.process_count() > 1 and not path.exists() and time.monotonic() < until:
        os.listdir(path.parent)  # makes NFS look again
        time.sleep(0.2)
    seen = gather("yes" if path.exists() else "no")
    blind = [str(i) for i, answer in enumerate(seen) if answer == "no"]
    if blind:
        raise RuntimeSetupError(
            f"process {', '.join(blind)} does not see {path}, which process 0 wrote; "
            "choose a --workdir on a filesystem that all processes share."
        )


def leave(code: int) -> None:
    """End the process at once after an error, if there are others.

    They may never come to the barrier where JAX waits for all before it ends.
    """
    if code and jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        # Those with the same error still need the coordinator, which is process 0.
        time.sleep(3)
        os._exit(code)
