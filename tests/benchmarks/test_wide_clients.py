"""Clients merged into one wide network train as they do apart."""

import pathlib

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from fuprune.models import zoo

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_wide_step_equals_separate_steps(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import wide_clients

    model = zoo.create("resnet20", num_classes=10, input_shape=(8, 8, 3))
    keys = jax.random.split(jax.random.key(0), 3)
    variables = jax.jit(jax.vmap(lambda k: model.init(k, jnp.zeros((1, 8, 8, 3)))))(
        keys
    )
    images = jax.random.normal(jax.random.key(1), (3, 4, 8, 8, 3))
    labels = jnp.arange(12).reshape(3, 4) % 10
    momenta = jax.tree.map(jnp.ones_like, variables["params"])

    mask = jnp.ones((3, 4)).at[1, 2:].set(0.0)

    def one(variables, momenta, images, labels, mask):
        def loss(params):
            logits, updated = model.apply(
                {**variables, "params": params},
                images,
                train=True,
                mask=mask,
                mutable=["batch_stats"],
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.sum(losses * mask) / jnp.sum(mask), updated

        gradient, updated = jax.grad(loss, has_aux=True)(variables["params"])
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradient)
        params = jax.tree.map(lambda p, m: p - 0.01 * m, variables["params"], momenta)
        return {"params": params, **updated}, momenta

    apart = jax.jit(jax.vmap(one))(variables, momenta, images, labels, mask)
    merged = jax.jit(wide_clients.make_wide_step(model))(
        variables, momenta, images, labels, mask
    )
    chex.assert_trees_all_close(merged, apart, rtol=1e-3, atol=1e-4)
