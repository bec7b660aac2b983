"""Training over messages that a killed server goes on with.

It is the simulation's own loop with remote clients as its backend. Every round is on
disk before the next, with what the unit was about: its network, which images clients
may read, and its key.
"""

import json
import logging
from pathlib import Path

import jax
import numpy as np

from fuprune import typed_json
from fuprune.data.federated import FederatedDataset
from fuprune.federated.objective import Objective
from fuprune.federated.train import FitResult, Record, iterate
from fuprune.files import write_whole
from fuprune.flower.session import Session
from fuprune.run import assembly, checkpoint, kept_files
from fuprune.surgery import rebuild
from fuprune.unlearning.kept_rounds import is_kept, keep_round

_LOGGER = logging.getLogger(__name__)
_KEPT = ("rows", "lengths", "labels", "members")  # of the data that clients may read


def fit(
    session: Session,
    unit: str,
    model,
    variables,
    data,
    budget,
    *,
    key,
    objective: Objective | None = None,
    interval: int = 0,
) -> FitResult:
    """Trains from where the unit was left; every round is on disk before the next.

    Every `interval` rounds, the models of server and clients are kept, for fed_eraser.
    """
    config, folder = session.config, session.workdir / unit
    schedule = budget.schedule
    session = session.at_rate(schedule.learning_rate)
    federation = session.federation._replace(data=data)
    algorithm = assembly.make_algorithm(
        session.setup._replace(federation=federation),
        model,
        schedule,
        objective=objective,
        keep_updates=interval > 0,
    )
    state = algorithm.init(variables)
    saved = checkpoint.restore(folder / "checkpoints", lambda spec: state)
    start, history = 0, []
    if saved is not None:
        start, state, _ = saved
        _LOGGER.info("%s goes on after round %d", unit, start)
    else:
        checkpoint.save(folder / "checkpoints", 0, state, spec={})
    # After the first checkpoint: `interrupted` counts on one.
    _describe(folder, model, data, key)
    evaluate = session.federation.evaluator(model, session.federation.test)
    steps = iterate(
        algorithm,
        state,
        data,
        key=key,
        cohort_size=min(config.train.cohort, data.num_clients),
        rounds=schedule.rounds,
        start=start,
        evaluate=lambda w: {"accuracy": evaluate(w).accuracy},
        evaluate_every=budget.is_due,
        min_participants=session.settings.min_clients,
    )
    for step in steps:
        before = step.record.round_number - 1
        if is_kept(before, interval):
            server = assembly.server_step(config)
            # `state` is still the one before the round, from which the clients started.
            kept = keep_round(before, state.variables, step.info, server)
            kept_files.save_round(session.workdir / kept_files.KEPT_ROUNDS, kept)
        state = step.state
        checkpoint.save(folder / "checkpoints", before + 1, state, spec={})
        history.append(step.record)
        _log_round(folder, step.record, schedule.rounds)
    return FitResult(state, history, None)


def _log_round(folder: Path, record: Record, rounds: int) -> None:
    """Adds a round to `rounds.jsonl` of its unit, and tells it in one line."""
    row = {
        "round": record.round_number,
        **{k: round(float(v), 6) for k, v in record.metrics.items()},
        "rejected": list(record.rejected),
    }
    with open(folder / "rounds.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    scored = record.metrics.get("accuracy")
    _LOGGER.info(
        "%s: round %d of %d, %d clients%s",
        folder.name.replace("_", "-"),
        record.round_number,
        rounds,
        record.metrics["participants"],
        "" if scored is None else f", {scored:.1%} of the test set is right",
    )


def _describe(folder: Path, model, data: FederatedDataset, key) -> None:
    kept = {name: getattr(data, name) for name in _KEPT}
    spec = {"model": rebuild.spec(model), **kept, "key": jax.random.key_data(key)}
    write_whole(folder / "unit.json", json.dumps(typed_json.to_plain(spec)) + "\n")


def interrupted(session: Session, unit: str):
    """`(model, variables to start from, data, key)` of a unit that was begun."""
    file = session.workdir / unit / "unit.json"
    if not file.exists():
        return None
    spec = json.loads(file.read_text("utf-8"))
    model = rebuild.from_spec(spec["model"])
    kept = {
        name: None if spec[name] is None else jax.numpy.asarray(spec[name], np.int32)
        for name in _KEPT
    }
    data = session.federation.data._replace(**kept)
    key = jax.random.wrap_key_data(jax.numpy.asarray(spec["key"], jax.numpy.uint32))
    # Only the form counts: the values come from the checkpoint.
    return model, assembly.initial_variables(model, jax.random.key(0)), data, key
