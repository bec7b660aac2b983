"""What a TPU's compiler expects a FedAvg step of a cohort to cost, without a TPU.

Each way to iterate over clients is compiled for a TPU topology, and the cycles that the
compiler wrote beside its instructions are added up. They are ESTIMATES: they know
nothing of memory stalls between instructions, and no run has confirmed them. The floor
is one step on the same images with one set of weights, which FedAvg cannot use, for its
clients' weights differ after the first step.

Runs in the environment `setup.sh tpu` makes:

    python benchmarks/accelerator_estimate.py
    python benchmarks/accelerator_estimate.py --forms map vmap group:5
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PYTHON = ROOT / ".bench" / "tpu" / "bin" / "python"
RESULTS = HERE / "results" / "accelerator_estimate.json"
FORMS = ("floor", "map", "vmap", "group:5", "wide:8")


def main(arguments=None):
    """Compile, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--forms",
        nargs="+",
        default=FORMS,
        help="floor, vmap, map, group:N (vmap of N clients inside map) or wide:N (N"
        " clients merged into one network inside map)",
    )
    parser.add_argument("--net", default="resnet20")
    parser.add_argument("--clients", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    # It describes a TPU and opens none; the host's own backend stays the CPU.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "JAX_PLATFORMS": "cpu",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    if not PYTHON.exists():
        raise SystemExit(f"{PYTHON} is not there; run benchmarks/setup.sh tpu")
    if pathlib.Path(sys.prefix).resolve() != PYTHON.parents[1].resolve():
        os.execv(PYTHON, [str(PYTHON), __file__, *(arguments or sys.argv[1:])])
    sys.path[:0] = [str(ROOT), str(HERE)]
    import jax

    report = {"rows": []}
    if options.output.exists():
        report = json.loads(options.output.read_text())
    for form in options.forms:
        row = estimate(form, options)
        same = ("form", "net", "dtype", "clients", "batch_size")
        report["rows"] = [
            old for old in report["rows"] if any(old[k] != row[k] for k in same)
        ] + [row]
        print(
            f"{row['net']} {row['dtype']} {form}: {row['cycles'] / 1e6:.1f}M cycles"
            f" estimated, {row['bytes'] / 1e6:.0f} MB,"
            f" compiled in {row['compile_seconds']:.0f} s",
            flush=True,
        )
        report |= {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "topology": options.topology,
            "versions": {"jax": jax.__version__},
        }
        add_ratios(report["rows"])
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    return report


def add_ratios(rows):
    """Each row's cycles against the float32 floor of the same net and cohort."""
    key = ("net", "clients", "batch_size")
    for row in rows:
        row["ratio"] = next(
            (
                row["cycles"] / floor["cycles"]
                for floor in rows
                if floor["form"] == "floor"
                and floor["dtype"] == "float32"
                and all(floor[k] == row[k] for k in key)
            ),
            None,
        )


def estimate(form, options):
    """One row: a local step of every client of the cohort."""
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=options.topology
    )
    sharding = SingleDeviceSharding(topology.devices[0])
    run, inputs, times = make_step(form, options)
    import jax

    start = time.perf_counter()
    compiled = (
        jax.jit(run, in_shardings=sharding, out_shardings=sharding)
        .lower(*inputs)
        .compile()
    )
    seconds = time.perf_counter() - start
    cycles = sum(
        int(value)
        for value in re.findall(r'"estimated_cycles":"(\d+)"', compiled.as_text())
    )
    memory = compiled.memory_analysis()
    return {
        "form": form,
        "net": options.net,
        "dtype": options.dtype,
        "clients": options.clients,
        "batch_size": options.batch_size,
        "cycles": cycles * times,
        "steps": times,
        "bytes": memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes,
        "compile_seconds": seconds,
    }


def make_step(form, options):
    """`(function, shapes of its inputs, how many times it runs in a step)`."""
    import jax
    import jax.numpy as jnp
    import optax

    from fuprune.data.preprocess import to_float
    from fuprune.federated.client import Batch, TrainContext, local_sgd, make_loss
    from fuprune.federated.cohort import Client, Shared
    from fuprune.models import zoo

    shape_of = jax.ShapeDtypeStruct
    clients, batch = options.clients, options.batch_size
    model = zoo.create(options.net, num_classes=10, dtype=jnp.dtype(options.dtype))
    variables = jax.eval_shape(
        model.init, jax.random.key(0), shape_of((1, 32, 32, 3), jnp.float32)
    )
    if form == "floor":
        optimizer = optax.sgd(0.01, momentum=0.9)
        loss = make_loss(model)

        def shared_step(params, state, opt_state, images, labels):
            images = images.astype(jnp.float32) / 255.0
            data = Batch(images, labels, jnp.ones(labels.shape))
            gradient, (_, _, state) = jax.grad(loss, has_aux=True)(params, state, data)
            change, opt_state = optimizer.update(gradient, opt_state)
            return optax.apply_updates(params, change), state, opt_state

        params = variables["params"]
        state = {"batch_stats": variables["batch_stats"]}
        inputs = (
            params,
            state,
            jax.eval_shape(optimizer.init, params),
            shape_of((clients * batch, 32, 32, 3), jnp.uint8),
            shape_of((clients * batch,), jnp.int32),
        )
        return shared_step, inputs, 1
    if form.startswith("wide:"):
        import wide_clients

        group = int(form.removeprefix("wide:"))
        stack = lambda x: shape_of((group, *x.shape), x.dtype)  # noqa: E731
        inputs = (
            jax.tree.map(stack, variables),
            jax.tree.map(stack, variables["params"]),
            shape_of((group, batch, 32, 32, 3), jnp.float32),
            shape_of((group, batch), jnp.int32),
            shape_of((group, batch), jnp.float32),
        )
        return wide_clients.make_wide_step(model), inputs, -(-clients // group)
    group = {"map": 1, "vmap": clients}.get(form) or int(form.removeprefix("group:"))
    length = 4 * batch
    program = local_sgd(
        model,
        optax.sgd(0.01, momentum=0.9),
        local_epochs=1,
        batch_size=batch,
        max_length=length,
        preprocess=to_float,
    )
    shared = Shared(
        shape_of((clients * length, 32, 32, 3), jnp.uint8),
        shape_of((clients * length,), jnp.int32),
        TrainContext(
            variables,
            jax.eval_shape(lambda: jax.random.key(0)),
            shape_of((), jnp.float32),
            None,
        ),
    )
    number = shape_of((), jnp.int32)
    one = Client(shape_of((length,), jnp.int32), number, number)
    carry = jax.eval_shape(program.init, shared, one)
    if group == 1:
        return program.step, (shared, one, carry, number), clients
    stack = lambda x: shape_of((group, *x.shape), x.dtype)  # noqa: E731
    inputs = (shared, *jax.tree.map(stack, (one, carry)), number)
    return jax.vmap(program.step, (None, 0, 0, None)), inputs, -(-clients // group)


if __name__ == "__main__":
    main()
