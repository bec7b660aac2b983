"""One run: pretrain, unlearn by every method asked for, audit, report; resumable.

This is where the pure parts meet files, clocks and signals. The run is a sequence of
units (see `training`): a finished one is never repeated, an unfinished one continues
from its last checkpoint, and the files of a run that was killed at any moment and
started again are, clocks apart, those of a run that never was. results.json is written
after every unit, so that a report can be made while the run goes on.
"""

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from fuprune import config as configuration
from fuprune import report as reporting
from fuprune import results
from fuprune.audit.evidence import AuditReport
from fuprune.audit.probe import import_classifiers
from fuprune.files import write_whole
from fuprune.report import prose
from fuprune.results import (
    FeatureMapsRow,
    MethodOutcome,
    PrivacyPoint,
    RunRecord,
    TrainedOutcome,
)
from fuprune.run import (
    agenda,
    assembly,
    auditing,
    files,
    kept_files,
    logs,
    models,
    processes,
    provenance,
    trackers,
    units,
)
from fuprune.run import machine as runtime
from fuprune.run.data import describe_sets, load_data
from fuprune.run.files import AuditOutcome, UnlearnedUnits
from fuprune.run.progress import Progress, show_record
from fuprune.run.training import (
    OnRow,
    Run,
    StopRequested,
    backend_of,
    choice_split,
    finish_unit,
    outcome_of,
)
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
) -> RunRecord | None:
    """Run, or continue, the experiment of `config` in `workdir`.

    Args:
      config: from `config.default` or a config file.
      workdir: where the run writes.
      coordinator: `host:port` of process 0, if there are several processes.
      num_processes: with `coordinator`.
      process_id: with `coordinator`.
      on_row: functions that get every row of metrics.jsonl as it is written.

    Returns:
      results.json; None if SIGTERM ended the run early or no unit has finished.
    """
    configuration.validate(config)
    workdir = Path(workdir)
    if agenda.is_audit_due(config, workdir):
        # Here, where a compiler may be at work on the kernels, it costs no time.
        import_classifiers()
    machine = runtime.start(
        backend=config.runtime.backend,
        conv=assembly.convolutions(config),
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
    processes.check_shared(workdir)
    with contextlib.ExitStack() as stack:
        if machine.is_main:
            stack.enter_context(files.lock_workdir(workdir))
        this = stack.enter_context(_open(config, workdir, machine, tuple(on_row)))
        try:
            return _run_phases(this)
        except StopRequested:
            this.progress.note(
                "Stopped by SIGTERM; everything so far is saved. The same command "
                f"continues: {' '.join(['python -m fuprune.main', *sys.argv[1:]])}"
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
def _open(config, workdir: Path, machine, on_row: tuple[OnRow, ...]) -> Iterator[Run]:
    """The run with its data, logs and signal handler; everything is checked first."""
    stored = workdir / "config.json"
    if stored.exists():
        provenance.refuse_other_config(workdir, config)
    federation = load_data(config, machine)
    configuration.check_counts(
        config, federation.data.num_clients, federation.num_classes
    )
    model = assembly.make_model(assembly.Setup(config, federation, machine))
    if config.train.history_interval:
        initial = functools.partial(assembly.initial_variables, model)
        shapes = jax.eval_shape(initial, jax.random.key(0))
        kept_files.check_room(config, shapes, workdir)
    if agenda.is_audit_due(config, workdir):
        names = [unit.name for unit in agenda.unlearn_units(config)]
        models.check(config, model, names)
    main = machine.is_main
    made_by = provenance.of_run(config, workdir)
    if main:
        write_whole(stored, results.dumps(made_by))
    stop = threading.Event()
    with (
        _stopping_on_sigterm(stop),
        logs.RowLog(workdir / "metrics.jsonl" if main else None) as metrics,
        logs.RowLog(workdir / "timings.jsonl" if main else None) as timings,
        contextlib.ExitStack() as stack,
        Progress(
            mode=config.runtime.progress if main else "off",
            whole_run_rounds=agenda.rounds_left(config, workdir),
            platform=jax.default_backend(),
            reduced_config=REDUCED_CONFIG,
        ) as progress,
    ):
        if main and config.runtime.tensorboard:
            tracker = trackers.tensorboard(workdir / "tensorboard")
            on_row = (*on_row, stack.enter_context(tracker))
        yield Run(
            config,
            workdir,
            made_by,
            machine,
            federation,
            jax.random.key(config.seed),
            metrics,
            timings,
            on_row,
            progress,
            stop,
            algorithms={},
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


def _run_phases(this: Run) -> RunRecord | None:
    config, wanted = this.config, configuration.phases(this.config)
    this.progress.note(
        f"{config.data.name}: {len(this.federation.train.labels)} training images, "
        f"{this.federation.data.num_clients} clients, {config.train.cohort} per round; "
        f"{config.model.name}; {jax.device_count()} {jax.default_backend()} device(s), "
        f"{this.runtime.conv} convolutions, {backend_of(this)} over clients; "
        f"workdir {this.workdir}"
    )
    if "unlearn" in wanted:
        for line in agenda.describe_absences(config, this.federation):
            this.progress.note(f"Warning: {line}")
    record = None
    if "pretrain" in wanted:
        finish_unit(this, "pretrain", TrainedOutcome, units.pretrain)
        record = _write_record(this)
    if "unlearn" in wanted:
        outcome_of(this, "pretrain", TrainedOutcome)
        for unit in agenda.unlearn_units(config):
            work = functools.partial(units.unlearn, unit=unit)
            finish_unit(this, f"unlearn/{unit.name}", MethodOutcome, work)
            _write_record(this)
        for name, epsilon in agenda.privacy_units(config):
            work = functools.partial(units.privacy_point, epsilon=epsilon)
            finish_unit(this, name, PrivacyPoint, work)
        if units.has_maps(this):
            finish_unit(this, "feature_maps", FeatureMapsRow, units.feature_maps)
        record = _write_record(this)
        if this.runtime.is_main:
            names = [unit.name for unit in agenda.unlearn_units(config)]
            offset = this.metrics.offset()
            files.finish(this.workdir, "unlearn", UnlearnedUnits(names), offset=offset)
    if "audit" in wanted:
        finish_unit(this, "audit", AuditOutcome, auditing.audit)
    if record is None and (this.workdir / "results.json").exists():
        record = results.read_run(this.workdir).record
    if this.runtime.is_main:
        if record is not None:
            show_record(record)
        if "report" in wanted:
            this.progress.note(f"Report: {reporting.build(this.workdir)}")
        this.progress.note(f"Written: {this.workdir}")
        if record is not None and record.methods:
            # The audit may be of an earlier start of this run.
            read = results.read_run(this.workdir, AuditReport.from_json)
            screen = prose.first_screen(read.record, read.audit)
            this.progress.prose(f"\n{prose.as_text(screen)}")
    return record


def _write_record(this: Run) -> RunRecord | None:
    """Writes results.json: the rows of the units that have finished, and their costs.

    Only the main process does.
    """
    if not this.runtime.is_main:
        return None
    config, workdir = this.config, this.workdir
    finished = functools.partial(files.finished, workdir)
    trained = outcome_of(this, "pretrain", TrainedOutcome)
    outcomes = [
        outcome
        for unit in agenda.unlearn_units(config)
        if (outcome := finished(f"unlearn/{unit.name}", MethodOutcome)) is not None
    ]
    points = [finished(name, PrivacyPoint) for name, _ in agenda.privacy_units(config)]
    record = RunRecord(
        provenance=this.provenance,
        dataset=config.data.name,
        model=rebuild.spec(assembly.make_model(this.setup)),
        classes=list(this.classes),
        request=describe_sets(
            this.request,
            len(this.federation.forgotten.labels),
            len(this.federation.test.labels),
        ),
        class_names=list(this.federation.class_names),
        chosen_on=choice_split(this)[0],
        stages=[trained.stage, *(s for one in outcomes for s in one.stages)],
        methods=[one.row for one in outcomes],
        cuts={one.row.name: one.cuts for one in outcomes if one.cuts},
        privacy=next((one.privacy for one in outcomes if one.privacy), {}),
        privacy_curve=[point for point in points if point is not None],
        feature_maps=finished("feature_maps", FeatureMapsRow),
        targets={
            "raw_masked": trained.masked_r_accuracy,
            "configured": units.target_accuracy(this),
        },
    )
    curves, clocks = results.read_curves(workdir), results.read_clocks(workdir)
    record = results.with_costs(record, curves, clocks)
    write_whole(workdir / "results.json", results.dumps(record))
    return record
