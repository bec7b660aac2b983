"""Membership inference with shadow models (Shokri et al. 2017), the paper's Table 4.

Shadow models are trained like the model under attack, on random halves of the data, so
that for them membership is known. A classifier learns from their outputs what members
look like, and is then turned on the model under attack.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from fuprune.audit.membership import log_probabilities
from fuprune.audit.outputs import Variables, find_head, init_variables
from fuprune.audit.training import (
    TrainState,
    batch_rows,
    init_state,
    parallel_sgd_step,
    rate,
    sgd_step,
)

BACKENDS = ("auto", "loop", "vmap")
# Sorted probabilities kept as features: what is below the third says little.
TOP = 3
# Log-probabilities below this are all "impossible" to an attacker.
FLOOR = -30.0


def balanced_members(
    generator: np.random.Generator, num_models: int, num_examples: int
) -> np.ndarray:
    """Which model trains on which example: half of the models on each.

    Args:
      generator: source of randomness.
      num_models: S, even, so that every example is in as often as out.
      num_examples: N.

    Returns:
      `[S, N]` bool, each column with exactly S/2 true.

    Raises:
      ValueError: S is odd or less than 2.
    """
    if num_models < 2 or num_models % 2:
        raise ValueError(
            f"{num_models} shadow models were asked for; give an even number of 2 or "
            "more, or 0 for none"
        )
    order = np.argsort(generator.random((num_models, num_examples)), axis=0)
    return order < num_models // 2


def train_models_in_parallel(
    model: nn.Module,
    key: jax.Array,
    images: np.ndarray,
    labels: np.ndarray,
    members: np.ndarray,
    preprocess: Callable[[np.ndarray], Any],
    *,
    steps: int,
    batch_size: int = 64,
    learning_rate: float = 0.05,
    backend: str = "auto",
    on_step: Callable[[str], None] | None = None,
) -> list[Variables]:
    """Trains S models from scratch, each on its own members, with SGD and cosine decay.

    Args:
      model: the architecture, a Flax module.
      key: for initial weights, batches and dropout.
      images: `[N, ...]` as `preprocess` wants them.
      labels: `[N]`.
      members: `[S, N]` bool, which model trains on which image.
      preprocess: images -> what the model takes.
      steps: SGD steps of each model.
      batch_size: images in a step.
      learning_rate: at the start; falls to zero along a cosine.
      backend: "vmap" trains all at once; "loop" one after the other, which is faster
        where XLA has no fast grouped convolution, as on CPUs; "auto" picks by device.
      on_step: told which model is being trained.

    Returns:
      S variables.

    Raises:
      ValueError: the backend is unknown.
    """
    if backend not in BACKENDS:
        raise ValueError(f"shadow backend is {backend!r}; it must be one of {BACKENDS}")
    if backend == "auto":
        backend = "loop" if jax.default_backend() == "cpu" else "vmap"
    num_models = len(members)
    init_key, batch_key, dropout_key = jax.random.split(key, 3)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(batch_key)))
    rows = np.stack(
        [batch_rows(generator, np.flatnonzero(m), steps, batch_size) for m in members]
    )
    rates = learning_rate * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    sample = jnp.asarray(preprocess(images[:1]))
    init_keys = jax.random.split(init_key, num_models)
    dropout_keys = jax.random.split(dropout_key, num_models)
    states = [init_state(init_variables(model, k, sample)) for k in init_keys]
    head = find_head(model, states[0].variables, sample)

    def told(name: str) -> None:
        if on_step is not None:
            on_step(name)

    if backend == "loop":
        for s in range(num_models):
            told(f"shadow model {s + 1} of {num_models}")
            for t in range(steps):
                batch = rows[s, t]
                states[s] = sgd_step(
                    model,
                    head,
                    states[s],
                    jnp.asarray(preprocess(images[batch])),
                    jnp.asarray(labels[batch]),
                    jax.random.fold_in(dropout_keys[s], t),
                    rate(rates[t]),
                )
        return [state.variables for state in states]

    told(f"{num_models} shadow models at once")
    stacked: TrainState = jax.tree.map(lambda *x: jnp.stack(x), *states)
    for t in range(steps):
        batch = rows[:, t]
        flat = jnp.asarray(preprocess(images[batch.reshape(-1)]))
        stacked = parallel_sgd_step(
            model,
            head,
            stacked,
            flat.reshape(*batch.shape, *flat.shape[1:]),
            jnp.asarray(labels[batch]),
            jax.vmap(lambda k, t=t: jax.random.fold_in(k, t))(dropout_keys),
            rate(rates[t]),
        )
    return [
        jax.tree.map(lambda x, s=s: x[s], stacked.variables) for s in range(num_models)
    ]


def attack_features(logits, labels) -> np.ndarray:
    """What the attack sees of an output: sorted probabilities, and the label's own.

    Args:
      logits: `[N, U]`.
      labels: `[N]`.

    Returns:
      `[N, min(3, U) + 2 + U]`: the top log-probabilities, the true label's, whether the
      answer is right, and the label one-hot, as Shokri's attack is told the class.
    """
    log_p = np.maximum(log_probabilities(logits), FLOOR)
    labels = np.asarray(labels)
    own = log_p[np.arange(len(log_p)), labels]
    top = -np.sort(-log_p, axis=-1)[:, :TOP]
    right = log_p.argmax(axis=-1) == labels
    return np.concatenate(
        [top, own[:, None], right[:, None], np.eye(log_p.shape[1])[labels]], axis=1
    )


def fit_attack(logits, labels, members) -> Pipeline:
    """Fits the attack classifier on shadow models' outputs.

    Args:
      logits: `[S, N, U]` of the shadow models.
      labels: `[N]`.
      members: `[S, N]` bool.

    Returns:
      A scikit-learn classifier from `attack_features` to membership.
    """
    features = np.concatenate([attack_features(one, labels) for one in logits])
    classifier = make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=1000, class_weight="balanced")
    )
    return classifier.fit(features, np.asarray(members).reshape(-1))


def attack_scores(attack: Pipeline, logits, labels) -> np.ndarray:
    """`[N]` log-odds of membership; above 0 the attack says "member"."""
    return attack.decision_function(attack_features(logits, labels))


def success_rate(member_scores, non_member_scores) -> float:
    """The attack's balanced accuracy at its own threshold: 0.5 is guessing."""
    caught = np.mean(np.asarray(member_scores) > 0)
    spared = np.mean(np.asarray(non_member_scores) <= 0)
    return float((caught + spared) / 2)
