"""What a round costs besides arithmetic: host, compiler, memory, growth with clients.

Each section compares two or more processes of this same file, interleaved as in
`round_throughput.py`, and ends in one number with its target:

    python benchmarks/host_overhead.py                  # all sections
    python benchmarks/host_overhead.py --only compile
"""

import argparse
import functools
import json
import operator
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE), str(HERE / "peers")]

import protocol  # noqa: E402

RESULTS = HERE / "results" / "host_overhead.json"


# Workers: each builds something and times it on request.


def federated_rounds(options, *, algorithm, images=None, pool=None):
    """A function that runs one round drawn from `options.clients` clients."""
    import jax
    import numpy as np
    import optax

    from fuprune.data.federated import federate
    from fuprune.federated.server import fed_avg, fed_sgd
    from fuprune.federated.train import iterate
    from fuprune.run import data as run_data
    from fuprune.run import machine as runtime_module

    runtime = runtime_module.start(cohort=options.cohort)
    images = options.images if images is None else images
    pool = pool or options.clients * options.images
    dataset = random_images(options, pool)
    parts = [
        np.arange(k * options.images, (k + 1) * options.images) % pool
        for k in range(options.clients)
    ]
    data = run_data.place_federation(
        federate(dataset, parts, place=np.asarray), runtime
    )
    if images != options.images:
        lengths = np.full(options.clients, images, np.int32)
        data = data._replace(lengths=run_data.replicate(lengths, runtime.mesh))
    model, variables = network(options, runtime)
    optimizer = optax.sgd(0.01, momentum=0.9)
    choices = {"backend": runtime.backend, "mesh": runtime.mesh}
    if algorithm == "fed_avg":
        choices |= {"client_optimizer": optimizer, "batch_size": options.batch_size}
        federated = fed_avg(model, **choices)
    else:
        choices |= {"server_optimizer": optimizer, "batch_size": options.images}
        federated = fed_sgd(model, **choices)
    state = run_data.replicate(jax.device_get(variables), runtime.mesh)
    steps = iterate(
        federated,
        federated.init(state),
        data,
        key=jax.random.key(1),
        cohort_size=options.cohort,
        rounds=10**6,
    )
    return lambda: jax.block_until_ready(next(steps).state)


def fed_sgd_round(options):
    return federated_rounds(options, algorithm="fed_sgd")


def fed_avg_round(options):
    return federated_rounds(options, algorithm="fed_avg")


def empty_round(options):
    """Everything a round does except training: its clients hold no images."""
    return federated_rounds(options, algorithm="fed_avg", images=0)


def short_round(options):
    """A round over the whole pool's shapes in which clients take two steps each."""
    return federated_rounds(
        options, algorithm="fed_avg", images=2 * options.batch_size, pool=50_000
    )


def many_clients_round(options):
    """A round of many clients whose images come from one pool of CIFAR-10's size."""
    pool = min(options.clients * options.images, 50_000)
    return federated_rounds(options, algorithm="fed_avg", pool=pool)


def network(options, runtime):
    """The network with the convolutions of the runtime, and fresh variables."""
    import jax
    import jax.numpy as jnp

    from fuprune.models import zoo

    shape = (options.size, options.size, 3)
    model = zoo.create(
        options.net, num_classes=10, input_shape=shape, conv=runtime.conv
    )
    return model, jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *shape)))


def random_images(options, number):
    """A dataset of noise, always the same."""
    import numpy as np

    from fuprune.data.dataset import Dataset

    generator = np.random.default_rng(0)
    return Dataset(
        generator.integers(0, 256, (number, options.size, options.size, 3), np.uint8),
        generator.integers(0, 10, number, np.int32),
    )


def plain_model(options):
    """The network with the faster convolutions, on one device with all threads."""
    import jax.numpy as jnp

    from fuprune.run import machine as runtime_module

    runtime = runtime_module.start(devices=1)
    images, labels = random_images(options, options.cohort * options.images)
    return *network(options, runtime), jnp.asarray(images), jnp.asarray(labels)


def centralized_step(options):
    """One SGD step on all the cohort's images as one batch."""
    import jax
    import optax
    from plain_step import make_step

    model, variables, images, labels = plain_model(options)
    optimizer = optax.sgd(0.01, momentum=0.9)
    opt_state = optimizer.init(variables["params"])

    step = make_step(model, optimizer)

    def run():
        nonlocal variables, opt_state
        variables, opt_state = step(variables, opt_state, images, labels)
        jax.block_until_ready(variables)

    return run


def plain_forward(options):
    """The jitted forward pass over all images, batch by batch."""
    import jax
    import jax.numpy as jnp

    model, variables, images, _ = plain_model(options)
    size = options.batch_size
    batches = [images[i : i + size] for i in range(0, len(images) - size + 1, size)]

    @jax.jit
    def forward(variables, images):
        return model.apply(variables, images.astype(jnp.float32) / 255.0)

    def run():
        return jax.block_until_ready([forward(variables, batch) for batch in batches])

    return run


def evaluation(options):
    """`make_evaluator` on the same images, on the mesh a run would have."""
    import jax

    from fuprune.federated.evaluate import make_evaluator
    from fuprune.run import data as run_data
    from fuprune.run import machine as runtime_module

    runtime = runtime_module.start()
    model, variables = network(options, runtime)
    evaluate = make_evaluator(
        model,
        random_images(options, options.cohort * options.images),
        num_classes=10,
        batch_size=options.batch_size,
        mesh=runtime.mesh,
    )
    variables = run_data.replicate(jax.device_get(variables), runtime.mesh)
    return lambda: evaluate(variables)


WORKERS = {
    function.__name__: function
    for function in (
        fed_sgd_round,
        fed_avg_round,
        empty_round,
        short_round,
        many_clients_round,
        centralized_step,
        plain_forward,
        evaluation,
    )
}


def work(name, options):
    """Serve one worker."""
    channel = protocol.claim_output()
    start = time.perf_counter()
    run = WORKERS[name](options)
    ready = time.perf_counter() - start
    protocol.serve(channel, run, warm_up=options.warm_up, set_up_seconds=ready)


# Sections: what is compared, and what it should come to.


def interleave(workers: dict[str, dict], repeats: int, warm_up: int = 1, env=None):
    """Median seconds and the introduction of each worker, started one at a time."""
    contenders, facts = {}, {}
    try:
        for title, flags in workers.items():
            command = [sys.executable, __file__, f"--warm-up={warm_up}"]
            command += [f"--{k.replace('_', '-')}={v}" for k, v in flags.items()]
            log = ROOT / ".bench" / "logs" / f"overhead-{title}.log".replace(" ", "-")
            contenders[title] = protocol.Contender(title, command, log, env)
            facts[title] = contenders[title].answer()
        seconds = {title: [] for title in contenders}
        for _ in range(repeats):
            for title, contender in contenders.items():
                seconds[title].append(contender.round()["seconds"])
    finally:
        for contender in contenders.values():
            contender.close()
    medians = {
        title: statistics.median(times) if times else None
        for title, times in seconds.items()
    }
    return medians, facts, seconds


COMPARISONS = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}


# Section -> title, target, shape, and two workers whose medians are divided.
RATIOS = {
    "fed_sgd": (
        "FedSGD round / one centralized step on the same 800 images",
        "<= 1.15",
        dict(net="resnet20", clients=25, cohort=25, images=32),
        {"FedSGD round": "fed_sgd_round", "centralized step": "centralized_step"},
    ),
    "host": (
        "a round without training / a round (sampling, dispatch, server)",
        "< 0.05",
        dict(net="resnet20", clients=100, cohort=25, images=128),
        {"empty round": "empty_round", "round": "fed_avg_round"},
    ),
    # 40 x 250 = 10,000 images; both take batches of 250.
    "evaluation": (
        "evaluation of 10,000 images, speed against the forward pass",
        ">= 0.8",
        dict(net="resnet20", cohort=40, images=250, batch_size=250),
        {"forward": "plain_forward", "evaluation": "evaluation"},
    ),
}


def ratio_section(name, options):
    title, target, shape, workers = RATIOS[name]
    medians, _, seconds = interleave(
        {name: dict(worker=worker, **shape) for name, worker in workers.items()},
        options.repeats,
    )
    above, below = (medians[name] for name in workers)
    ratio, (sign, bound) = above / below, target.split()
    met = COMPARISONS[sign](ratio, float(bound))
    return [row(title, ratio) | {"target": target, "met": met, "seconds": seconds}]


def section_compile(options):
    del options
    shape = dict(net="resnet56", clients=4, cohort=2, images=64)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
        }
        for title, target, limit in (
            ("first round of ResNet56, beyond the second, s", "< 25", 25.0),
            ("the same in a second run, from the compilation cache, s", "< 5", 5.0),
        ):
            workers = {title: dict(worker="fed_avg_round", **shape)}
            _, facts, _ = interleave(workers, 0, warm_up=2, env=env)
            first, second = facts[title]["warm_up_seconds"]
            value = first - second
            rows.append(row(title, value) | {"target": target, "met": value < limit})
    return rows


def section_memory(options):
    del options
    shape = dict(net="resnet56", clients=100, cohort=25, images=500)
    workers = {"memory": dict(worker="short_round", **shape)}
    # Two rounds, for the second has the first one's results to hold as well.
    _, facts, _ = interleave(workers, 0, warm_up=2)
    value = facts["memory"]["peak_bytes"] / 1e9
    title = "peak memory, ResNet56, 100 clients of CIFAR-10 size, cohort 25, GB"
    return [row(title, value) | {"target": "< 4", "met": value < 4}]


def section_clients(options):
    shape = dict(worker="many_clients_round", net="resnet20", cohort=10, images=128)
    numbers = (10, 100, 1_000, 10_000)
    workers = {str(n): dict(shape, clients=n) for n in numbers}
    medians, _, seconds = interleave(workers, options.repeats)
    base = medians["10"]
    rows = []
    for n in numbers[1:]:
        value = medians[str(n)] / base
        judged = {"target": "within 10%", "met": 0.9 <= value <= 1.1}
        named = row(f"round of 10 among {n:,} clients / among 10", value)
        rows.append(named | judged | {"seconds": seconds[str(n)]})
    return rows


def section_cohort(options):
    shape = dict(worker="fed_avg_round", net="resnet20", clients=100, images=128)
    numbers = (5, 10, 25, 50, 100)
    workers = {str(n): dict(shape, cohort=n) for n in numbers}
    medians, _, seconds = interleave(workers, options.repeats)
    per_client = {n: medians[str(n)] / n for n in numbers}
    rows = []
    for n in numbers[:-1]:
        value = per_client[n] / per_client[100]
        rows.append(
            row(f"time a client in a cohort of {n} / of 100", value)
            | {
                "target": "linear",
                # Devices share out 5 clients as 3 and 2: the round takes 3.
                "met": abs(value * n / (2 * -(-n // 2)) - 1) <= 0.15,
                "seconds": seconds[str(n)],
            }
        )
    return rows


def row(name, value):
    return {"name": name, "value": value}


SECTIONS = {name: functools.partial(ratio_section, name) for name in RATIOS} | {
    "compile": section_compile,
    "memory": section_memory,
    "clients": section_clients,
    "cohort": section_cohort,
}


def main(arguments=None):
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--net", default="resnet20", help=argparse.SUPPRESS)
    for name, default in (
        ("warm-up", 1),
        ("clients", 25),
        ("cohort", 25),
        ("images", 32),
        ("batch-size", 32),
        ("size", 32),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=argparse.SUPPRESS
        )
    options = parser.parse_args(arguments)
    if options.worker:
        return work(options.worker, options)
    import round_throughput

    # A section measured on its own replaces its rows and leaves the others.
    report = {"sections": {}}
    if options.output.exists():
        report = json.loads(options.output.read_text())
    for name in options.only:
        machine = round_throughput.machine()
        rows = SECTIONS[name](options)
        report["sections"][name] = {
            "date": round_throughput.now(),
            "machine": machine | {"load_after": os.getloadavg()[0]},
            "python": platform.python_version(),
            "rows": rows,
        }
        for each in rows:
            met = "met" if each["met"] else "missed"
            print(f"{each['name']}: {each['value']:.3f} ({each['target']}: {met})")
        round_throughput.write_report(options.output, report)
    return report


if __name__ == "__main__":
    main()
