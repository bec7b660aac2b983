"""Membership inference with shadow models (Shokri et al. 2017), the paper's Table 4.

Shadow models are trained like the model under attack, on random halves of the data, so
that for them membership is known. A classifier learns from their outputs what members
look like, and is then turned on the model under attack.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit.evidence import WORSE
from fuprune.audit.measurements import Findings, Measurements, Shadows, logits_of
from fuprune.audit.membership import log_probabilities, loss_score, score_logits
from fuprune.audit.outputs import Head, Variables, find_head
from fuprune.audit.roc import Scores, find_by_attack
from fuprune.audit.sampling import generator_of, paired_error
from fuprune.audit.spread import ANGULAR, by_role, draft
from fuprune.audit.training import batch_rows, copied_state, next_state
from fuprune.data.dataset import Dataset, concatenated
from fuprune.errors import InputError
from fuprune.federated.client import gather_batch
from fuprune.federated.cohort import (
    Client,
    ClientProgram,
    Shared,
    for_each_client,
    keep_compiled,
    make_client_mesh,
    resolve_backend,
)
from fuprune.federated.sharded import on_mesh
from fuprune.models.fresh import fresh_variables
from fuprune.models.layers import loops_are_fast

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

# Sorted probabilities kept as features: what is below the third says little.
TOP = 3
# Log-probabilities below this are all "impossible" to an attacker.
FLOOR = -30.0


def find_shadow(measurements: Measurements) -> Findings:
    """Shokri's attack, learnt from shadow models, turned on every model."""
    shadows = measurements.shadows
    assert shadows is not None
    attack = fit_attack(shadows.logits, shadows.pool.labels, shadows.members)
    scores = score_logits(measurements, functools.partial(attack_scores, attack))
    rates = {name: success_rate(*one) for name, one in scores.items()}
    _, retrained = by_role(scores)
    success = draft(
        "shadow_success_rate",
        rates,
        question=(
            "How often is an attacker with shadow models right about whether an image "
            "of the forgotten class was trained on (0.5 is guessing)?"
        ),
        higher_is=WORSE,
        resolution=_success_error(retrained),
        bounds=(0.0, 1.0),
        scale=ANGULAR,
        is_rate=True,
        notes=[f"{len(shadows.models)} shadow models of the raw model's architecture"],
    )
    area = find_by_attack(
        "shadow",
        scores,
        attacker="an attacker with shadow models",
    )
    right = shadows.logits.argmax(axis=-1) == shadows.pool.labels
    detail = {
        **area.detail,
        "shadow_models": [
            {
                "members": int(inside.sum()),
                "member_accuracy": float(hits[inside].mean()),
                "non_member_accuracy": float(hits[~inside].mean()),
            }
            for hits, inside in zip(right, shadows.members, strict=True)
        ],
    }
    return Findings([success, *area.tests], detail)


def _success_error(scores: list[Scores]) -> float:
    """The error of a success rate: half the errors of its two rates, added."""
    if not scores:
        return 0.0
    members, non_members = zip(*scores, strict=True)
    return 0.5 * float(
        np.hypot(
            paired_error(np.stack(members) > 0), paired_error(np.stack(non_members) > 0)
        )
    )


def train_shadows(
    measurements: Measurements, retained: Dataset, key: jax.Array
) -> Shadows:
    """Trains the shadow models of an audit on halves of all images looked at.

    These are the forgotten, the test, and the `retained` training images, and the
    logits are of all of them.
    """
    options = measurements.options
    pool = concatenated([measurements.forgotten, measurements.test, retained])
    member_key, train_key = jax.random.split(key)
    members = balanced_members(
        generator_of(member_key), options.shadow.models, len(pool.labels)
    )
    module, raw = measurements.models["raw"]
    models = [
        (module, variables)
        for variables in train_models_in_parallel(
            module,
            train_key,
            pool.images,
            pool.labels,
            members,
            measurements.preprocess,
            steps=options.shadow.steps,
            batch_size=options.train_batch_size,
            learning_rate=options.shadow.learning_rate,
            backend=options.shadow.backend,
            like=raw,
            on_step=measurements.notify,
        )
    ]
    split = len(measurements.forgotten.labels)
    # Positions in the pool, which begins with the forgotten and the test images.
    targets = np.concatenate(
        [np.arange(split), split + np.flatnonzero(measurements.forgotten_test)]
    )
    logits = np.stack([logits_of(measurements, m, pool.images) for m in models])
    if np.isnan(logits).any():
        raise InputError(
            "a shadow model answers with NaN; train them with a learning rate smaller "
            f"than {options.shadow.learning_rate:g}"
        )
    return Shadows(models, pool, members, logits, targets)


class ShadowContext(NamedTuple):
    """What the S shadow models read besides the images."""

    variables: Variables  # initial ones, with a leading axis [S]
    keys: jax.Array  # [S] typed keys, for dropout
    rates: jax.Array  # [steps] learning rates


def balanced_members(
    generator: np.random.Generator, num_models: int, num_examples: int
) -> np.ndarray:
    """Which of S models trains on which of N examples: half of the models on each.

    `[S, N]` bool, each column with exactly S/2 true, so that every example is in as
    often as out.

    Raises:
      InputError: S is odd or less than 2, or a model has all examples or none.
    """
    if num_models < 2 or num_models % 2:
        raise InputError(
            f"{num_models} shadow models were asked for; give an even number of 2 or "
            "more, or 0 for none"
        )
    # Each column is a random permutation of 0 to S - 1.
    order = np.argsort(generator.random((num_models, num_examples)), axis=0)
    members = order < num_models // 2
    if members.all(axis=1).any() or not members.any(axis=1).all():
        raise InputError(
            f"{num_examples} images leave one of {num_models} shadow models with all "
            "of them or none; give more images, or ask for 0 shadow models"
        )
    return members


def train_models_in_parallel(
    model: Any,
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
    like: Variables | None = None,
    on_step: Callable[[str], None] | None = None,
) -> list[Variables]:
    """Trains S models from scratch, each on its own members, with SGD and cosine decay.

    Each model is a client of the federated engine, with its members for data.

    Args:
      model: the architecture, any network that `models.adapt` takes.
      key: for initial weights, batches and dropout.
      images: `[N, ...]` as `preprocess` wants them.
      labels: `[N]`.
      members: `[S, N]` bool, which model trains on which image.
      preprocess: images -> what the model takes.
      steps: SGD steps of each model.
      batch_size: images in a step.
      learning_rate: at the start; falls to zero along a cosine.
      backend: how the models are iterated, see `cohort.for_each_client`: "vmap" trains
        all at once, "shard_map" one on each of this process's devices; "auto" picks by
        platform.
      like: variables of the architecture, needed if it cannot make any itself.
      on_step: told which models are being trained.

    Returns:
      S variables.

    Raises:
      InputError: the backend is unknown.
    """
    # The mesh is this process's own, so several processes do not rule out a host loop.
    backend, _ = resolve_backend(
        backend,
        loops_are_fast=loops_are_fast(model),
        device_count=jax.local_device_count(),
        process_count=1,
    )
    num_models = len(members)
    init_key, batch_key, dropout_key = jax.random.split(key, 3)
    generator = generator_of(batch_key)
    rows = np.stack(
        [batch_rows(generator, np.flatnonzero(m), steps, batch_size) for m in members]
    ).astype(np.int32)
    rates = learning_rate * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    pool = jax.device_put(preprocess(images))
    sample = pool[:1]
    keys = jax.random.split(init_key, num_models)
    initial = [fresh_variables(model, like or {}, k, sample) for k in keys]
    context = ShadowContext(
        variables=jax.device_put(jax.tree.map(lambda *x: np.stack(x), *initial)),
        keys=jax.random.split(dropout_key, num_models),
        rates=jnp.asarray(rates, jnp.float32),
    )
    head = find_head(model, initial[0], sample)
    shared = Shared(pool, jnp.asarray(labels, jnp.int32), context)
    mesh = None
    if backend == "shard_map":
        mesh = make_client_mesh(jax.local_devices())
        shared = on_mesh(shared, mesh)
    run = _make_training(model, head, batch_size, backend, mesh)
    devices = jax.local_device_count()
    # As many as the backend trains at the same time, so that `on_step` is told in
    # between.
    together = {"vmap": num_models, "map": 1}.get(backend, devices)
    trained: list[Variables] = []
    for first in range(0, num_models, together):
        ids = np.arange(first, min(first + together, num_models), dtype=np.int32)
        if on_step is not None:
            on_step(_names(ids, num_models))
        clients = Client(
            row=jax.device_put(rows[ids].reshape(len(ids), -1)),
            # Full batches only: `gather_batch` never pads here.
            length=jax.device_put(np.full(len(ids), steps * batch_size, np.int32)),
            client_id=jax.device_put(ids),
        )
        _, each = run(shared, clients)
        # Through the host: a mesh would follow the models into whatever uses them.
        each = jax.device_get(each)
        trained += [
            jax.device_put(jax.tree.map(lambda x, i=i: x[i], each))
            for i in range(len(ids))
        ]
    return trained


def _names(ids: np.ndarray, num_models: int) -> str:
    if len(ids) == 1:
        return f"shadow model {ids[0] + 1} of {num_models}"
    return f"shadow models {ids[0] + 1} to {ids[-1] + 1} of {num_models}, side by side"


@keep_compiled
def _make_training(model, head, batch_size, backend, mesh):
    return for_each_client(
        shadow_program(model, head, batch_size=batch_size), backend=backend, mesh=mesh
    )


def shadow_program(model: Any, head: Head | None, *, batch_size: int) -> ClientProgram:
    """A shadow model's training; its row holds the batches, one after the other.

    The pool's images are preprocessed and the context is a `ShadowContext`. `finish`
    gives `((), variables)`.
    """

    def init(shared, client):
        return copied_state(
            jax.tree.map(lambda x: x[client.client_id], shared.context.variables)
        )

    def step(shared, client, state, i):
        context = shared.context
        key = jax.random.fold_in(context.keys[client.client_id], i)
        positions = i * batch_size + jnp.arange(batch_size)
        batch = gather_batch(shared, client, positions, _as_they_are, key)
        return next_state(
            model, head, state, batch.images, batch.labels, key, context.rates[i]
        )

    def finish(shared, client, state):
        del shared, client
        return (), state.variables

    def num_steps(client):
        return client.length // batch_size

    return ClientProgram(num_steps, init, step, finish)


def _as_they_are(key, images):
    del key
    return images


def attack_features(logits, labels) -> np.ndarray:
    """What the attack sees of an output: sorted probabilities, and the label's own.

    From `[N, U]` logits to `[N, min(3, U) + 2 + U]`: the top log-probabilities, the
    true label's, whether the answer is right, and the label one-hot, as Shokri's attack
    is told the class.
    """
    log_p = np.maximum(log_probabilities(logits), FLOOR)
    labels = np.asarray(labels)
    own = np.maximum(loss_score(logits, labels), FLOOR)
    top = -np.sort(-log_p, axis=-1)[:, :TOP]
    right = log_p.argmax(axis=-1) == labels
    return np.concatenate(
        [top, own[:, None], right[:, None], np.eye(log_p.shape[1])[labels]], axis=1
    )


def fit_attack(logits, labels, members) -> "Pipeline":
    """The classifier from `attack_features` to membership.

    Fitted on shadow models' logits `[S, N, U]`, labels `[N]` and members `[S, N]`.
    """
    # Seconds to import, so only by the attack itself.
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # Row by row as `members` is flattened below: model by model.
    features = np.concatenate([attack_features(one, labels) for one in logits])
    classifier = make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=1000, class_weight="balanced")
    )
    return classifier.fit(features, np.asarray(members).reshape(-1))


def attack_scores(attack: "Pipeline", logits, labels) -> np.ndarray:
    """`[N]` log-odds of membership; above 0 the attack says "member"."""
    return attack.decision_function(attack_features(logits, labels))


def success_rate(member_scores, non_member_scores) -> float | None:
    """The attack's balanced accuracy at its own threshold: 0.5 is guessing.

    An attack that says the same of every image is right half of the time, too, but that
    is no result: it returns None.
    """
    caught = np.mean(np.asarray(member_scores) > 0)
    spared = np.mean(np.asarray(non_member_scores) <= 0)
    if caught + spared == 1 and caught in (0, 1):
        return None
    return float((caught + spared) / 2)
