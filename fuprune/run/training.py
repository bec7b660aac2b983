"""Federated training as a unit of a run: logged, timed, checkpointed, resumable."""

import time

import jax
import numpy as np

from fuprune.errors import FupruneError, InputError
from fuprune.federated.train import FitResult, iterate, reached
from fuprune.models import zoo
from fuprune.run import assembly, checkpoint, history_files, ledger
from fuprune.run import machine as runtime
from fuprune.run.context import (
    Run,
    StopRequested,
    accuracies,
    evaluator,
    stopping,
)
from fuprune.unlearning import history as update_history


def train_unit(
    this: Run,
    unit: str,
    model,
    variables,
    data,
    *,
    key,
    rounds: int,
    learning_rate: float,
    schedule: str,
    warmup: int,
    target: float | None,
    metric: str,
    stop_at_target: bool,
    evaluate_every: int,
    store=None,
) -> FitResult:
    """Federated training with logs and checkpoints, from the last one if there is.

    The rounds' records are rows of metrics.jsonl; the result's history stays empty, so
    that memory does not grow with the rounds.
    """
    config = this.config
    algorithm = assembly.make_algorithm(
        config,
        model,
        this.federation,
        this.runtime,
        learning_rate=learning_rate,
        schedule=schedule,
        rounds=rounds,
        warmup=warmup,
        keep_updates=store is not None,
    )
    where = this.workdir / "checkpoints" / unit.replace("/", "__")
    state = algorithm.init(runtime.replicate(variables, this.runtime))
    spec = zoo.spec(model)

    def make_target(saved):
        if saved["model"] != spec:
            raise InputError(
                f"the checkpoint in {where} is of another model; delete {this.workdir} "
                "to start afresh."
            )
        return jax.eval_shape(lambda: state)

    restored = checkpoint.restore(where, make_target)
    start, first_reached = 0, None
    # Rows that a dead run logged after what can be continued go.
    if restored is None:
        this.metrics.truncate_to(ledger.end_of_finished(this.workdir))
    else:
        start, tree, saved = restored
        state = runtime.replicate(tree, this.runtime)
        first_reached = saved["rounds_to_target"]
        this.metrics.truncate_to(saved["metrics_offset"])
        if store is not None:
            kept = this.workdir / "history"
            store = history_files.load(kept, variables["params"], round_number=start)
            if store is None:
                raise FupruneError(
                    f"the recorded updates of round {start} are missing in {kept}; "
                    "start in a fresh workdir."
                )
        this.progress.note(f"{unit}: continues after round {start}")
    evaluate = evaluator(this, model)

    def save(number, state):
        if store is not None:
            folder, keep = this.workdir / "history", config.train.checkpoint_keep
            if this.runtime.is_main:
                history_files.save(folder, number, store, keep=keep + 1)
        checkpoint.save(
            where,
            number,
            state,
            spec={
                "model": spec,
                "metrics_offset": this.metrics.offset(),
                "rounds_to_target": first_reached,
            },
            keep=config.train.checkpoint_keep,
        )

    steps = iterate(
        algorithm,
        state,
        data,
        key=key,
        cohort_size=config.train.cohort,
        rounds=rounds,
        start=start if not (first_reached and stop_at_target) else rounds,
        evaluate=lambda v: accuracies(evaluate(v), this.classes),
        evaluate_every=evaluate_every,
        dropout_rate=config.train.dropout_rate,
        min_participants=_min_participants(config, data),
    )
    clock, number = time.monotonic(), start
    with this.progress.phase(unit, rounds, first_round=start) as update:
        for step in steps:
            state, number = step.state, step.record.round_number
            if store is not None:
                store = update_history.record(
                    store,
                    step.info,
                    step.cohort,
                    round_number=number,
                    scale=assembly.server_factor(config),
                )
            row = {"phase": unit, "round": number, **step.record.metrics}
            if step.record.rejected:
                row["rejected"] = list(step.record.rejected)
            this.metrics.append(row)
            if this.board is not None:
                this.board.append(row)
            seconds, clock = time.monotonic() - clock, time.monotonic()
            images = int(step.record.metrics["examples"]) * (
                config.train.local_epochs if config.train.algorithm == "fed_avg" else 1
            )
            this.timings.record(unit, number, seconds, images)
            shown = {
                name: value
                for name, value in step.record.metrics.items()
                if name in ("loss", "accuracy", "u_accuracy", "r_accuracy")
            }
            update(number, images=images, **shown)
            if first_reached is None and reached(step.record, target, metric):
                first_reached = number
            last = number == rounds or (stop_at_target and first_reached is not None)
            stop = stopping(this)
            if last or number % config.train.checkpoint_every == 0 or stop:
                save(number, state)
            if stop:
                raise StopRequested
            if last:
                break
    return FitResult(state, [], first_reached)


def _min_participants(config, data) -> int:
    """The configured number, but never more than hold data once a class is gone."""
    holders = int(np.count_nonzero(jax.device_get(data.lengths)))
    return min(config.train.min_participants, holders)
