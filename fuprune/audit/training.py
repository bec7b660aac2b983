"""A step of SGD for auditors, as relearning and shadow models take it.

One program per network and shape serves all models, draws and learning rates. Steps
are looped on the host: inside a device loop XLA's CPU convolutions are many times
slower.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

# The learning rate is applied outside, where it can be traced.
_MOMENTUM = optax.trace(decay=0.9)


class TrainState(NamedTuple):
    """What one step hands to the next."""

    variables: dict[str, Any]
    momentum: optax.OptState


@jax.jit
def init_state(variables: dict[str, Any]) -> TrainState:
    """A state with its own copy of the variables, which steps may overwrite."""
    variables = jax.tree.map(jnp.array, variables)
    return TrainState(variables, _MOMENTUM.init(variables["params"]))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def sgd_step(
    network: Any, state: TrainState, images, labels, key: jax.Array, learning_rate
) -> TrainState:
    """One step with momentum 0.9 on the mean cross-entropy of a batch.

    Args:
      network: as `models.adapt` returns it.
      state: reused by the result.
      images: `[B, ...]`, preprocessed.
      labels: `[B]`.
      key: for dropout.
      learning_rate: a float32 array, so that all rates are one program.
    """
    kept = [name for name in state.variables if name != "params"]

    def loss(params):
        variables = {**state.variables, "params": params}
        logits, updated = network.apply(
            variables, images, train=True, mutable=kept, rngs={"dropout": key}
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), labels
        )
        # The state keeps its structure, so that the next step is the same program.
        return losses.mean(), {name: updated[name] for name in kept if name in updated}

    params = state.variables["params"]
    gradient, updated = jax.grad(loss, has_aux=True)(params)
    updates, momentum = _MOMENTUM.update(gradient, state.momentum)
    params = optax.apply_updates(params, optax.tree.scale(-learning_rate, updates))
    return TrainState({**state.variables, **updated, "params": params}, momentum)


def batch_rows(
    generator: np.random.Generator, rows: np.ndarray, steps: int, batch_size: int
) -> np.ndarray:
    """`[steps, batch_size]` of shuffled passes over `rows` `[N]`, in full batches.

    With fewer rows than `batch_size` a batch repeats some.
    """
    passes = -(-steps * batch_size // len(rows))
    order = np.concatenate([generator.permutation(rows) for _ in range(passes)])
    return order[: steps * batch_size].reshape(steps, batch_size)
