"""One process of two: computes what `rounds` defines and writes what it got.

python -m tests.multidevice.worker COORDINATOR PROCESS_ID OUTPUT; with COORDINATOR ""
the cluster's variables in the environment are left to say it.
"""

import json
import sys

import jax
import numpy as np

from fuprune.data.federated import federate
from fuprune.run import data as run_data
from fuprune.run import machine as runtime
from fuprune.run import processes
from tests.multidevice import rounds


def main(coordinator: str, process_id: str, output: str) -> None:
    flags = {}
    if coordinator:
        flags = dict(
            coordinator=coordinator, num_processes=2, process_id=int(process_id)
        )
    machine = runtime.start(
        conv="xla",
        devices=2,
        cohort=rounds.COHORT,
        compilation_cache="",
        join_seconds=120,
        config={"same": True},
        **flags,
    )
    assert (machine.process_count, machine.mesh.size) == (2, 4)
    assert processes.any_process(machine.process_index == 1)
    assert not processes.any_process(False)
    dataset, parts = rounds.train_set(), rounds.parts()
    on_host = federate(dataset, parts, place=np.asarray)
    own, _ = run_data.split_over_hosts(on_host, machine)
    data = run_data.place_federation(own, machine, split=True)
    held = np.concatenate([s.data for s in data.images.addressable_shards])
    facts = {
        "process": machine.process_index,
        "rows_held": len(held),
        "images_held": [
            i
            for i, image in enumerate(dataset.images)
            if (held == image).all(axis=(1, 2, 3)).any()
        ],
        "global_rows": data.images.shape[0],
        "labels_everywhere": data.labels.sharding.is_fully_replicated,
    }
    results = rounds.everything(data, machine.mesh, backend="auto")
    whole = run_data.place_federation(on_host, machine)
    facts["whole_rows"] = whole.images.addressable_shards[0].data.shape[0]
    algorithm = rounds.averaging(mesh=machine.mesh)
    state, _ = rounds.train(algorithm, whole)
    kernel = state.variables["params"]["conv1"]["conv"]["kernel"]
    results["whole"] = np.asarray(kernel)
    np.savez(f"{output}.npz", **results)
    with open(f"{output}.json", "w") as file:
        json.dump({**facts, "devices": jax.device_count()}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
    processes.leave(0)
