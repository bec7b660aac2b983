"""Rounds until a count or a target accuracy: the training loop as a generator.

Every key derives from (key, round), so a resumed run repeats an uninterrupted one.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import Cohort, FederatedDataset, sample_cohort
from fuprune.errors import TooFewClientsError
from fuprune.federated.server import FedAlgorithm, RoundInfo, ServerState

Metrics = Mapping[str, float]


class Record(NamedTuple):
    """One round in the books."""

    round_number: int  # 1 for the first
    metrics: dict[str, float]
    rejected: tuple[int, ...] = ()  # ids of clients turned away in this round


class Step(NamedTuple):
    """What `iterate` yields."""

    state: ServerState
    record: Record
    info: RoundInfo
    cohort: Cohort


class FitResult(NamedTuple):
    """The end of a training run."""

    state: ServerState
    history: list[Record]
    rounds_to_target: int | None  # None if the target was not reached, or not set


def drop_clients(key, cohort: Cohort, rate: float) -> Cohort:
    """Each client of the cohort fails to answer with probability `rate`."""
    drops = jax.vmap(
        # By id and not by place: who drops does not depend on who else was drawn.
        lambda client: jax.random.bernoulli(jax.random.fold_in(key, client), rate)
    )(cohort.clients)
    return cohort._replace(lengths=jnp.where(drops, 0, cohort.lengths))


def iterate(
    algorithm: FedAlgorithm,
    state: ServerState,
    data: FederatedDataset,
    *,
    key: jax.Array,
    cohort_size: int,
    rounds: int,
    start: int = 0,
    evaluate: Callable[[Any], Metrics] | None = None,
    evaluate_every: int | Callable[[int], bool] = 1,
    dropout_rate: float = 0.0,
    min_participants: int = 0,
    max_attempts: int = 5,
) -> Iterator[Step]:
    """Train rounds `start` + 1 .. `rounds`, yielding after each.

    Args:
      algorithm: from `fed_avg` or `fed_sgd`.
      state: where to start.
      data: every client's data.
      key: of the whole run; round r uses `fold_in(key, r)`.
      cohort_size: clients per round.
      rounds: last round.
      start: rounds already done.
      evaluate: variables -> metrics, merged into the record.
      evaluate_every: rounds between evaluations, or a function that says whether a
        round is evaluated; the last round always is, and with 0 no other.
      dropout_rate: probability that a selected client does not answer.
      min_participants: fewer accepted clients than this and the round is repeated with
        another cohort, its result thrown away.
      max_attempts: cohorts tried before giving up.

    Raises:
      TooFewClientsError: when every attempt at a round had too few clients.
    """
    for number in range(start + 1, rounds + 1):
        round_key = jax.random.fold_in(key, number)
        turned_away: set[int] = set()
        for attempt in range(max_attempts):
            keys = jax.random.split(jax.random.fold_in(round_key, attempt), 3)
            cohort = sample_cohort(keys[0], data, cohort_size)
            if dropout_rate:
                cohort = drop_clients(keys[1], cohort, dropout_rate)
            new_state, info = algorithm.round(state, cohort, keys[2])
            # Updates stay on the device: they are a model per client.
            seen = jax.device_get(info._replace(updates=None))
            turned_away |= {int(c) for c in seen.clients[seen.rejected]}
            if seen.participants >= min_participants:
                break
        else:
            raise TooFewClientsError(
                f"round {number} had {int(seen.participants)} usable clients of "
                f"{cohort_size} in the last of {max_attempts} attempts, and needs "
                f"{min_participants}; lower train.min_participants or look at the "
                f"clients rejected (ids {sorted(turned_away)[:10]})"
            )
        state = new_state
        metrics = {
            "loss": float(seen.loss),
            "train_accuracy": float(seen.accuracy),
            "participants": int(seen.participants),
            "examples": float(seen.examples),
            "images": float(seen.seen),
        }
        if not np.isfinite(metrics["loss"]):
            metrics["loss"] = float("inf")  # a diverged round is to look worst
        if callable(evaluate_every):
            due = evaluate_every(number)
        else:
            due = evaluate_every > 0 and number % evaluate_every == 0
        if evaluate is not None and (due or number == rounds):
            metrics.update(evaluate(state.variables))
        record = Record(number, metrics, tuple(sorted(turned_away)))
        yield Step(state, record, info, cohort)


def fit(
    algorithm: FedAlgorithm,
    state: ServerState,
    data: FederatedDataset,
    *,
    target_accuracy: float | None = None,
    target_metric: str = "accuracy",
    **options,
) -> FitResult:
    """Train until `target_metric` reaches `target_accuracy`, or for `rounds` rounds.

    The other arguments are those of `iterate`.
    """
    history: list[Record] = []
    for step in iterate(algorithm, state, data, **options):
        state = step.state
        history.append(step.record)
        if reached(step.record, target_accuracy, target_metric):
            return FitResult(state, history, step.record.round_number)
    return FitResult(state, history, None)


def reached(record: Record, target: float | None, metric: str = "accuracy") -> bool:
    """Whether a record's metric has come to the target."""
    value = record.metrics.get(metric)
    return target is not None and value is not None and value >= target
