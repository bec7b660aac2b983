"""What is compiled for an accelerator that is not there: steps and rounds by shape.

Nothing here allocates; inputs are shapes. `options` has `net`, `dtype`, `clients`,
`batch_size` and `platform`.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Two rows that agree in these are one measurement; the later one counts.
SAME = ("topology", "device", "form", "net", "dtype", "clients", "batch_size")

# Local steps in a FedAvg round; what a round does once is spread over them.
STEPS = 4


def make_parser(about, forms, output):
    """The flags that estimates for any accelerator share."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument(
        "--forms",
        nargs="+",
        default=forms,
        help="floor, or a backend; auto is the one a run there takes",
    )
    parser.add_argument("--net", default="resnet20")
    parser.add_argument("--clients", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--output", type=pathlib.Path, default=output)
    return parser


def enter(environment, script, arguments):
    """Goes on in the environment that `setup.sh` makes, if this is another one."""
    python = ROOT / ".bench" / environment / "bin" / "python"
    if not python.exists():
        raise SystemExit(
            f"{python} is not there; run benchmarks/setup.sh {environment}"
        )
    if pathlib.Path(sys.prefix).resolve() != python.parents[1].resolve():
        os.execv(python, [str(python), script, *(arguments or sys.argv[1:])])


def compile_for(topology, form, options):
    """`(compiled program, local steps in it, what every row says of it)`."""
    import jax
    from jax.sharding import SingleDeviceSharding

    sharding = SingleDeviceSharding(topology.devices[0])
    run, inputs, steps = make(form, options)
    start = time.perf_counter()
    program = jax.jit(run, in_shardings=sharding, out_shardings=sharding)
    compiled = program.lower(*inputs).compile()
    row = {
        "form": form,
        "net": options.net,
        "dtype": options.dtype,
        "clients": options.clients,
        "batch_size": options.batch_size,
        "compile_seconds": time.perf_counter() - start,
    }
    return compiled, steps, row


def memory_of(compiled) -> int:
    """Bytes that a compiled program takes on its device."""
    memory = compiled.memory_analysis()
    return (
        memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes
    )


def read_report(output):
    """What was estimated before."""
    return json.loads(output.read_text()) if output.exists() else {"rows": []}


def add_row(report, row):
    """Puts a row in the place of the one it repeats."""
    import jax

    others = [
        old for old in report["rows"] if any(old.get(k) != row.get(k) for k in SAME)
    ]
    report["rows"] = [*others, row]
    report["date"] = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    report["versions"] = {"jax": jax.__version__}


def write_report(report, output):
    """All rows so far, so that a long list of them can be stopped."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n")


def make(form, options):
    """`(program, shapes of its inputs, local steps in it)` for the name of a form.

    Forms: `floor`, or a way to iterate over the clients of FedAvg.
    """
    if form == "floor":
        return *make_floor(options), 1
    return *make_round(form, options), STEPS


def make_floor(options):
    """`(step, shapes of its inputs)`: all images, one set of weights."""
    import jax
    import jax.numpy as jnp
    import optax

    from fuprune.federated.client import Batch, make_loss
    from fuprune.federated.objective import classification

    shape_of = jax.ShapeDtypeStruct
    model, variables = make_model(options)
    optimizer = optax.sgd(0.01, momentum=0.9)
    loss = make_loss(model, classification())

    def shared_step(params, state, opt_state, images, labels):
        images = images.astype(jnp.float32) / 255.0
        data = Batch(images, labels, jnp.ones(labels.shape))
        gradient, (_, _, state) = jax.grad(loss, has_aux=True)(params, state, data)
        change, opt_state = optimizer.update(gradient, opt_state)
        return optax.apply_updates(params, change), state, opt_state

    params = variables["params"]
    number = options.clients * options.batch_size
    return shared_step, (
        params,
        {"batch_stats": variables["batch_stats"]},
        jax.eval_shape(optimizer.init, params),
        shape_of((number, 32, 32, 3), jnp.uint8),
        shape_of((number,), jnp.int32),
    )


def make_round(form, options):
    """`(round, shapes of its inputs)`: FedAvg with STEPS local steps."""
    import optax

    from fuprune.federated.cohort import resolve_backend
    from fuprune.federated.server import fed_avg

    backend, _ = resolve_backend(form, platform=options.platform, device_count=1)
    model, variables = make_model(options)
    algorithm = fed_avg(
        model,
        client_optimizer=optax.sgd(0.01, momentum=0.9),
        batch_size=options.batch_size,
        backend=backend,
    )
    return algorithm.round, round_inputs(algorithm, variables, options)


def round_inputs(algorithm, variables, options):
    """The shapes of a round's state, cohort and key."""
    import jax
    import jax.numpy as jnp

    from fuprune.data.federated import Cohort

    shape_of = jax.ShapeDtypeStruct
    clients, length = options.clients, STEPS * options.batch_size
    cohort = Cohort(
        shape_of((clients * length, 32, 32, 3), jnp.uint8),
        shape_of((clients * length,), jnp.int32),
        shape_of((clients, length), jnp.int32),
        shape_of((clients,), jnp.int32),
        shape_of((clients,), jnp.int32),
    )
    state = jax.eval_shape(algorithm.init, variables)
    return state, cohort, jax.eval_shape(lambda: jax.random.key(0))


def make_model(options):
    """The network and the shapes of its variables."""
    import jax
    import jax.numpy as jnp

    from fuprune.models import zoo

    model = zoo.create(options.net, num_classes=10, dtype=jnp.dtype(options.dtype))
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    return model, jax.eval_shape(model.init, jax.random.key(0), images)


def computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation of a compiled module; the first is `ENTRY`."""
    bodies, name = {}, ""
    for line in text.splitlines():
        if opening := re.match(r"(ENTRY )?%(\S+) \(.*\{$", line):
            name = "ENTRY" if opening[1] else opening[2]
        bodies.setdefault(name, []).append(line)
    return bodies
