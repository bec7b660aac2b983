"""What is kept of a round: who counted, and what they sent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import whole_cohort
from fuprune.federated.server import fed_avg
from fuprune.unlearning.rounds import keep_round
from tests.unlearning.small import SoftmaxRegression, initial, small_data

MODEL = SoftmaxRegression(num_classes=4)
START = initial(MODEL)


def one_round(keep_updates):
    options = dict(client_optimizer=optax.sgd(0.1), batch_size=4)
    algorithm = fed_avg(MODEL, keep_updates=keep_updates, **options)
    cohort = whole_cohort(small_data())
    cohort = cohort._replace(lengths=cohort.lengths.at[1].set(0))
    return algorithm.round(algorithm.init(START), cohort, jax.random.key(0))


def test_clients_without_weight_are_not_kept():
    state, info = one_round(True)
    kept = keep_round(7, START, info)
    assert kept.round_number == 7 and kept.clients.tolist() == [0, 2, 3]
    shares = kept.weights / kept.weights.sum()
    trees = map(jax.tree.leaves, (state.variables, kept.variables, kept.updates))
    for new, old, update in zip(*trees, strict=True):
        change = np.tensordot(shares, update, 1)
        np.testing.assert_allclose(change, new - old, atol=1e-6)
    nobody = keep_round(0, START, info._replace(weights=jnp.zeros(4)))
    assert len(nobody.clients) == len(nobody.weights) == 0


def test_a_round_without_updates_is_refused():
    with pytest.raises(ValueError, match="keep_updates=True"):
        keep_round(0, START, one_round(False)[1])
