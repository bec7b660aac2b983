"""The server's door and its BatchNorm policies hold in every form of a round."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.data.federated import federate, take_clients, whole_cohort
from fuprune.federated.batch_norm import LocalBatchNorm
from fuprune.federated.server import fed_avg, fed_sgd
from tests.tiny import TinyNet, tiny_dataset, tiny_variables

MODEL = TinyNet()


@pytest.fixture(scope="module")
def data():
    """Three clients of different sizes."""
    order = np.random.default_rng(2).permutation(36)
    return federate(tiny_dataset(36), [order[:6], order[6:20], order[20:]])


def gradient_norms(data):
    """L2 norm of each client's gradient at the initial variables, by hand."""
    variables, norms = tiny_variables(), []
    for row, length in zip(data.rows, data.lengths, strict=True):
        images = data.images[row[:length]].astype(jnp.float32) / 255.0
        labels = data.labels[row[:length]]

        def loss(params, images=images, labels=labels):
            logits, _ = MODEL.apply(
                {**variables, "params": params},
                images,
                train=True,
                mutable=["batch_stats"],
            )
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, labels
            ).mean()

        norms.append(
            float(optax.tree.norm(jax.jit(jax.grad(loss))(variables["params"])))
        )
    return np.array(norms)


@pytest.mark.parametrize("backend", ["vmap", "map"])
def test_the_norm_bound_of_the_door_holds_for_gradients(data, backend):
    norms = gradient_norms(data)
    bound = float(np.sort(norms)[-2:].mean())
    algorithm = fed_sgd(
        MODEL,
        server_optimizer=optax.sgd(0.1),
        backend=backend,
        max_update_norm=bound,
    )
    state = algorithm.init(tiny_variables())
    _, info = algorithm.round(state, whole_cohort(data), jax.random.key(0))
    np.testing.assert_array_equal(info.rejected, norms > bound)
    assert int(info.participants) == 2


class Fragile(nn.Module):
    """Its loss is finite and its gradient is not: the square root at zero."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        """[B, H, W, 1] -> [B, 4]."""
        logits = nn.Dense(4)(images.reshape(len(images), -1))
        return logits + jnp.sqrt(self.param("zero", nn.initializers.zeros, ()))


@pytest.mark.parametrize("backend", ["vmap", "map"])
def test_a_gradient_that_is_not_finite_leaves_the_state(data, backend):
    algorithm = fed_sgd(Fragile(), server_optimizer=optax.sgd(0.1), backend=backend)
    state = algorithm.init(Fragile().init(jax.random.key(0), jnp.zeros((1, 6, 6, 1))))
    after, info = algorithm.round(state, whole_cohort(data), jax.random.key(0))
    chex.assert_trees_all_equal(state, after)
    assert np.isfinite(info.loss)
    assert int(info.participants) == 0 and bool(jnp.all(info.rejected))


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
