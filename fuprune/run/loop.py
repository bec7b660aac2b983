"""Training as a step of a run does it: logged, timed, checkpointed, resumed.

`train_unit` continues from the last checkpoint, bitwise as if never interrupted. An
`Experiment` is what every step has at hand.
"""

import dataclasses
import functools
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np

from fuprune.config import ConfigError
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError
from fuprune.federated.cohort import resolve_backend
from fuprune.federated.evaluate import Evaluation
from fuprune.federated.objective import Objective
from fuprune.federated.server import FedAlgorithm
from fuprune.federated.train import FitResult, Record, iterate, reached
from fuprune.models.layers import loops_are_fast
from fuprune.results import MethodRow, StageRow
from fuprune.run import (
    build,
    checkpoint,
    processes,
    progress,
)
from fuprune.run.data import Federation, replicate
from fuprune.run.models import Elsewhere
from fuprune.run.store import Store
from fuprune.surgery import rebuild
from fuprune.unlearning.job import Stage
from fuprune.unlearning.rounds import is_kept, keep_round

OnRow = Callable[[Mapping[str, Any]], None]


class StopRequested(Exception):
    """SIGTERM came; everything worth keeping is saved."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What every step of a run has at hand."""

    setup: build.Setup
    units: tuple[build.UnlearnUnit, ...]
    store: Store
    elsewhere: Elsewhere
    on_row: tuple[OnRow, ...]
    progress: progress.Progress
    stop: threading.Event
    # Algorithms made so far, by what they are made for.
    algorithms: dict[Hashable, FedAlgorithm] = dataclasses.field(default_factory=dict)

    def algorithm(
        self, model, schedule: build.Schedule, **options: Any
    ) -> FedAlgorithm:
        """`build.make_algorithm`; units that differ in their key alone share one.

        Another one is another program to trace and to load, which takes longer than
        the rounds of a small network.
        """
        make = functools.partial(
            build.make_algorithm, self.setup, model, schedule, **options
        )
        if options.get("objective") is not None:
            return make()
        made_for = (model, schedule, options.get("keep_updates"))
        try:
            made = self.algorithms.get(made_for)
        except TypeError:  # a network that holds arrays
            return make()
        if made is None:
            made = self.algorithms[made_for] = make()
        return made

    @functools.cached_property
    def raw(self) -> build.Model:
        """The trained model and its variables, which every method starts from."""
        return self.load("raw", "pretrain")

    def load(self, name: str, unit: str = "") -> build.Model:
        """The model that a unit of the run has saved, by default a method's."""
        path = self.store.model(name)
        if not path.exists():
            raise not_run(self, unit or f"unlearn/{name}")
        return build.load_model(self.setup, path)

    @property
    def config(self) -> Any:
        """The run's config."""
        return self.setup.config

    @property
    def federation(self) -> Federation:
        """The run's data."""
        return self.setup.federation

    @property
    def classes(self) -> tuple[int, ...]:
        """To forget; none in a request of clients or examples."""
        return self.federation.request.classes


def row_of(this: Experiment, unit: build.UnlearnUnit) -> MethodRow:
    """What a finished unit reached."""
    rows = [row for row in this.store.record.methods if row.name == unit.name]
    if not rows:
        raise not_run(this, unit.phase)
    return rows[0]


def not_run(this: Experiment, unit: str) -> ConfigError:
    """The error for a unit that the phases leave out and no earlier start has run."""
    return ConfigError(
        f"phases is {this.config.phases!r}, but {unit} has not been run in "
        f"{this.store.workdir}; add {unit.split('/')[0]} to phases."
    )


def key_for(this: Experiment, purpose: str) -> jax.Array:
    """The key that one purpose, by name, uses in this run."""
    # Not `hash`, which differs from process to process; 31 bits fit any integer type.
    number = zlib.crc32(purpose.encode()) & 0x7FFFFFFF
    return jax.random.fold_in(jax.random.key(this.config.seed), number)


def stopping(this: Experiment) -> bool:
    """Whether SIGTERM has come to any process of the run; all of them ask together."""
    return processes.any_process(this.stop.is_set())


def stop_if_asked(this: Experiment) -> None:
    """Ends the run, where everything worth keeping is saved, if SIGTERM has come."""
    if stopping(this):
        raise StopRequested


def choice_split(config, federation: Federation) -> tuple[str, Dataset]:
    """The split that targets and early stops are judged on, and its name."""
    validation = federation.validation
    if config.data.choose_on == "validation" and len(validation.labels):
        return "validation", validation
    return "test", federation.test


def make_judge(this: Experiment, model) -> Callable[[Any], dict[str, float]]:
    """`judge(variables)`: metrics on the split that choices are made on."""
    name, split = choice_split(this.config, this.federation)
    evaluate = _make_evaluate(this, model, split)

    def judge(variables) -> dict[str, float]:
        evaluation, found = evaluate(variables)
        judged = {judged_name(this, k): v for k, v in found.items() if v is not None}
        return {**judged, f"{name}_loss": evaluation.loss}

    return judge


def judged_name(this: Experiment, metric: str) -> str:
    """What `make_judge` calls a metric."""
    name, _ = choice_split(this.config, this.federation)
    return metric if name == "test" else f"{name}_{metric}"


def measure(this: Experiment, name: str, stage: Stage) -> StageRow:
    """What a model does on the test split, which only the tables look at."""
    evaluate = _make_evaluate(this, stage.model, this.federation.test)
    evaluation, accuracies = evaluate(stage.variables)
    return StageRow(
        name,
        stage.name,
        **accuracies,
        # JSON has no infinity.
        test_loss=evaluation.loss if np.isfinite(evaluation.loss) else None,
        per_class=evaluation.per_class.tolist(),
        confusion=evaluation.confusion.tolist(),
    )


def _make_evaluate(
    this: Experiment, model, split: Dataset
) -> Callable[[Any], tuple[Evaluation, dict[str, Any]]]:
    """`evaluate(variables)`: a split, and accuracies on all, the U-set and the R-set.

    For clients and examples the U-set are the forgotten training images, and the R-set
    is all of the split.
    """
    federation, classes = this.federation, this.classes
    mesh = this.setup.mesh if backend_of(this) == "shard_map" else None
    on_split, on_named = federation.evaluator(model, split, mesh), None
    # Clients elsewhere keep their images.
    if len(federation.forgotten.labels) and not classes:
        on_named = federation.evaluator(model, federation.forgotten, mesh)

    def evaluate(variables) -> tuple[Evaluation, dict[str, Any]]:
        found = on_split(variables)
        u_set = on_named(variables).accuracy if on_named else None
        r_set: float | None = found.accuracy
        if classes:
            images = found.confusion.sum(axis=1)
            gone = images[list(classes)].sum()
            u_set = found.accuracy_on(classes) if gone else None
            r_set = found.accuracy_without(classes) if images.sum() > gone else None
        return found, dict(accuracy=found.accuracy, u_accuracy=u_set, r_accuracy=r_set)

    return evaluate


def backend_of(this: Experiment) -> str:
    """How this run iterates over clients."""
    if not isinstance(this.setup.backend, str):
        return "messages"
    return resolve_backend(
        this.setup.backend, loops_are_fast=loops_are_fast(this.setup.conv)
    )[0]


def append_row(this: Experiment, unit: str, record: Record) -> None:
    """Log what a round of a unit reached, and show it to all who follow the run."""
    row = this.store.log(unit, record)
    if this.store.writes:
        for show in this.on_row:
            show(row)


def train_unit(
    this: Experiment,
    unit: str,
    model,
    variables,
    data,
    budget: build.Budget,
    *,
    key: jax.Array,
    objective: Objective | None = None,
    interval: int = 0,
) -> FitResult:
    """Federated training with logs and checkpoints, from the last one if there is.

    The rounds' records are rows of metrics.jsonl, round 0 the model as it came; the
    result's history stays empty. `key` is that of cohorts and batches, `objective` is
    what to minimise if not the config's cross-entropy, and every `interval` rounds one
    is kept on disk, 0 for none.
    """
    config, rounds = this.config, budget.schedule.rounds
    algorithm = this.algorithm(
        model, budget.schedule, objective=objective, keep_updates=interval > 0
    )
    state = algorithm.init(replicate(variables, this.setup.mesh))
    judge = make_judge(this, model)
    metric = judged_name(this, budget.metric)
    saved = _restore(this, unit, model, state)
    if saved is None:
        this.store.drop_rows(unit, after=-1)
        before = Record(0, judge(state.variables))
        append_row(this, unit, before)
        start, first_reached = 0, None
        if reached(before, budget.target, metric):
            first_reached = 0
    else:
        start, state, first_reached = saved
    is_over = budget.stops and first_reached is not None
    # Never more than hold data once a class is gone.
    holders = int(np.count_nonzero(jax.device_get(data.lengths)))
    steps = iterate(
        algorithm,
        state,
        data,
        key=key,
        cohort_size=config.train.cohort,
        rounds=rounds,
        # A resumed unit that had reached its target has nothing left to train.
        start=rounds if is_over else start,
        evaluate=judge,
        evaluate_every=budget.is_due,
        dropout_rate=config.train.dropout_rate,
        min_participants=min(config.train.min_participants, holders),
    )
    clock = time.monotonic()
    with this.progress.phase(unit, rounds, first_round=start) as update:
        for step in steps:
            number = step.record.round_number
            if is_kept(number - 1, interval):
                # From the state before the round, which the clients started from.
                kept = keep_round(number - 1, state.variables, step.info)
                checkpoint.save_round(this.store.workdir / checkpoint.KEPT_ROUNDS, kept)
            state = step.state
            append_row(this, unit, step.record)
            # From one record to the next, so that no part of a round goes untimed.
            seconds, clock = time.monotonic() - clock, time.monotonic()
            images = int(step.record.metrics["images"])
            this.store.clock_round(unit, number, seconds, images)
            update(number, **{**step.record.metrics, "images": images})
            if first_reached is None and reached(step.record, budget.target, metric):
                first_reached = number
            is_over = budget.stops and first_reached is not None
            # A request to stop is obeyed after a save: the next start loses no round.
            last, stop = is_over or number == rounds, stopping(this)
            if last or stop or number % config.train.checkpoint_every == 0:
                spec = {"model": rebuild.spec(model), "rounds_to_target": first_reached}
                keep = config.train.checkpoint_keep
                where = this.store.checkpoints(unit)
                checkpoint.save(where, number, state, spec=spec, keep=keep)
            if stop:
                raise StopRequested
            if last:
                break
    return FitResult(state, [], first_reached)


def _restore(this: Experiment, unit: str, model, state):
    """(round, state, first round at the target) to go on from, or None."""
    where, spec = this.store.checkpoints(unit), rebuild.spec(model)

    def make_target(saved):
        if saved["model"] != spec:
            raise InputError(
                f"the checkpoint in {where} is of another model; delete "
                f"{this.store.workdir} to start afresh."
            )
        return jax.eval_shape(lambda: state)

    restored = checkpoint.restore(where, make_target)
    if restored is None:
        return None
    start, tree, saved = restored
    this.store.drop_rows(unit, after=start)
    this.progress.note(f"{unit}: continues after round {start}")
    state = replicate(tree, this.setup.mesh)
    return start, state, saved["rounds_to_target"]
