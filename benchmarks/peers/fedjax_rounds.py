"""FedJAX's federated averaging on the network it can hold, one without BatchNorm."""

import protocol

channel = protocol.claim_output()

import importlib.metadata  # noqa: E402

import jax  # noqa: E402

# FedJAX 0.0.17 calls it by the name it had until jax 0.4.
jax.tree_map = jax.tree.map

import fedjax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import plain_net  # noqa: E402
import workload  # noqa: E402


def main():
    parser = workload.parser(__doc__)
    parser.add_argument("--backend", default="default", help="jit, pmap or default")
    options = parser.parse_args()
    work = workload.of(options)
    if options.backend != "default":
        fedjax.set_for_each_client_backend(options.backend)

    def loss(params, batch, rng):
        del rng
        images = batch["x"].astype(jnp.float32) / 255.0
        logits = plain_net.apply(params, images, work.net)
        picked = jnp.take_along_axis(
            jax.nn.log_softmax(logits), batch["y"][:, None], axis=1
        )
        return -jnp.mean(picked)

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        client_optimizer=fedjax.optimizers.sgd(
            workload.LEARNING_RATE, workload.MOMENTUM
        ),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=work.batch_size, num_epochs=1, drop_remainder=False, seed=0
        ),
    )
    datasets = []
    for k in range(work.clients):
        images, labels = workload.client_data(work, k)
        datasets.append(fedjax.ClientDataset({"x": images, "y": labels}))
    state = algorithm.init(plain_net.init(jax.random.PRNGKey(0), work.net))
    key = jax.random.PRNGKey(1)

    def run_round():
        nonlocal state, key
        key, now = jax.random.split(key)
        keys = jax.random.split(now, work.clients)
        clients = [(str(k).encode(), data, keys[k]) for k, data in enumerate(datasets)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state)

    protocol.serve(
        channel,
        run_round,
        warm_up=options.warm_up,
        versions={
            "fedjax": importlib.metadata.version("fedjax"),
            "jax": jax.__version__,
        },
    )


if __name__ == "__main__":
    main()
