"""What is computed on any number of devices and processes, and must come out the same.

Seven clients of different sizes, one of them empty; cohorts of five, which no mesh of
more than one device divides.
"""

import jax
import numpy as np
import optax

from fuprune.data.federated import sample_cohort, whole_cohort
from fuprune.federated.evaluate import make_evaluator
from fuprune.federated.server import fed_avg, fed_sgd
from fuprune.unlearning.activations import collect, merge_activations
from fuprune.unlearning.fisher import fisher_sum, mean_over_clients
from tests.tiny import TinyNet, tiny_dataset, tiny_variables
from tests.unlearning.small import make_job

MODEL = TinyNet()
COHORT = 5


def parts():
    """Which of 90 images each of seven clients has."""
    order = np.random.default_rng(1).permutation(90)
    cuts = [0, 7, 7, 30, 41, 52, 70, 90]
    return [order[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]


def train_set():
    return tiny_dataset(90)


def averaging(**options):
    """FedAvg with two local epochs."""
    return fed_avg(
        MODEL,
        client_optimizer=optax.sgd(0.05, momentum=0.9, nesterov=True),
        local_epochs=2,
        batch_size=8,
        **options,
    )


def gradients(**options):
    """FedSGD on ten images a client."""
    return fed_sgd(
        MODEL,
        server_optimizer=optax.sgd(0.1, momentum=0.9),
        batch_size=10,
        **options,
    )


def train(algorithm, data, rounds=2):
    """The state after some rounds, and what the last one reported; host arrays."""
    state = algorithm.init(tiny_variables())
    for number in range(rounds):
        key = jax.random.fold_in(jax.random.key(3), number)
        cohort = sample_cohort(key, data, COHORT)
        state, info = algorithm.round(state, cohort, key)
    return jax.device_get((state, info._replace(updates=None)))


def statistics(data, **options):
    """A*: class means of every channel over all clients."""
    collected = collect(
        MODEL, tiny_variables(), whole_cohort(data), num_classes=4, **options
    )
    assert not collected.rejected
    return jax.device_get(merge_activations(collected.uploads))


def fisher(data, **options):
    """The diagonal Fisher information over all clients."""
    job = make_job(MODEL, tiny_variables(), data, **options)
    found, _ = mean_over_clients(job, fisher_sum, "the Fisher information", data, 8)
    return jax.device_get(found)


def evaluation(mesh=None):
    """Confusion matrix and loss on a split that no mesh divides."""
    evaluate = make_evaluator(
        MODEL, tiny_dataset(37, seed=5), num_classes=4, batch_size=16, mesh=mesh
    )
    result = evaluate(tiny_variables())
    return result.confusion, np.float64(result.loss)


def everything(data, mesh=None, backend="shard_map"):
    """All of the above as one flat dictionary of arrays."""
    options = dict(backend=backend, mesh=mesh)
    tree = {
        "fed_avg": train(averaging(**options), data),
        "fed_sgd": train(gradients(**options), data),
        "statistics": statistics(data, **options),
        "fisher": fisher(data, **options),
        "evaluation": evaluation(mesh),
    }
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
