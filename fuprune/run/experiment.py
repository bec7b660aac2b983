"""One run: pretrain, unlearn by every method asked for, audit, report; resumable.

A finished step is never repeated, an unfinished one continues from its last checkpoint,
and the files of a run that was killed at any moment and started again are, clocks
apart, those of a run that never was.
"""

import contextlib
import copy
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
from fuprune.results import RunRecord
from fuprune.run import build, models, processes, provenance, steps
from fuprune.run import machine as runtime
from fuprune.run.data import Federation, describe_sets, load_data
from fuprune.run.loop import (
    Experiment,
    OnRow,
    StopRequested,
    backend_of,
    choice_split,
)
from fuprune.run.progress import Progress, tensorboard
from fuprune.run.store import Store, lock_workdir
from fuprune.surgery import rebuild


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
        conv=build.convolutions(config),
        cohort=config.train.cohort,
        coordinator=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        config=configuration.to_json(config),
        **{name: getattr(config.runtime, name) for name in _OF_THE_MACHINE},
    )
    config = copy.deepcopy(config)
    # In the record stands what was computed with, and another machine that would
    # choose otherwise does not continue the run.
    config.runtime.dtype = runtime.choose_dtype(config.runtime.dtype, machine.conv)
    with contextlib.ExitStack() as stack:
        if machine.is_main:
            stack.enter_context(lock_workdir(workdir))
        store = Store(Path(workdir), writes=machine.is_main)
        setup, units, elsewhere = _prepare(config, machine, store, load, command)
        if store.writes and config.runtime.tensorboard:
            tracker = tensorboard(store.workdir / "tensorboard")
            on_row = (*on_row, stack.enter_context(tracker))
        progress = stack.enter_context(
            Progress(
                mode=config.runtime.progress if store.writes else "off",
                whole_run_rounds=build.rounds_left(config, units, store),
            )
        )
        stop = stack.enter_context(_stop_on_sigterm())
        this = Experiment(setup, units, store, elsewhere, tuple(on_row), progress, stop)
        try:
            return _run_steps(this)
        except StopRequested:
            again = f"command continues: {shlex.join(command)}"
            again = again if command else "call continues."
            progress.note(
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


_OF_THE_MACHINE = ("backend", "devices", "compilation", "compilation_cache")
_OF_THE_MACHINE += ("heartbeat_seconds", "join_seconds")


def _prepare(
    config, machine: runtime.Runtime, store: Store, load, command: Sequence[str]
) -> tuple[build.Setup, tuple[build.UnlearnUnit, ...], models.Elsewhere]:
    """The parts of the run, checked before anything is written."""
    adds = provenance.refuse_other_config(store, config)
    if adds and store.writes:
        (store.workdir / "audit.json").unlink(missing_ok=True)  # lacks what is added
    processes.any_process(False)
    federation = load(config, machine)
    configuration.check_counts(
        config, federation.data.num_clients, federation.num_classes
    )
    backend = federation.clients or machine.backend
    setup = build.Setup(config, federation, backend, machine.mesh, machine.conv)
    model = build.make_model(setup)
    units = tuple(build.unlearn_units(config))
    elsewhere = models.from_elsewhere(setup, model, units, store)
    made_by = provenance.of_run(config, store, command)
    store.record = dataclasses.replace(
        store.record,
        provenance=made_by,
        dataset=config.data.name,
        model=rebuild.spec(model),
        classes=list(federation.request.classes),
        class_names=list(federation.class_names),
        chosen_on=choice_split(config, federation)[0],
        request=describe_sets(
            federation.request,
            len(federation.forgotten.labels),
            len(federation.test.labels),
        ),
    )
    place = store.workdir / "config.json"
    if store.writes:
        write_whole(place, results.dumps(made_by))
    processes.await_file(place, seconds=20)
    store.open_logs()
    store.save()
    return setup, units, elsewhere


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set handlers
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run_steps(this: Experiment) -> RunRecord | None:
    """Pretrain, forget with each method, show what was cut, audit, report."""
    store, wanted = this.store, configuration.phases(this.config)
    _announce(this)
    # To adopt a model is to have pretrained.
    adopts = this.config.model.load and {"unlearn", "audit"} & set(wanted)
    if "pretrain" in wanted or adopts:
        store.do("pretrain", lambda: steps.pretrain(this))
    if "unlearn" in wanted:
        for unit in this.units:
            store.do(unit.phase, functools.partial(steps.unlearn, this, unit))
        if (cut := steps.cut_of_channels(this)) is not None:
            store.do("feature_maps", lambda: steps.feature_maps(this, cut))
        store.do("pictures", lambda: steps.pictures(this))
    if "audit" in wanted:
        store.do("audit", lambda: steps.audit(this))
    return _show(this) if store.writes else None


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


def _show(this: Experiment) -> RunRecord | None:
    """Prints the tables, makes the report, and says what was found."""
    workdir, record = this.store.workdir, this.store.record
    wanted = "report" in configuration.phases(this.config)
    written = reporting.build(workdir) if wanted else workdir
    if record.methods:
        # The audit may be of an earlier start of this run.
        table, lines = reporting.closing(workdir, written)
        this.progress.note(table)
        this.progress.note(f"\n{lines}")
    else:
        this.progress.note(f"Written: {written}")
    return this.store.costed() if record.stages else None
