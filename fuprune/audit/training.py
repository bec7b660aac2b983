"""A little SGD for auditors: one step, shared by shadow models and relearning.

The learning rate is traced and the batch shape fixed, so that relearning compiles once
for all models of an architecture. `in_pairs` works on two models at a time.
"""

import concurrent.futures
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fuprune.audit.outputs import Head, Variables, training_logits

Result = TypeVar("Result")

# The learning rate is applied outside, where it can be traced.
_MOMENTUM = optax.trace(decay=0.9)


class TrainState(NamedTuple):
    """What one step hands to the next."""

    variables: Variables
    momentum: optax.OptState


def init_state(variables: Variables) -> TrainState:
    """A training state with its own copy of the variables and no momentum yet.

    From the host, so that wherever a model comes from, its steps are one program.
    """
    return copied_state(jax.device_get(dict(variables)))


@jax.jit
def copied_state(variables: Variables) -> TrainState:
    """The same inside a program, and one program for arrays of all shapes."""
    return TrainState(
        variables=jax.tree.map(jnp.array, dict(variables)),
        momentum=_MOMENTUM.init(variables["params"]),
    )


def next_state(
    model: Any,
    head: Head | None,
    state: TrainState,
    images: jax.Array,
    labels: jax.Array,
    key: jax.Array,
    learning_rate: jax.Array,
) -> TrainState:
    """One step of SGD with momentum 0.9 on the mean cross-entropy of a batch.

    Images `[B, ...]` are preprocessed, the key is for dropout; of `head` see
    `outputs.training_logits`, of the learning rate `rate`.
    """

    def loss(params):
        variables = {**state.variables, "params": params}
        logits, updated = training_logits(model, head, variables, images, key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), updated

    params = state.variables["params"]
    gradient, updated = jax.grad(loss, has_aux=True)(params)
    updates, momentum = _MOMENTUM.update(gradient, state.momentum)
    updates = optax.tree.scale(-learning_rate, updates)
    params = optax.apply_updates(params, updates)
    return TrainState({**state.variables, **updated, "params": params}, momentum)


def rate(learning_rate: float) -> jax.Array:
    """A learning rate as the one type that steps are compiled for."""
    return jnp.asarray(learning_rate, jnp.float32)


# The same as a program of its own, which reuses the buffers of the state it is given.
sgd_step = jax.jit(next_state, static_argnums=(0, 1), donate_argnums=2)


def batch_rows(
    generator: np.random.Generator, rows: np.ndarray, steps: int, batch_size: int
) -> np.ndarray:
    """`[steps, batch_size]` of shuffled passes over `rows` `[N]`, in full batches.

    With fewer rows than `batch_size` a batch repeats some.
    """
    passes = -(-steps * batch_size // len(rows))
    order = np.concatenate([generator.permutation(rows) for _ in range(passes)])
    return order[: steps * batch_size].reshape(steps, batch_size)


def in_pairs(work: Callable[..., Result], *items: Iterable[Any]) -> list[Result]:
    """`list(map(work, *items))`, on CPUs by two threads.

    Two, because the steps of a small network do not fill two cores. An accelerator
    would run them one after the other, in twice the memory, and there JAX's context
    managers, which do not reach threads, could change numbers.
    """
    if jax.default_backend() != "cpu":
        return list(map(work, *items))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, *items))
