"""What is compiled for an accelerator that is not there: steps and rounds by shape.

Nothing here allocates; inputs are shapes. `options` has `net`, `dtype`, `clients`,
`batch_size` and `platform`.
"""

import re

# Local steps in a FedAvg round; what a round does once is spread over them.
STEPS = 4


def make(form, options):
    """`(program, shapes of its inputs, local steps in it)` for the name of a form.

    Forms: `floor`, `fed_sgd`, or a way to iterate over the clients of FedAvg.
    """
    if form == "floor":
        return *make_floor(options), 1
    if form == "fed_sgd":
        return *make_fused(options), 1
    return *make_round(form, options), STEPS


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


def make_fused(options):
    """`(round, shapes of its inputs)`: FedSGD with the cohort as one batch."""
    import optax

    from fuprune.federated.server import fed_sgd

    model, variables = make_model(options)
    algorithm = fed_sgd(
        model,
        server_optimizer=optax.sgd(0.1, momentum=0.9),
        batch_size=options.batch_size,
        backend="vmap",
        fused=True,
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
