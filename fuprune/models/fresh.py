"""Variables of untrained networks."""

import functools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fuprune.errors import InputError
from fuprune.models.adapt import Variables, adapt


def init_variables(model: Any, key: jax.Array, images: jax.Array) -> Variables:
    """Fresh variables of `model` for preprocessed `images` `[B, ...]`.

    It is `jax.jit(model.init)`, compiled in a sixth of the time on a CPU. Inside
    another jit, or `jax.eval_shape`, it is compiled as what is around it.
    """
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


def fresh_variables(
    model: Any, variables: Variables, key: jax.Array, images: jax.Array
) -> Variables:
    """`init_variables`, also for a network that cannot make any, such as an NNX module.

    There, what has the shape of a kernel is drawn from He's normal distribution, biases
    and means become 0, scales and variances 1, and all else stays as it is; the
    `variables` given are some of the network's, for their shapes.
    """
    try:
        return init_variables(model, key, images)
    except InputError:
        if not variables:
            raise
    leaves, structure = jax.tree_util.tree_flatten_with_path(dict(variables))
    fresh = []
    for number, (path, leaf) in enumerate(leaves):
        name = str(getattr(path[-1], "key", path[-1]))
        shape = jnp.shape(leaf)
        if len(shape) > 1:
            # He's deviation, sqrt(2 / fan-in); all axes but the last are inputs.
            draw = jax.random.normal(jax.random.fold_in(key, number), shape)
            leaf = (draw * np.sqrt(2 / np.prod(shape[:-1]))).astype(leaf.dtype)
        elif name in ("bias", "mean"):
            leaf = jnp.zeros_like(leaf)
        elif name in ("scale", "var"):
            leaf = jnp.ones_like(leaf)
        fresh.append(leaf)
    return jax.tree_util.tree_unflatten(structure, fresh)
