"""FedAvg by fuprune, as a run does it by default."""

import protocol

channel = protocol.claim_output()

import contextlib  # noqa: E402
import os  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import workload  # noqa: E402

from fuprune.data.dataset import Dataset  # noqa: E402
from fuprune.data.federated import federate, whole_cohort  # noqa: E402
from fuprune.federated.server import fed_avg  # noqa: E402
from fuprune.models import zoo  # noqa: E402
from fuprune.run import data as run_data  # noqa: E402
from fuprune.run import machine as runtime_module  # noqa: E402


def main():
    parser = workload.parser(__doc__)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    work = workload.of(options)
    runtime = runtime_module.start(cohort=work.clients)
    cohort = place(work, runtime)
    model, variables = create(work, options, runtime)
    algorithm = fed_avg(
        model,
        client_optimizer=optax.sgd(workload.LEARNING_RATE, workload.MOMENTUM),
        batch_size=work.batch_size,
        backend=runtime.backend,
        mesh=runtime.mesh,
    )
    state = algorithm.init(run_data.replicate(variables, runtime.mesh))
    key = jax.random.key(0)

    def run_round():
        nonlocal state, key
        key, now = jax.random.split(key)
        state, info = algorithm.round(state, cohort, now)
        if not np.isfinite(float(info.loss)) or int(info.participants) != work.clients:
            raise SystemExit(f"a round went wrong: {info}")
        jax.block_until_ready(state)

    protocol.serve(
        channel,
        run_round,
        warm_up=options.warm_up,
        versions={"jax": jax.__version__},
    )


def place(work, runtime):
    """The workload's clients, placed on the devices as a cohort."""
    parts = [workload.client_data(work, k) for k in range(work.clients)]
    dataset = Dataset(*(np.concatenate(x) for x in zip(*parts, strict=True)))
    rows = np.arange(work.images_per_round).reshape(work.clients, work.images)
    data = run_data.place_federation(
        federate(dataset, list(rows), place=np.asarray), runtime
    )
    return whole_cohort(data)


def create(work, options, runtime):
    """The network and its first variables, on the host."""
    shape = (work.size, work.size, 3)
    model = zoo.create(
        work.net,
        num_classes=workload.NUM_CLASSES,
        input_shape=shape,
        conv=runtime.conv,
        dtype=jnp.dtype(options.dtype),
    )
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *shape)))
    return model, jax.device_get(variables)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
    os._exit(0)
