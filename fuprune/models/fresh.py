"""Variables of untrained networks."""

import functools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp

from fuprune.models.adapt import Variables, adapt, drawn_like


def init_variables(
    model: Any, key: jax.Array, images: jax.Array, like: Variables | None = None
) -> Variables:
    """Fresh variables of `model` for preprocessed `images` [B, ...].

    A function that has no init is given variables `like` its own (`drawn_like`). It is
    `jax.jit(model.init)`, compiled in a sixth of the time on a CPU.
    """
    if like is not None and getattr(model, "initialise", True) is None:
        return drawn_like(like, key)
    traced = any(isinstance(x, jax.core.Tracer) for x in (key, images))
    return _make_init("" if traced else jax.default_backend())(model, key, images)


@functools.cache
def _make_init(platform: str):
    def init(model, key, images):
        # Networks may squeeze a batch of one, and would make weights of other shapes.
        if images.shape[0] == 1:
            images = jnp.repeat(images, 2, axis=0)
        return adapt(model).init(key, images, train=False)

    # It runs once or a few times, and XLA's processor code for random numbers takes ten
    # seconds to compile well: six times as long as it takes to compile at all.
    quick = {"xla_backend_optimization_level": 0} if platform == "cpu" else None
    return jax.jit(init, static_argnums=0, compiler_options=quick)
