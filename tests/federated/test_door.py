"""The server's door and its BatchNorm policies hold in every form of a round."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import federate, take_clients, whole_cohort
from fuprune.federated.aggregate import update_norms
from fuprune.federated.batch_norm import LocalBatchNorm
from fuprune.federated.server import fed_avg, fed_sgd
from tests.tiny import TinyNet, tiny_dataset, tiny_variables

MODEL = TinyNet()


@pytest.fixture(scope="module")
def data():
    """Three clients of different sizes."""
    order = np.random.default_rng(2).permutation(36)
    return federate(tiny_dataset(36), [order[:6], order[6:20], order[20:]])


class Fragile(nn.Module):
    """Its loss is finite and its gradient is not: the square root at zero."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        """[B, H, W, 1] -> [B, 4]."""
        logits = nn.Dense(4)(images.reshape(len(images), -1))
        return logits + jnp.sqrt(self.param("zero", nn.initializers.zeros, ()))


@pytest.mark.parametrize("backend", ["vmap", "map"])
def test_gradients_that_are_too_long_or_not_finite_are_turned_away(data, backend):
    def one_round(model, variables, **options):
        algorithm = fed_sgd(
            model, server_optimizer=optax.sgd(0.1), backend=backend, **options
        )
        state = algorithm.init(variables)
        return state, *algorithm.round(state, whole_cohort(data), jax.random.key(0))

    _, _, info = one_round(MODEL, tiny_variables(), keep_updates=True)
    norms = np.array(update_norms(info.updates))
    bound = float(np.sort(norms)[-2:].mean())
    _, _, info = one_round(MODEL, tiny_variables(), max_update_norm=bound)
    np.testing.assert_array_equal(info.rejected, norms > bound)
    assert int(info.participants) == 2

    fragile = Fragile().init(jax.random.key(0), jnp.zeros((1, 6, 6, 1)))
    before, after, info = one_round(Fragile(), fragile)
    chex.assert_trees_all_equal(before, after)
    assert np.isfinite(info.loss) and bool(jnp.all(info.rejected))


def test_local_statistics_are_the_mean_over_clients_that_took_part(data):
    """Weighted by examples; a client that was never sampled does not count."""
    initial = tiny_variables()
    algorithm = fed_avg(
        MODEL,
        client_optimizer=optax.sgd(0.05),
        batch_size=8,
        backend="map",
        bn=LocalBatchNorm(3),
    )
    state = algorithm.init(initial)
    chex.assert_trees_all_equal(state.variables["batch_stats"], initial["batch_stats"])
    nobody = take_clients(data, [1])
    nobody = nobody._replace(lengths=jnp.zeros_like(nobody.lengths))
    same, _ = algorithm.round(state, nobody, jax.random.key(0))
    chex.assert_trees_all_equal(same, state)
    for number, client in enumerate((2, 0)):
        cohort = take_clients(data, [client])
        state, _ = algorithm.round(state, cohort, jax.random.key(number))
        own = jax.tree.map(lambda x, c=client: x[c], state.local.batch_stats)
        if number == 0:
            chex.assert_trees_all_close(state.variables["batch_stats"], own)
    expected = jax.tree.map(
        lambda x: (6 * x[0] + 16 * x[2]) / 22, state.local.batch_stats
    )
    chex.assert_trees_all_close(state.variables["batch_stats"], expected, rtol=1e-6)
    np.testing.assert_array_equal(state.local.examples, [6, 0, 16])


@pytest.mark.parametrize("bn", [LocalBatchNorm(3), "recalibrate"])
def test_every_policy_takes_a_network_without_statistics(data, bn):
    """Group norm has none, so the policies agree."""
    model = TinyNet(norm="group", width=8)
    variables = tiny_variables(model)
    options = dict(client_optimizer=optax.sgd(0.05), batch_size=8, backend="map")
    ends = []
    for algorithm in (
        fed_avg(model, bn=bn, **options),
        fed_avg(model, **options),
    ):
        state = algorithm.init(variables)
        ends.append(algorithm.round(state, whole_cohort(data), jax.random.key(0))[0])
    chex.assert_trees_all_equal(ends[0].variables, ends[1].variables)
