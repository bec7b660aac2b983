"""FedAvg rounds on more devices and processes, and the constants of docs/scaling.md.

Strong scaling keeps the cohort and adds devices; weak scaling adds clients with them.
Every contender is a process (or a pair of them) that lives through the whole run and is
asked for one round in turn; medians are compared. The constants are what the model of
docs/scaling.md needs: the cost of a client and of a round without images, of drawing a
cohort from very many clients, of a checkpoint, and of sums and exchanges between two
processes over loopback.

    python benchmarks/scaling.py             # about 10 minutes on two cores
    python benchmarks/scaling.py --smoke     # a minute, tiny
    python benchmarks/scaling.py --docs      # rewrite the tables of docs/scaling.md
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE), str(HERE / "peers")]

import protocol  # noqa: E402
from scaling_model import DOCS, filled, scaling_table  # noqa: E402

RESULTS = HERE / "results" / "scaling.json"
STRONG = 8  # clients per round
WEAK = 4  # clients per device


class Setup(NamedTuple):
    """One contender."""

    scaling: str  # strong, weak, or both
    processes: int
    devices: int  # of all processes together
    clients: int  # per round


SETUPS = (
    Setup("strong", 1, 1, STRONG),
    Setup("both", 1, 2, STRONG),
    Setup("strong", 1, 4, STRONG),
    Setup("weak", 1, 1, WEAK),
    Setup("weak", 1, 4, 4 * WEAK),
    Setup("both", 2, 2, STRONG),
)


def main(arguments=None) -> int:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=64, help="of each client")
    parser.add_argument("--size", type=int, default=32, help="pixels of a side")
    parser.add_argument("--net", default="resnet20")
    parser.add_argument("--smoke", action="store_true", help="tiny images, one round")
    parser.add_argument("--docs", action="store_true", help="only rewrite the page")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--setup", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.role:
        ROLES[options.role](options)
        return 0
    if options.docs:
        report = json.loads(options.output.read_text())
        DOCS.write_text(filled(DOCS.read_text(), report))
        return 0
    setups = SETUPS
    if options.smoke:
        options.images, options.size, options.repeats = 4, 8, 1
        setups = (SETUPS[0], SETUPS[1])
    from round_throughput import machine, now, write_report

    report = {
        "date": now(),
        "machine": machine(),
        "workload": {
            name: getattr(options, name) for name in ("net", "images", "size")
        },
    }
    report["rows"] = measure(setups, options)
    report["constants"] = constants(options)
    report["machine"]["load_after"] = os.getloadavg()[0]
    write_report(options.output, report)
    print(scaling_table(report))
    return 0


def flags(options, role: str, setup: Setup | None = None) -> list[str]:
    """The command of a process of this benchmark."""
    return [
        sys.executable,
        str(HERE / "scaling.py"),
        f"--role={role}",
        f"--setup={json.dumps(setup)}",
        f"--images={options.images}",
        f"--size={options.size}",
        f"--net={options.net}",
        *(["--smoke"] if options.smoke else []),
    ]


def measure(setups, options) -> list[dict]:
    """Median seconds of a round of every setup, interleaved."""
    logs = pathlib.Path(tempfile.mkdtemp(prefix="scaling-"))
    with contextlib.ExitStack() as stack:
        contenders = []
        for number, setup in enumerate(setups):
            contender = protocol.Contender(
                f"{setup}", flags(options, "rounds", setup), logs / f"{number}.log"
            )
            stack.callback(contender.close)
            # One after the other, for compilation takes all cores.
            facts = contender.answer()
            contenders.append((setup, contender, facts, []))
        for _ in range(options.repeats):
            for _, contender, _, seconds in contenders:
                seconds.append(contender.round()["seconds"])
        medians = {s: statistics.median(seconds) for s, _, _, seconds in contenders}
    rows = []
    for scaling in ("strong", "weak"):
        group = [s for s in setups if s.scaling in (scaling, "both")]
        base = min(group, key=lambda s: s.devices)
        for setup in sorted(group, key=lambda s: (s.devices, s.processes)):
            rate = setup.clients * options.images / medians[setup]
            speedup = rate * medians[base] / (base.clients * options.images)
            rows.append(
                {
                    "scaling": scaling,
                    "processes": setup.processes,
                    "devices": setup.devices,
                    "clients": setup.clients,
                    "seconds per round": round(medians[setup], 4),
                    "images per second": round(rate, 1),
                    "speed-up": round(speedup, 2),
                    "efficiency": round(speedup / setup.devices, 2),
                }
            )
    for row in rows:
        row["conv"] = contenders[0][2].get("conv", "")
    return rows


def serve_rounds(options) -> None:
    """A contender: sets itself up and runs a round whenever it is asked to."""
    setup = Setup(*options.setup)
    address = os.environ.get("SCALING_ADDRESS", "")
    leads = not address
    if setup.processes > 1 and leads:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        subprocess.Popen(
            flags(options, "rounds", setup),
            env={**os.environ, "SCALING_ADDRESS": address},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
    channel = protocol.claim_output()
    _pin(setup, 0 if leads else 1)
    from fuprune.run import machine as runtime
    from fuprune.run import processes

    joining = {}
    if setup.processes > 1:
        joining = dict(
            coordinator=address, num_processes=2, process_id=0 if leads else 1
        )
    machine = runtime.start(
        devices=setup.devices // setup.processes, join_seconds=300, **joining
    )
    run_round = make_round(options, setup.clients, machine)
    if not leads:
        while not processes.any_process(False):
            run_round()
        processes.leave(0)
        return

    def asked():
        processes.any_process(False)
        run_round()

    protocol.serve(channel, asked, warm_up=2, conv=machine.conv)
    processes.any_process(True)
    processes.leave(0)


def _pin(setup: Setup, number: int) -> None:
    """One core for each device, as far as there are cores."""
    cores = sorted(os.sched_getaffinity(0))
    devices = setup.devices // setup.processes
    mine = cores[number * devices :][:devices] or cores
    os.sched_setaffinity(0, mine)


def make_round(options, clients: int, machine, length: int | None = None):
    """A function that runs a round of FedAvg, and waits for it."""
    import jax
    import numpy as np
    import optax

    from fuprune.data.dataset import Dataset
    from fuprune.data.federated import federate, whole_cohort
    from fuprune.federated.server import fed_avg
    from fuprune.models import zoo
    from fuprune.run import data as run_data

    number = clients * options.images
    shape = (options.size, options.size, 3)
    generator = np.random.default_rng(0)
    dataset = Dataset(
        generator.integers(0, 256, (number, *shape), np.uint8),
        generator.integers(0, 10, number).astype(np.int32),
    )
    parts = np.split(np.arange(number), clients)
    data, split = federate(dataset, parts, place=np.asarray), machine.process_count > 1
    if split:
        data, _ = run_data.split_over_hosts(data, machine)
    data = run_data.place_federation(data, machine, split=split)
    if length is not None:
        data = data._replace(
            lengths=run_data.replicate(np.full(clients, length, np.int32), machine.mesh)
        )
    model = zoo.create(
        options.net, num_classes=10, input_shape=shape, conv=machine.conv
    )
    variables = jax.jit(model.init)(
        jax.random.key(0), np.zeros((1, *shape), np.float32)
    )
    algorithm = fed_avg(
        model,
        client_optimizer=optax.sgd(0.01, 0.9),
        batch_size=min(32, options.images),
        backend=machine.backend,
        mesh=machine.mesh,
    )
    state = algorithm.init(run_data.replicate(variables, machine.mesh))
    cohort = whole_cohort(data)

    def run_round():
        nonlocal state
        state, info = algorithm.round(state, cohort, jax.random.key(1))
        jax.block_until_ready((state, info))

    return run_round


def constants(options) -> dict:
    """What the model of docs/scaling.md is made of, by processes of its own."""
    alone = subprocess.run(
        flags(options, "alone"), check=True, stdout=subprocess.PIPE, text=True
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    pair = [
        subprocess.Popen(
            flags(options, "pair"),
            env={**os.environ, "SCALING_ADDRESS": f"{address} {i}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    answers = [process.communicate()[0] for process in pair]
    return {
        **json.loads(alone.stdout.splitlines()[-1]),
        **json.loads(answers[0].splitlines()[-1]),
    }


def median_seconds(function, repeats: int) -> float:
    """Of some calls, after one that does not count."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_alone(options) -> None:
    """Costs that one process on one device shows."""
    channel = protocol.claim_output()
    import jax
    import numpy as np

    from fuprune.data.federated import FederatedDataset, rows_of, sample_cohort
    from fuprune.models import zoo
    from fuprune.run import checkpoint
    from fuprune.run import data as run_data
    from fuprune.run import machine as runtime

    machine = runtime.start(devices=1)
    repeats = 1 if options.smoke else 7
    few, many = (2, 4) if options.smoke else (8, 72)
    found = {}
    # Clients without images: all that is left is the work around them.
    small = argparse.Namespace(**{**vars(options), "images": 4, "size": 8})
    seconds = [
        median_seconds(make_round(small, clients, machine, length=0), repeats)
        for clients in (few, many)
    ]
    found["client_seconds"] = max(0.0, (seconds[1] - seconds[0]) / (many - few))
    found["round_seconds"] = max(0.0, seconds[0] - few * found["client_seconds"])
    busy = median_seconds(make_round(options, 2, machine), repeats)
    images = 2 * options.images
    found["image_seconds"] = (
        busy - found["round_seconds"] - 2 * found["client_seconds"]
    ) / images
    found["draw_seconds"] = {}
    for clients in (100, 10_000) if options.smoke else (100, 10_000, 1_000_000):
        data = FederatedDataset(
            jax.numpy.zeros((1, 1, 1, 1), np.uint8),
            jax.numpy.zeros(1, np.int32),
            jax.numpy.zeros((clients, 8), np.int32),
            jax.numpy.ones(clients, np.int32),
        )
        found["draw_seconds"][str(clients)] = median_seconds(
            lambda data=data: jax.block_until_ready(
                sample_cohort(jax.random.key(0), data, 25).rows
            ),
            repeats,
        )
    clients = 1_000 if options.smoke else 100_000
    parts = np.arange(8 * clients).reshape(clients, 8)
    start = time.perf_counter()
    _, lengths = rows_of(list(parts), 8 * clients)
    run_data.deal_to_hosts(lengths, np.arange(8))
    found["deal_seconds_per_client"] = (time.perf_counter() - start) / clients
    found["models"] = {}
    for name in ("resnet20", "resnet56", "vgg16"):
        model = zoo.create(name, num_classes=10)
        shapes = jax.eval_shape(
            model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 32, 32, 3), "f4")
        )
        state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            checkpoint.save(folder, 1, state, spec={})
            saving = time.perf_counter() - start
        found["models"][name] = {
            "bytes": int(sum(x.nbytes for x in jax.tree.leaves(state["params"]))),
            "statistics_bytes": int(
                sum(x.nbytes for x in jax.tree.leaves(state["batch_stats"]))
            ),
            "checkpoint_seconds": saving,
        }
    print(json.dumps(found), file=channel)


def measure_pair(options) -> None:
    """Sums and exchanges between two processes."""
    channel = protocol.claim_output()
    address, number = os.environ["SCALING_ADDRESS"].split()
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    from fuprune.federated.sharded import AXIS
    from fuprune.run import data as run_data
    from fuprune.run import machine as runtime
    from fuprune.run import processes

    machine = runtime.start(
        devices=1,
        conv="xla",
        join_seconds=300,
        coordinator=address,
        num_processes=2,
        process_id=int(number),
    )

    def spread(body):
        return jax.jit(
            jax.shard_map(
                body, mesh=machine.mesh, in_specs=P(), out_specs=P(), check_vma=False
            )
        )

    total = spread(lambda x: jax.lax.psum(x, AXIS))
    # A small answer, so that nothing but the exchange takes time.
    exchange = spread(
        lambda x: jax.lax.psum(jax.lax.all_to_all(x, AXIS, 0, 0)[0, 0], AXIS)
    )
    repeats = 2 if options.smoke else 11
    found = {}
    for name, function, dtype in (
        ("sum", total, np.float32),
        ("exchange", exchange, np.uint8),
    ):
        seconds = {}
        for size in (1_000, 1_000_000 if options.smoke else 16_000_000):
            host = np.ones((2, size // 2 // np.dtype(dtype).itemsize), dtype)
            value = run_data.replicate(host, machine.mesh)
            seconds[size] = median_seconds(
                lambda f=function, v=value: jax.block_until_ready(f(v)), repeats
            )
        small, large = seconds
        found[f"{name}_latency_seconds"] = seconds[small]
        found[f"{name}_bytes_per_second"] = (large - small) / max(
            1e-9, seconds[large] - seconds[small]
        )
    if machine.is_main:
        print(json.dumps(found), file=channel)
    processes.leave(0)


ROLES = {"rounds": serve_rounds, "alone": measure_alone, "pair": measure_pair}


if __name__ == "__main__":
    sys.exit(main())
