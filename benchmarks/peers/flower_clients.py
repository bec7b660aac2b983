"""What one Flower client does in a round, in PyTorch or in JAX.

Imported by Flower's worker processes, which serve many clients each: data, network and
compiled step are made once a process.
"""

import functools

import numpy as np
import workload
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict


def train(message, client: int, work: workload.Workload, framework: str):
    """Train from the arrays in the message; the reply carries the trained ones."""
    make = {"pytorch": _pytorch_trainer, "jax": _jax_trainer}[framework]
    arrays = make(work)(message.content["arrays"], client)
    metrics = MetricRecord({"num-examples": work.images})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content=content, reply_to=message)


@functools.cache
def _client_data(work, client, framework):
    images, labels = workload.client_data(work, client)
    if framework == "pytorch":
        import pytorch_net

        return pytorch_net.to_tensors(images, labels)
    return images, labels


@functools.cache
def _pytorch_trainer(work):
    import pytorch_net
    import torch

    # As many clients at a time as there are cores, one thread each.
    torch.set_num_threads(1)
    net = pytorch_net.create(work.net).to(memory_format=torch.channels_last)

    def run(arrays, client):
        net.load_state_dict(arrays.to_torch_state_dict())
        pytorch_net.train_client(
            net,
            *_client_data(work, client, "pytorch"),
            batch_size=work.batch_size,
            memory_format=torch.channels_last,
        )
        return ArrayRecord(net.state_dict())

    return run


@functools.cache
def _jax_trainer(work):
    import jax
    import jax.numpy as jnp
    import optax
    from plain_step import make_step

    model, template = jax_model(work)
    leaves, structure = jax.tree.flatten(template)
    names = [f"{i:04d}" for i in range(len(leaves))]
    optimizer = optax.sgd(workload.LEARNING_RATE, workload.MOMENTUM)

    step = make_step(model, optimizer)

    def run(arrays, client):
        images, labels = _client_data(work, client, "jax")
        variables = jax.tree.unflatten(
            structure, [jnp.asarray(arrays[name].numpy()) for name in names]
        )
        opt_state = optimizer.init(variables["params"])
        order = np.random.default_rng().permutation(work.images)
        for start in range(0, work.images, work.batch_size):
            rows = order[start : start + work.batch_size]
            variables, opt_state = step(
                variables, opt_state, images[rows], labels[rows]
            )
        return jax_record(variables)

    return run


def jax_model(work):
    """The network of fuprune's zoo with XLA's convolutions, and first variables."""
    import jax
    import jax.numpy as jnp

    from fuprune.models import zoo

    shape = (work.size, work.size, 3)
    model = zoo.create(work.net, num_classes=workload.NUM_CLASSES, input_shape=shape)
    return model, jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *shape)))


def jax_record(variables) -> ArrayRecord:
    """Variables as Flower sends them: one numbered array a leaf."""
    import jax

    leaves = jax.tree.leaves(variables)
    return ArrayRecord({f"{i:04d}": Array(np.asarray(x)) for i, x in enumerate(leaves)})
