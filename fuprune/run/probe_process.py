"""The probes of an audit in a Python process of their own, beside all else.

Fitting many small classifiers holds Python's lock, as tracing networks does, so that a
thread would gain nothing. The process takes the tasks of all models at once, as arrays,
and answers with what `probe.probe` finds; the numbers are the same wherever they are
computed.
"""

import concurrent.futures
import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuprune.audit import probe
from fuprune.audit.options import ProbeOptions
from fuprune.audit.probe import Probes, Task

_log = logging.getLogger(__name__)
_COMMAND = "from fuprune.run import probe_process; probe_process.answer()"


class ProbeProcess:
    """A Python process that waits for tasks; leaving its context ends it."""

    def __init__(self):
        # What this process can import, wherever it has found it.
        search = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Whatever goes wrong there goes wrong again, and is told, in this process.
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": search},
        )
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    def begin(self, tasks: Mapping[str, Task]) -> probe.Wait:
        """Sends the tasks, by name, and returns a function that waits for the answers.

        It gives what was found, by name, or None if the process failed.
        """
        sent = self._thread.submit(self._process.communicate, write_tasks(tasks))

        def wait() -> dict[str, Probes] | None:
            output, _ = sent.result()
            if code := self._process.returncode:
                _log.warning("the process of the probes ended with %d", code)
                return None
            return read_probes(output, tasks)

        return wait

    def __enter__(self) -> "ProbeProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._thread.shutdown()
        # Without tasks, nobody has read the pipes to their end.
        self._process.communicate()


def answer() -> None:
    """The process: reads tasks from its input, and writes what it found."""
    # An interrupt is for the audit, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever a library prints must not get between the answers.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    probe.import_classifiers()
    tasks = sys.stdin.buffer.read()
    if tasks:
        output.write(write_probes([probe.probe(task) for task in read_tasks(tasks)]))
        output.flush()


def write_tasks(tasks: Mapping[str, Task]) -> bytes:
    """Tasks of one audit, which differ in their features alone, as bytes."""
    first = next(iter(tasks.values()))
    shared = {
        "layers": list(first.features),
        "classes": list(first.classes),
        "options": first.options._asdict(),
        "seed": first.seed,
    }
    arrays = [values for task in tasks.values() for values in task.features.values()]
    return _packed(shared, [first.labels, *arrays])


def read_tasks(content: bytes) -> list[Task]:
    """The tasks behind `write_tasks`, in their order."""
    shared, (labels, *arrays) = _unpacked(content)
    layers, options = shared["layers"], ProbeOptions(**shared["options"])
    return [
        Task(
            dict(zip(layers, arrays[first:], strict=False)),
            labels,
            tuple(shared["classes"]),
            options,
            shared["seed"],
        )
        for first in range(0, len(arrays), len(layers))
    ]


def write_probes(found: list[Probes]) -> bytes:
    """What was found for each task, as bytes."""
    arrays = []
    for probes in found:
        arrays.append(probes.few_shot)
        for pair in probes.placements.values():
            arrays += pair
    return _packed([list(probes.placements) for probes in found], arrays)


def read_probes(content: bytes, tasks: Mapping[str, Task]) -> dict[str, Probes]:
    """The findings behind `write_probes`, by the names of their tasks."""
    places, arrays = _unpacked(content)
    rest = iter(arrays)
    found = {}
    for name, of_model in zip(tasks, places, strict=True):
        few_shot = next(rest)
        pairs = {(c, layer): (next(rest), next(rest)) for c, layer in of_model}
        found[name] = Probes(pairs, few_shot)
    return found


def _packed(description: Any, arrays: list[np.ndarray]) -> bytes:
    file = io.BytesIO()
    # By position: names of layers may have characters that names of files may not.
    np.savez(file, np.frombuffer(json.dumps(description).encode(), np.uint8), *arrays)
    return file.getvalue()


def _unpacked(content: bytes) -> tuple[Any, list[np.ndarray]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        description, *arrays = (file[f"arr_{i}"] for i in range(len(file.files)))
    return json.loads(description.tobytes()), arrays
