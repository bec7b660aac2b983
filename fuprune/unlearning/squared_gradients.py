"""Sums of squared per-example gradients of a network, for the Fisher information.

Examples must not mix, so networks are in evaluation mode.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fuprune.federated.client import split_params
from fuprune.models.layers import loops_are_fast


def sum_of_squared_gradients(
    model,
    variables,
    images,
    make_cotangents: Callable[[jax.Array], jax.Array],
    mask=None,
) -> Any:
    """Sum over examples n and vectors j of (d <c_nj, logits_n> / d w)^2, elementwise.

    Args:
      model: called as `apply(variables, images, train=False)`.
      variables: its variables.
      images: [B, H, W, C] float.
      make_cotangents: logits [B, U] -> c [B, J, U], not differentiated.
      mask: [B], 0 for examples that do not count; all do by default.

    Returns:
      A tree like `variables["params"]`, float32.
    """
    mask = jnp.ones(len(images)) if mask is None else mask
    parameters, rest = split_params(variables)

    def squares_of(image, real):
        def logits_of(params):
            return model.apply({"params": params, **rest}, image[None], train=False)

        logits, backward = jax.vjp(logits_of, parameters)
        chosen = make_cotangents(lax.stop_gradient(logits.astype(jnp.float32)))[0]
        # Zero vectors have zero squares, so that nothing else needs the mask.
        chosen = jnp.where(real > 0, chosen, 0.0).astype(logits.dtype)  # [J, U]
        (gradients,) = jax.vmap(backward)(chosen[:, None])
        return jax.tree.map(
            lambda g: jnp.sum(g.astype(jnp.float32) ** 2, axis=0), gradients
        )

    if not loops_are_fast(model):
        each = jax.vmap(squares_of)(images, mask)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), each)

    def add_example(total, example):
        return jax.tree.map(jnp.add, total, squares_of(*example)), None

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), parameters)
    return lax.scan(add_example, zeros, (images, mask))[0]
