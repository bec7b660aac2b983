"""Networks that compile in a second: one that can be cut, and softmax regression."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.data.federated import FederatedDataset, federate, take_clients
from fuprune.federated.server import ServerState, fed_avg
from fuprune.federated.train import FitResult, fit
from fuprune.models.fresh import init_variables
from fuprune.models.layers import ConvNorm
from fuprune.unlearning.job import Job
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.request import ForgetRequest, as_request, forgotten
from fuprune.unlearning.rounds import is_kept, keep_round
from tests.tiny import tiny_dataset


class SmallNet(nn.Module):
    """Two convolutions with norms, mean over space, one dense layer; like the zoo's."""

    num_classes: int = 4
    width: int = 6
    norm: str = "batch"
    conv: str = "xla"
    input_shape: tuple = (6, 6, 1)

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        values = images
        for name, strides in (("conv1", 1), ("conv2", 2)):
            layer = ConvNorm(self.width, self.norm, strides, name=name)
            values = nn.relu(layer(values, train=train, mask=mask))
        return nn.Dense(self.num_classes, name="head")(jnp.mean(values, axis=(1, 2)))


class SoftmaxRegression(nn.Module):
    """One dense layer on the pixels."""

    num_classes: int = 3
    use_bias: bool = True

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        del train, mask
        flat = images.reshape(images.shape[0], -1)
        return nn.Dense(self.num_classes, use_bias=self.use_bias, name="head")(flat)


def small_data(number=40, clients=4, **options) -> FederatedDataset:
    """`tiny_dataset`, dealt evenly."""
    return federate(
        tiny_dataset(number, **options), np.array_split(np.arange(number), clients)
    )


def uneven_federation(size):
    """Three classes, uneven clients, one of them empty; and its dataset."""
    dataset = tiny_dataset(30, num_classes=3, size=size)
    parts = [np.arange(0, 4), [], np.arange(4, 17), np.arange(17, 30)]
    return dataset, federate(dataset, parts)


def initial(model, shape=(6, 6, 1), seed=0):
    """Initial variables with every entry moved off its special value."""
    variables = init_variables(model, jax.random.key(seed), jnp.zeros((1, *shape)))
    leaves, treedef = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    moved = [
        leaf + 0.1 * jnp.abs(jax.random.normal(k, leaf.shape))
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, moved)


def remembering(seen):
    """A fine-tune of zero rounds that remembers what it was given."""

    def fine_tune(model, variables, data, key, objective=None):
        del objective
        seen.append((model, variables, data, key))
        return FitResult(ServerState(variables, (), jnp.zeros((), jnp.int32)), [], None)

    return fine_tune


def make_job(model, variables, data, request=(), **facts) -> Job:
    """A job without a fine-tuning."""
    request = ForgetRequest(classes=tuple(request))
    key = jax.random.key(0)
    return Job(model, variables, data, request, key, remembering([]), **facts)


def forget_by(
    method, model, variables, data, request, *, seed=0, fine_tune=None, **options
):
    """The method, without any fine-tuning unless it is given."""
    return METHODS[method](
        model,
        variables,
        data,
        request,
        key=jax.random.key(seed),
        fine_tune=fine_tune or remembering([]),
        **options,
    )


def make_fine_tune(rounds=1, optimizer=None):
    """Real federated rounds, compiled once for each model."""
    return functools.partial(make_train(optimizer), rounds=rounds)


def make_train(optimizer=None, **work):
    """Real federated rounds, as many as asked for, compiled once for each model."""
    algorithms, optimizer = {}, optimizer or optax.sgd(0.05)

    def train(model, variables, data, key, rounds, objective=None):
        algorithm = algorithms.get(model)
        if objective is not None or algorithm is None:
            algorithm = fed_avg(
                model,
                client_optimizer=optimizer,
                batch_size=8,
                objective=objective,
                **work,
            )
        if objective is None:
            algorithms[model] = algorithm
        state = algorithm.init(variables)
        return fit(algorithm, state, data, key=key, cohort_size=2, rounds=rounds)

    return train


def train_and_keep(algorithm, variables, data, cohorts, interval=1, keys=None):
    """The trained variables and the kept rounds, one cohort of client ids per round."""
    state, kept = algorithm.init(variables), []
    for number, clients in enumerate(cohorts):
        key = jax.random.key(number) if keys is None else keys[number]
        before, cohort = state.variables, take_clients(data, clients)
        state, info = algorithm.round(state, cohort, key)
        if is_kept(number, interval):
            kept.append(keep_round(number, before, info))
    return state.variables, kept


def poisoned(data: FederatedDataset, request) -> FederatedDataset:
    """The same federation with other images where they are to be forgotten."""
    named = forgotten(data, as_request(request))
    rows, lengths = np.asarray(named.rows), np.asarray(named.lengths)
    images = np.array(data.images)
    images[rows[np.arange(rows.shape[1]) < lengths[:, None]]] = 255
    return data._replace(images=jnp.asarray(images))


def flat(dataset, classes):
    """Images of some classes as vectors [N, D], and their labels."""
    keep = np.isin(dataset.labels, classes)
    images = dataset.images[keep].astype(np.float64) / 255.0
    return images.reshape(len(images), -1), dataset.labels[keep]


def held_by(data: FederatedDataset) -> list[set[int]]:
    """Indices of each client's images."""
    rows, lengths = jax.device_get((data.rows, data.lengths))
    return [set(row[:n].tolist()) for row, n in zip(rows, lengths, strict=True)]
