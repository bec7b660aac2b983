"""One run: pretrain, unlearn by every method asked for, audit, report; resumable.

This is where the pure parts meet files, clocks and signals. A finished step is never
repeated, an unfinished one continues from its last checkpoint, and the files of a run
that was killed at any moment and started again are, clocks apart, those of a run that
never was. results.json is written after every unit, so that a report can be made while
the run goes on.
"""

import contextlib
import dataclasses
import functools
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from fuprune import config as configuration
from fuprune import report as reporting
from fuprune import results
from fuprune.files import write_whole
from fuprune.results import (
    FeatureMapsRow,
    MethodOutcome,
    PicturesRow,
    RunRecord,
    TrainedOutcome,
)
from fuprune.run import (
    auditing,
    build,
    models,
    processes,
    provenance,
    steps,
    trackers,
)
from fuprune.run import machine as runtime
from fuprune.run.data import Federation, describe_sets, load_data
from fuprune.run.loop import (
    Experiment,
    OnRow,
    StopRequested,
    backend_of,
    choice_split,
    outcome_of,
)
from fuprune.run.progress import Progress
from fuprune.run.store import AuditOutcome, Store, lock_workdir
from fuprune.surgery import rebuild

# What a run names when it would take a CPU more than a day.
REDUCED_CONFIG = "cifar10_resnet_cpu"


def run(
    config,
    workdir: str | Path,
    *,
    coordinator: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    on_row: Sequence[OnRow] = (),
    command: Sequence[str] = (),
    load: Callable[[Any, runtime.Runtime], Federation] = load_data,
) -> RunRecord | None:
    """Run, or continue, the experiment of `config` in `workdir`.

    Args:
      config: from `config.default` or a config file.
      workdir: where the run writes.
      coordinator: `host:port` of process 0, if there are several processes.
      num_processes: with `coordinator`.
      process_id: with `coordinator`.
      on_row: functions that get every row of metrics.jsonl as it is written.
      command: the command line that asks for the run, to be recorded; none for a
        program or a notebook.
      load: gives the data, from the config and the machine; clients may be elsewhere.

    Returns:
      results.json; None if SIGTERM ended the run early or no unit has finished.
    """
    configuration.validate(config)
    machine = runtime.start(
        backend=config.runtime.backend,
        conv=build.convolutions(config),
        devices=config.runtime.devices,
        compilation=config.runtime.compilation,
        compilation_cache=config.runtime.compilation_cache,
        cohort=config.train.cohort,
        heartbeat_seconds=config.runtime.heartbeat_seconds,
        join_seconds=config.runtime.join_seconds,
        coordinator=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        config=configuration.to_json(config),
    )
    config = dataclasses.replace(config, runtime=dataclasses.replace(config.runtime))
    # In the record stands what was computed with, and another machine that would
    # choose otherwise does not continue the run.
    config.runtime.dtype = runtime.choose_dtype(config.runtime.dtype, machine.conv)
    store = Store(Path(workdir), writes=machine.is_main)
    with contextlib.ExitStack() as stack:
        if machine.is_main:
            stack.enter_context(lock_workdir(workdir))
        federation = functools.partial(load, config, machine)
        opened = _open(config, store, machine, tuple(on_row), command, federation)
        this = stack.enter_context(opened)
        try:
            return _run_steps(this)
        except StopRequested:
            again = f"command continues: {shlex.join(command)}"
            again = again if command else "call continues."
            this.progress.note(
                f"Stopped by SIGTERM; everything so far is saved. The same {again}"
            )
            return None
        except jax.errors.JaxRuntimeError as error:
            if machine.process_count == 1:
                raise
            raise processes.RuntimeSetupError(
                f"process {machine.process_index} of {machine.process_count} stopped "
                f"({' '.join(str(error).split())[:200]}); if another one died, see its "
                "output, and start all again with the same command."
            ) from error


@contextlib.contextmanager
def _open(
    config,
    store: Store,
    machine,
    on_row: tuple[OnRow, ...],
    command: Sequence[str],
    load: Callable[[], Federation],
) -> Iterator[Experiment]:
    """The run with its data, checked before anything is written."""
    provenance.refuse_other_config(store, config)
    federation = load()
    configuration.check_counts(
        config, federation.data.num_clients, federation.num_classes
    )
    backend = federation.clients or machine.backend
    setup = build.Setup(config, federation, backend, machine.mesh, machine.conv)
    model = build.make_model(setup)
    units = tuple(build.unlearn_units(config))
    elsewhere = models.from_elsewhere(setup, model, units, store)
    made_by = provenance.of_run(config, store, command)
    if store.writes:
        write_whole(store.workdir / "config.json", results.dumps(made_by))
    processes.await_file(store.workdir / "config.json", seconds=20)
    store.open_logs()
    stop = threading.Event()
    with (
        _stopping_on_sigterm(stop),
        contextlib.ExitStack() as stack,
        Progress(
            mode=config.runtime.progress if store.writes else "off",
            whole_run_rounds=build.rounds_left(config, units, store),
            audit_follows=build.is_audit_due(config, store),
            platform=jax.default_backend(),
            reduced_config=REDUCED_CONFIG,
        ) as progress,
    ):
        if store.writes and config.runtime.tensorboard:
            tracker = trackers.tensorboard(store.workdir / "tensorboard")
            on_row = (*on_row, stack.enter_context(tracker))
        yield Experiment(
            setup, units, store, made_by, elsewhere, on_row, progress, stop
        )


@contextlib.contextmanager
def _stopping_on_sigterm(stop: threading.Event):
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run_steps(this: Experiment) -> RunRecord | None:
    store, wanted = this.store, build.steps_wanted(this.config)
    _announce(this)
    record = None
    if "pretrain" in wanted:
        work = functools.partial(steps.pretrain, this)
        store.do("pretrain", TrainedOutcome, work)
        record = _write_record(this)
    if "unlearn" in wanted:
        for unit in this.units:
            work = functools.partial(steps.unlearn, this, unit)
            store.do(unit.phase, MethodOutcome, work)
            _write_record(this)
        if (outcome := steps.cut_of_channels(this)) is not None:
            work = functools.partial(steps.feature_maps, this, outcome)
            store.do("feature_maps", FeatureMapsRow, work)
        work = functools.partial(steps.pictures, this)
        store.do("pictures", PicturesRow, work)
        record = _write_record(this)
        store.finish("unlearn", {"names": [unit.name for unit in this.units]})
    if "audit" in wanted:
        work = functools.partial(auditing.audit, this, "audit")
        store.do("audit", AuditOutcome, work)
    return _show(this, record) if store.writes else record


def _announce(this: Experiment) -> None:
    """Says what the run is, and warns of what its request leaves without data."""
    config, federation = this.config, this.federation
    images = len(federation.train.labels) if federation.clients is None else "their own"
    this.progress.note(
        f"{config.data.name}: {images} training images, "
        f"{federation.data.num_clients} clients, {config.train.cohort} per round; "
        f"{config.model.name}; {jax.device_count()} {jax.default_backend()} device(s), "
        f"{this.setup.conv} convolutions, {backend_of(this)} over clients; "
        f"workdir {this.store.workdir}"
    )
    if "unlearn" in configuration.phases(config):
        for line in build.describe_absences(config, federation):
            this.progress.note(f"Warning: {line}")


def _write_record(this: Experiment) -> RunRecord | None:
    """Writes results.json: the rows of the units that have finished, and their costs.

    Only the main process does.
    """
    config, store, federation = this.config, this.store, this.federation
    if not store.writes:
        return None
    trained = outcome_of(this, "pretrain", TrainedOutcome)
    found = [store.read(unit.phase, MethodOutcome) for unit in this.units]
    outcomes = [one for one in found if one is not None]
    record = RunRecord(
        provenance=this.provenance,
        dataset=config.data.name,
        model=rebuild.spec(build.make_model(this.setup)),
        classes=list(this.classes),
        request=describe_sets(
            this.request, len(federation.forgotten.labels), len(federation.test.labels)
        ),
        class_names=list(federation.class_names),
        chosen_on=choice_split(this)[0],
        stages=[trained.stage, *(s for one in outcomes for s in one.stages)],
        methods=[one.row for one in outcomes],
        cuts={one.row.name: one.cuts for one in outcomes if one.cuts},
        privacy=next((one.privacy for one in outcomes if one.privacy), {}),
        feature_maps=store.read("feature_maps", FeatureMapsRow),
        targets={
            "raw_masked": trained.masked_r_accuracy,
            "configured": steps.target_accuracy(this),
        },
    )
    workdir = store.workdir
    curves, clocks = results.read_curves(workdir), results.read_clocks(workdir)
    record = results.with_costs(record, curves, clocks)
    write_whole(workdir / "results.json", results.dumps(record))
    return record


def _show(this: Experiment, record: RunRecord | None) -> RunRecord | None:
    """Prints the tables, makes the report, and says what was found."""
    workdir = this.store.workdir
    if record is None and (workdir / "results.json").exists():
        record = results.read_run(workdir).record
    wanted = "report" in configuration.phases(this.config)
    written = reporting.build(workdir) if wanted else workdir
    if record is None or not record.methods:
        this.progress.note(f"Written: {written}")
        return record
    # The audit may be of an earlier start of this run.
    table, lines = reporting.closing(workdir, written)
    this.progress.note(table)
    this.progress.note(f"\n{lines}")
    return record
