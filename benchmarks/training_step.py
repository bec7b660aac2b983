"""The batch, the training step and the round that several benchmarks time."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.federated.server import fed_avg
from fuprune.run import data as run_data


def random_batch(model, options):
    """Images and labels, the same for every network of one input shape."""
    generator = np.random.default_rng(options.seed)
    shape = (options.batch_size, *(getattr(model, "input_shape", None) or (32, 32, 3)))
    images = jnp.asarray(generator.normal(size=shape), jnp.float32)
    return images, jnp.asarray(generator.integers(0, 10, options.batch_size))


def make_round(model, runtime, batch_size):
    """FedAvg on the devices of a run, and fresh variables there."""
    image = jnp.zeros((1, *model.input_shape))
    variables = jax.jit(model.init)(jax.random.key(0), image)
    algorithm = fed_avg(
        model,
        client_optimizer=optax.sgd(0.01, momentum=0.9),
        batch_size=batch_size,
        backend=runtime.backend,
        mesh=runtime.mesh,
    )
    return algorithm, run_data.replicate(jax.device_get(variables), runtime.mesh)


def make_step(model, optimizer, images, labels):
    """`(variables, opt_state) -> (variables, opt_state)`: one step on one batch."""

    def step(variables, opt_state):
        def loss_of(params):
            logits, update = model.apply(
                {**variables, "params": params},
                images,
                train=True,
                mutable=["batch_stats"],
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.mean(losses), update

        gradient, update = jax.grad(loss_of, has_aux=True)(variables["params"])
        change, opt_state = optimizer.update(gradient, opt_state, variables["params"])
        params = optax.apply_updates(variables["params"], change)
        return {**update, "params": params}, opt_state

    return step
