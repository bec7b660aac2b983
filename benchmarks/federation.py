"""What a message costs a client of a Flower federation, against a simulated client.

Flower starts a process for every message. The same training request is answered three
times: by a process whose folder is empty, by one that finds its data and compiled
programs there, and by the simulator in a process that has answered before. Beside them
are a message that runs no program (a forget order), and what Flower's own process costs
before it answers anything. CPU seconds are compared, which depend less than others on
what else the machine does; Flower's transport is not in them.

    python benchmarks/federation.py
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / "peers")]

RESULTS = HERE / "results" / "federation.json"
CONFIG = "partition.clients=3 partition.kind=iid train.cohort=3 train.local_epochs=1"


def main(arguments=None):
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--part", choices=sorted(PARTS))
    options = parser.parse_args(arguments)
    if options.part:
        PARTS[options.part]()
        return
    import round_throughput

    machine = round_throughput.machine()
    rows = measure(options.repeats)
    report = {
        "date": round_throughput.now(),
        "machine": machine | {"load_after": os.getloadavg()[0]},
        "workload": {"config": CONFIG, "model": "resnet8", "images": "digits, 8x8"},
        "rows": rows,
    }
    round_throughput.write_report(options.output, report)
    print(json.dumps(rows, indent=1))


def measure(repeats):
    """CPU seconds of each kind of answer, the median of `repeats`."""
    parts = {
        "process that answers nothing": "nothing",
        "forget order": "order",
        "one epoch, cold": "epoch",
        "one epoch, warm": "epoch",
    }
    found = {name: [] for name in parts}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            run("request", folder)
            for name, part in parts.items():
                found[name].append(run(part, folder))
    simulator = [run("simulator", "") for _ in range(repeats)]
    rows = [{"answer": name, **middle(times)} for name, times in found.items()]
    rows.append({"answer": "one epoch, simulated client", **middle(simulator)})
    return rows


def middle(times):
    times = sorted(times)
    return {"cpu_seconds": times[len(times) // 2], "lowest": times[0]}


def run(part, folder):
    """CPU seconds that a fresh process says a part took."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    environment |= {"FUPRUNE_FOLDER": folder, "PYTHONPATH": str(HERE.parent)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, __file__, "--part", part],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])["cpu_seconds"]


def answer_epoch():
    """One training request, answered as Flower's process does; all that it costs."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    folder = pathlib.Path(os.environ["FUPRUNE_FOLDER"])
    text = (folder / "request.json").read_text()
    with np.load(folder / "request.npz") as arrays:
        named = {name: Array.from_numpy_ndarray(arrays[name]) for name in arrays}
    records = {"json": ConfigRecord({"text": text}), "arrays": ArrayRecord(named)}
    answer("train", RecordDict(records))


def answer_order():
    """A forget order, logged and confirmed."""
    from fuprune.flower.records import PROTOCOL, pack

    order = {"order": "a", "classes": [3], "clients": [], "examples": []}
    header = {"protocol": PROTOCOL, "request": "benchmark", "order": "a"}
    answer("query.forget", pack({**header, "orders": [order]}))


def answer(kind, content):
    """Prints what the process has cost once it has answered."""
    # What Flower's process imports before it loads an app.
    import flwr.supernode.cli  # noqa: F401
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from fuprune.flower import client_app
    from fuprune.flower.records import unpack

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    folder = pathlib.Path(os.environ["FUPRUNE_FOLDER"])
    message = Message(content, message_type=kind, dst_node_id=1)
    context = Context(
        run_id=1,
        node_id=1,
        node_config={"client-id": 0, "folder": str(folder)},
        state=RecordDict(),
        run_config={"config": CONFIG},
    )
    reply, _ = unpack(client_app.app(message, context).content)
    assert reply["problem"] is None, reply["problem"]
    print(json.dumps({"cpu_seconds": reply["cpu_seconds"]}))


def make_request():
    """Writes a request for one epoch, as a server would send it."""
    import jax
    import numpy as np

    from fuprune import config as configuration
    from fuprune.flower.records import PROTOCOL, pack
    from fuprune.flower.settings import read_config
    from fuprune.models import zoo
    from fuprune.surgery import rebuild

    config = read_config(CONFIG)
    model = zoo.create("resnet8", num_classes=10, input_shape=(8, 8, 1))
    images = jax.ShapeDtypeStruct((1, 8, 8, 1), np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    draws = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda x: (0.1 * draws.standard_normal(x.shape) ** 2).astype(x.dtype), shapes
    )
    arguments = {"local_epochs": 1, "batch_size": 16}
    header = {
        "protocol": PROTOCOL,
        "request": "benchmark",
        "orders": [],
        "task": "local_sgd",
        "arguments": arguments,
        "spec": rebuild.spec(model),
        "classes": list(range(10)),
        "num_classes": 10,
        "order": None,
        "settings": {
            "config": configuration.to_json(config),
            "mean": [0.3],
            "std": [0.3],
            "learning_rate": 0.1,
            "max_length": 100,
        },
    }
    context = (variables, jax.random.key(1), np.float32(1.0), None, ())
    content = pack(header, context)
    folder = pathlib.Path(os.environ["FUPRUNE_FOLDER"])
    (folder / "request.json").write_text(str(content["json"]["text"]))
    arrays = {name: x.numpy() for name, x in content["arrays"].items()}
    np.savez(folder / "request.npz", **arrays)
    print(json.dumps({"cpu_seconds": 0.0}))


def simulate():
    """A round of three clients in the simulator, per client, compiled before."""
    import time

    import jax

    from fuprune.data.federated import whole_cohort
    from fuprune.flower.settings import read_config
    from fuprune.run import build
    from fuprune.run.data import load_data
    from fuprune.run.machine import Runtime

    config, runtime = read_config(CONFIG), Runtime(backend="loop")
    federation = load_data(config, runtime)
    setup = build.Setup(config, federation, "loop")
    model = build.make_model(setup)
    algorithm = build.make_algorithm(setup, model, build.Schedule(9, 0.1))
    state = algorithm.init(build.initial_variables(model, jax.random.key(0)))
    cohort = whole_cohort(federation.data)
    state, _ = jax.block_until_ready(algorithm.round(state, cohort, jax.random.key(1)))
    start = time.process_time()
    jax.block_until_ready(algorithm.round(state, cohort, jax.random.key(2)))
    taken = (time.process_time() - start) / 3
    print(json.dumps({"cpu_seconds": round(taken, 3)}))


def start_only():
    """What a process costs that loads Flower and the client's app, and no more."""
    import time

    import flwr.supernode.cli

    from fuprune.flower import client_app  # noqa: F401

    del flwr

    print(json.dumps({"cpu_seconds": round(time.process_time(), 3)}))


PARTS = {
    "epoch": answer_epoch,
    "order": answer_order,
    "request": make_request,
    "simulator": simulate,
    "nothing": start_only,
}


if __name__ == "__main__":
    main()
