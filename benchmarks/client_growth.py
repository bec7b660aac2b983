"""Round time, start-up time and index memory from ten clients to a million.

The cohort, the network and the pool of images stay the same; only the number of
clients grows. A round is `sample_cohort` and FedAvg on what it drew, as in training.
Start-up is dealing the examples (`iid_partition`) and `federate`. Every federation
takes its turn in each repetition, so that a busy minute of the machine hits all.

    python benchmarks/client_growth.py             # a table and a file in results/
    python benchmarks/client_growth.py --smoke     # up to 1,000 clients, once
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

from fuprune.data.dataset import Dataset  # noqa: E402
from fuprune.data.federated import federate, sample_cohort  # noqa: E402
from fuprune.data.partition import iid_partition  # noqa: E402
from fuprune.federated.server import fed_avg  # noqa: E402
from fuprune.models import zoo  # noqa: E402

CLIENTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
COHORT = 10
IMAGES_PER_CLIENT = 8
SHAPE = (8, 8, 1)


def main(arguments=None) -> int:
    """Measure, print one row per number of clients, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument(
        "--output", type=pathlib.Path, default=HERE / "results" / "client_growth.json"
    )
    options = parser.parse_args(arguments)
    numbers = CLIENTS[:3] if options.smoke else CLIENTS
    rows = measure(numbers, 1 if options.smoke else options.repeats)
    print("| clients | start-up | bytes of indices | a round | drawing the cohort |")
    print("|---:|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['clients']:,} | {row['start_seconds']:.2f} s "
            f"| {row['index_bytes']:,} | {row['round_seconds'] * 1e3:.1f} ms "
            f"| {row['draw_seconds'] * 1e3:.2f} ms |"
        )
    if not options.smoke:
        options.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0


def measure(numbers, repeats: int) -> list[dict]:
    """Medians over the repetitions, one row per number of clients."""
    model = zoo.create("resnet8", num_classes=10, input_shape=SHAPE)
    variables = jax.jit(model.init)(
        jax.random.key(0), np.zeros((1, *SHAPE), np.float32)
    )
    algorithm = fed_avg(
        model, client_optimizer=optax.sgd(0.01), batch_size=IMAGES_PER_CLIENT
    )
    state = algorithm.init(variables)
    federations, rows = [], []
    for clients in numbers:
        start = time.perf_counter()
        data = federation(clients)
        jax.block_until_ready(data)
        rows.append(
            {
                "clients": clients,
                "start_seconds": time.perf_counter() - start,
                "index_bytes": data.rows.nbytes + data.lengths.nbytes,
            }
        )
        federations.append(data)
    draws = [[] for _ in numbers]
    rounds = [[] for _ in numbers]
    # The first repetition compiles and does not count.
    for repetition in range(repeats + 1):
        key = jax.random.key(repetition)
        for data, draw, whole in zip(federations, draws, rounds, strict=True):
            start = time.perf_counter()
            cohort = jax.block_until_ready(sample_cohort(key, data, COHORT))
            drawn = time.perf_counter()
            jax.block_until_ready(algorithm.round(state, cohort, key)[0])
            if repetition:
                draw.append(drawn - start)
                whole.append(time.perf_counter() - start)
    for row, draw, whole in zip(rows, draws, rounds, strict=True):
        row["draw_seconds"] = statistics.median(draw)
        row["round_seconds"] = statistics.median(whole)
    return rows


def federation(clients: int):
    """Clients of eight examples each, over a pool that is the same for all."""
    pool = 1_000
    rng = np.random.default_rng(0)
    dataset = Dataset(
        rng.integers(256, size=(pool, *SHAPE)).astype(np.uint8),
        rng.integers(10, size=pool).astype(np.int32),
    )
    dealt = iid_partition(
        np.zeros(clients * IMAGES_PER_CLIENT, np.int32), num_clients=clients, seed=0
    )
    return federate(dataset, [part % pool for part in dealt])


if __name__ == "__main__":
    sys.exit(main())
