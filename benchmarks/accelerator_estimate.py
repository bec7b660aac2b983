"""What a TPU's compiler expects a FedAvg step of a cohort to cost, without a TPU.

A whole round is compiled for a TPU topology with each way to iterate over clients, and
the cycles that the compiler wrote beside its instructions are added up, each loop's as
often as it turns. They are ESTIMATES: the compiler writes none beside gathers, nor do
they know of memory stalls between instructions, and no run has confirmed them. The
floor is one step on the same images with one set of weights, which FedAvg cannot use,
for its clients' weights differ after the first step.

Runs in the environment `setup.sh tpu` makes:

    python benchmarks/accelerator_estimate.py
    python benchmarks/accelerator_estimate.py --forms auto --dtype bfloat16
"""

import argparse
import datetime
import functools
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
FORMS = ("floor", "map", "vmap", "auto")
# Local steps in a round; what a round does once is spread over them.
STEPS = 4


def main(arguments=None):
    """Compile, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--forms",
        nargs="+",
        default=FORMS,
        help="floor or a backend; auto is the one a run on a TPU takes",
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
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=options.topology
    )
    sharding = SingleDeviceSharding(topology.devices[0])
    make = make_floor if form == "floor" else functools.partial(make_round, form)
    run, inputs = make(options)
    start = time.perf_counter()
    compiled = (
        jax.jit(run, in_shardings=sharding, out_shardings=sharding)
        .lower(*inputs)
        .compile()
    )
    seconds = time.perf_counter() - start
    steps = 1 if form == "floor" else STEPS
    memory = compiled.memory_analysis()
    return {
        "form": form,
        "net": options.net,
        "dtype": options.dtype,
        "clients": options.clients,
        "batch_size": options.batch_size,
        "cycles": count_cycles(compiled.as_text(), steps) / steps,
        "bytes": memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes,
        "compile_seconds": seconds,
    }


def count_cycles(text: str, steps: int) -> int:
    """Estimated cycles of a compiled module; loops turn as often as they say.

    A loop whose condition holds no constant is the one over local steps, whose number
    is a client's own: `steps`.
    """
    bodies, name = {}, ""
    for line in text.splitlines():
        if opening := re.match(r"(ENTRY )?%(\S+) \(.*\{$", line):
            name = "ENTRY" if opening[1] else opening[2]
        bodies.setdefault(name, []).append(line)

    def cycles_of(name):
        total = 0
        for line in bodies[name]:
            if loop := re.search(r" while\(.*condition=%([^,]+), body=%([^,]+)", line):
                bound = re.search(
                    r"s32\[\]\S* constant\((\d+)\)", "".join(bodies[loop[1]])
                )
                total += (int(bound[1]) if bound else steps) * cycles_of(loop[2])
            elif " conditional(" in line or " call(" in line:
                raise ValueError(f"cannot count {line.strip()[:80]}; only loops can be")
            elif found := re.search(r'"estimated_cycles":"(\d+)"', line):
                total += int(found[1])
        return total

    return cycles_of("ENTRY")


def make_floor(options):
    """`(step, shapes of its inputs)`: all images, one set of weights."""
    import jax
    import jax.numpy as jnp
    import optax

    from fuprune.federated.client import Batch, make_loss

    shape_of = jax.ShapeDtypeStruct
    model, variables = make_model(options)
    optimizer = optax.sgd(0.01, momentum=0.9)
    loss = make_loss(model)

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
    import jax
    import jax.numpy as jnp
    import optax

    from fuprune.data.federated import Cohort
    from fuprune.federated.cohort import resolve_backend
    from fuprune.federated.server import fed_avg

    shape_of = jax.ShapeDtypeStruct
    backend, _ = resolve_backend(form, platform="tpu", device_count=1)
    model, variables = make_model(options)
    algorithm = fed_avg(
        model,
        client_optimizer=optax.sgd(0.01, momentum=0.9),
        batch_size=options.batch_size,
        backend=backend,
    )
    clients, length = options.clients, STEPS * options.batch_size
    cohort = Cohort(
        shape_of((clients * length, 32, 32, 3), jnp.uint8),
        shape_of((clients * length,), jnp.int32),
        shape_of((clients, length), jnp.int32),
        shape_of((clients,), jnp.int32),
        shape_of((clients,), jnp.int32),
    )
    state = jax.eval_shape(algorithm.init, variables)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return algorithm.round, (state, cohort, key)


def make_model(options):
    """The network and the shapes of its variables."""
    import jax
    import jax.numpy as jnp

    from fuprune.models import zoo

    model = zoo.create(options.net, num_classes=10, dtype=jnp.dtype(options.dtype))
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    return model, jax.eval_shape(model.init, jax.random.key(0), images)


if __name__ == "__main__":
    main()
