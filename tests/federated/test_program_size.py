"""Compiled programs grow with a network's depth, not with its square."""

import jax
import jax.numpy as jnp

from fuprune.federated.uploads import is_finite


def instructions(layers: int) -> int:
    """Of a program that keeps a client's arrays if all of them are finite."""

    def kept(update):
        accepted = is_finite(update)
        return jax.tree.map(lambda x: jnp.where(accepted, x, 0), update)

    update = [jnp.ones(3 + layer) for layer in range(layers)]
    text = jax.jit(kept).lower(update).compile().as_text()
    assert text is not None
    return text.count(" = ")


def test_the_check_of_an_update_is_not_copied_into_every_use_of_it():
    assert instructions(40) < 2.5 * instructions(20)
