"""One run: pretrain, unlearn by every method asked for, audit, report; resumable.

This is where the pure parts meet files, clocks and signals. The run is a sequence of
units (see `ledger`): a finished one is never repeated, an unfinished one continues from
its last checkpoint, and the files of a run that was killed at any moment and started
again are, clocks apart, those of a run that never was.
"""

import contextlib
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax

from fuprune import audit as auditing
from fuprune import config as configuration
from fuprune import report as reporting
from fuprune.data.federated import drop_classes
from fuprune.federated.train import FitResult
from fuprune.run import assembly, checkpoint, history_files, ledger, logs, processes
from fuprune.run import machine as runtime
from fuprune.run import models as reference
from fuprune.run.context import (
    Run,
    StopRequested,
    UnlearnUnit,
    backend_of,
    key_for,
    load_model,
    measure,
    outcome_of,
    privacy_units,
    stopping,
    target_accuracy,
    unlearn_units,
)
from fuprune.run.provenance import describe_run, refuse_other_config
from fuprune.run.results import collect_results, show_tables
from fuprune.run.training import train_unit
from fuprune.unlearning import history as update_history
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.privacy_curve import private_cut
from fuprune.unlearning.protocol import (
    FineTune,
    Stage,
    UnlearnError,
    UnlearnResult,
    tree_bytes,
)


def run(
    config,
    workdir: str | Path,
    *,
    coordinator: str = "",
    num_processes: int = 0,
    process_id: int = -1,
) -> dict[str, Any]:
    """Run, or continue, the experiment of `config` in `workdir`.

    Returns:
      results.json as a dictionary; empty if SIGTERM ended the run early.
    """
    configuration.validate(config)
    workdir = Path(workdir)
    machine = runtime.start(
        backend=config.runtime.backend,
        conv=config.runtime.conv,
        devices=config.runtime.devices,
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
        stack.enter_context(processes.explaining_losses())
        if machine.is_main:
            stack.enter_context(logs.WorkdirLock(workdir))
        return _run_locked(config, workdir, machine)


def _run_locked(config, workdir: Path, machine) -> dict[str, Any]:
    stored = workdir / "config.json"
    if stored.exists():
        refuse_other_config(stored, config)
    federation = assembly.make_federation(config, machine)
    configuration.check_classes(config, federation.num_classes)
    configuration.check_clients(config, federation.data.num_clients)
    if "audit" in configuration.phases(config):
        model = assembly.make_model(config, federation, machine)
        reference.check(config, model, [unit.name for unit in unlearn_units(config)])
    main = machine.is_main
    if main and not stored.exists():
        ledger.write_json(stored, describe_run(config))
    stop = threading.Event()
    previous = _stop_on_sigterm(stop)
    mode = config.runtime.progress if main else "off"
    with (
        logs.MetricsLog(workdir / "metrics.jsonl" if main else None) as metrics,
        logs.TimingsLog(workdir / "timings.jsonl" if main else None) as timings,
        logs.Progress(
            mode=mode,
            whole_run_rounds=_rounds_left(config, workdir),
            platform=jax.default_backend(),
            reduced_config=configuration.REDUCED_CONFIG,
        ) as progress,
    ):
        board = None
        if config.runtime.tensorboard and main:
            board = logs.TensorBoardLog(workdir / "tensorboard")
        this = Run(
            config,
            workdir,
            machine,
            federation,
            configuration.classes(config),
            jax.random.key(config.seed),
            metrics,
            timings,
            board,
            progress,
            stop,
        )
        try:
            return _run_phases(this)
        except StopRequested:
            progress.note(
                "Stopped by SIGTERM; everything so far is saved. The same command "
                f"continues: {_command()}"
            )
            return {}
        finally:
            if board is not None:
                board.close()
            if previous is not None:
                signal.signal(signal.SIGTERM, previous)


def _run_phases(this: Run) -> dict[str, Any]:
    config, wanted = this.config, configuration.phases(this.config)
    clients = this.federation.data.num_clients
    this.progress.note(
        f"{config.data.name}: {len(this.federation.train.labels)} training images, "
        f"{clients} clients, {config.train.cohort} a round; {config.model.name}; "
        f"{jax.device_count()} {jax.default_backend()} device(s), "
        f"{this.runtime.conv} convolutions, "
        f"{backend_of(this)} over clients; workdir {this.workdir}"
    )
    if "pretrain" in wanted:
        _unit(this, "pretrain", _pretrain)
    results: dict[str, Any] = {}
    if "unlearn" in wanted:
        for unit in unlearn_units(config):
            _unit(this, f"unlearn/{unit.name}", lambda r, n, u=unit: _unlearn(r, n, u))
        for name, epsilon in privacy_units(config):
            _unit(this, name, lambda r, n, e=epsilon: _privacy_point(r, n, e))
        results = collect_results(this)
    if "audit" in wanted:
        _unit(this, "audit", _audit)
    if this.runtime.is_main:
        if not results and (this.workdir / "results.json").exists():
            results = ledger.read_json(this.workdir / "results.json")
        show_tables(results)
        if "report" in wanted:
            page = reporting.build(this.workdir)
            this.progress.note(f"Report: {page}")
        this.progress.note(f"Written: {this.workdir}")
    return results


def _unit(this: Run, name: str, work) -> dict[str, Any]:
    """Do `work` unless it is already done; keep its outcome."""
    done = ledger.finished(this.workdir, name)
    if done is not None:
        return done["outcome"]
    start = time.monotonic()
    outcome = work(this, name)
    this.timings.append(
        {"phase": name, "unit_seconds": round(time.monotonic() - start, 3)}
    )
    if this.runtime.is_main:
        ledger.finish(this.workdir, name, outcome, offset=this.metrics.offset())
    processes.barrier(f"{name} finished")
    processes.await_file(ledger.path_of(this.workdir, name))
    return outcome


def _pretrain(this: Run, name: str) -> dict[str, Any]:
    config = this.config
    if config.model.load:
        return _adopt(this)
    model = assembly.make_model(config, this.federation, this.runtime)
    variables = assembly.initial_variables(model, key_for(this, "initial"))
    store = None
    if config.train.history_bytes:
        store = update_history.empty(config.train.history_bytes)
    fit = train_unit(
        this,
        name,
        model,
        variables,
        this.federation.data,
        key=key_for(this, "pretrain"),
        rounds=config.train.rounds,
        learning_rate=config.train.learning_rate,
        schedule=config.train.schedule,
        warmup=config.train.warmup_rounds,
        target=config.train.target_accuracy or None,
        metric="accuracy",
        stop_at_target=True,
        evaluate_every=config.train.evaluate_every,
        store=store,
    )
    checkpoint.save_model(this.workdir / "models" / "raw", model, fit.state.variables)
    return {"stages": [measure(this, "raw", Stage("raw", model, fit.state.variables))]}


def _adopt(this: Run) -> dict[str, Any]:
    """Take a model trained elsewhere for the raw one."""
    path = this.config.model.load
    model, variables = checkpoint.load(
        path, conv=this.runtime.conv, dtype=assembly.compute_dtype(this.config)
    )
    wanted = assembly.make_model(this.config, this.federation, this.runtime)
    reference.check_fit("model.load", path, model, wanted)
    checkpoint.save_model(this.workdir / "models" / "raw", model, variables)
    return {"stages": [measure(this, "raw", Stage("raw", model, variables))]}


def _fine_tune(
    this: Run, name: str, *, seed: int = 0, scratch: bool = False
) -> FineTune:
    """What methods are given to train with: the run's fine-tuning, or all of training.

    Args:
      this: the run.
      name: of the unit whose checkpoints and rows these are.
      seed: of the cohorts and batches.
      scratch: train as long and as fast as the raw model did, past the target.

    Returns:
      A `protocol.FineTune`. It ignores its key: with one seed, all methods see the same
      cohorts in the same order.
    """
    config = this.config
    settings = config.train if scratch else config.fine_tune

    def tune(model, variables, data, key) -> FitResult:
        del key
        return train_unit(
            this,
            name,
            model,
            variables,
            data,
            key=jax.random.fold_in(key_for(this, "fine_tune"), seed),
            rounds=settings.rounds,
            learning_rate=settings.learning_rate or config.train.learning_rate,
            schedule=settings.schedule,
            warmup=settings.warmup_rounds,
            target=target_accuracy(this),
            metric="r_accuracy",
            stop_at_target=config.fine_tune.stop_at_target and not scratch,
            evaluate_every=settings.evaluate_every,
        )

    return tune


def _unlearn(this: Run, name: str, unit: UnlearnUnit) -> dict[str, Any]:
    """One method from the raw model; an `UnlearnError` is its outcome, not the end."""
    config, method = this.config, unit.method
    raw = load_model(this, "raw", "pretrain")
    scratch = method == "retrain"
    start = time.monotonic()
    options = assembly.method_options(
        config, method, this.federation, this.runtime, classes=this.classes
    )
    if method == "amnesiac":
        kept = this.workdir / "history"
        options["history"] = history_files.load(kept, raw[1]["params"])
    key = key_for(this, f"retrain_{unit.seed}" if scratch else f"unlearn/{method}")
    try:
        result: UnlearnResult = METHODS[method](
            raw[0],
            raw[1],
            this.federation.data,
            this.classes,
            key=key,
            fine_tune=_fine_tune(this, name, seed=unit.seed, scratch=scratch),
            **options,
        )
    except UnlearnError as error:
        logging.warning("%s stopped: %s", method, error)
        return {"method": method, "seed": unit.seed, "error": str(error), "stages": []}
    for stage in result.stages if result.fit is not None else ():
        path = this.workdir / "models" / f"{unit.name}_{stage.name}"
        checkpoint.save_model(path, stage.model, stage.variables)
    path = this.workdir / "models" / unit.name
    checkpoint.save_model(path, result.model, result.variables)
    stages = list(result.stages)
    if result.fit is not None or not stages:
        name_of_last = "fine_tuned" if result.fit is not None else method
        stages.append(Stage(name_of_last, result.model, result.variables))
    this.timings.append(
        {"phase": name, "method_seconds": round(time.monotonic() - start, 3)}
    )
    fit = result.fit
    return {
        "method": method,
        "seed": unit.seed,
        "error": None,
        "stages": [measure(this, unit.name, stage) for stage in stages],
        "rounds": 0 if fit is None else int(fit.state.round_number),
        "rounds_to_target": None if fit is None else fit.rounds_to_target,
        "upload_bytes": int(result.upload_bytes),
        "model_bytes": tree_bytes(result.variables),
        "notes": ledger.plain(dict(result.notes)),
    }


def _privacy_point(this: Run, name: str, epsilon: float) -> dict[str, Any]:
    """One epsilon of the curve: the cut from noised statistics, and what it does."""
    config = this.config
    raw = load_model(this, "raw", "pretrain")
    cut = private_cut(
        raw[0],
        raw[1],
        this.federation.data,
        this.classes,
        key=key_for(this, "unlearn/class_pruning"),
        epsilon=epsilon,
        **assembly.privacy_curve_options(
            config, this.federation, this.runtime, this.classes
        ),
    )
    after = measure(this, name, Stage("pruned", cut.model, cut.variables))
    point = {
        "epsilon": epsilon,
        "u_accuracy": after["u_accuracy"],
        "r_accuracy": after["r_accuracy"],
        "overlap": cut.overlap,
        "sigma_total": cut.statement["sigma_total"],
        "sigma_count": cut.statement["sigma_count"],
    }
    if config.privacy.curve_fine_tune:
        left = drop_classes(this.federation.data, this.classes)
        key = key_for(this, "unlearn/class_pruning")
        fit = _fine_tune(this, name)(cut.model, cut.variables, left, key)
        stage = Stage("fine_tuned", cut.model, fit.state.variables)
        tuned = measure(this, name, stage)
        point["fine_tuned_u_accuracy"] = tuned["u_accuracy"]
        point["fine_tuned_r_accuracy"] = tuned["r_accuracy"]
        point["rounds_to_target"] = fit.rounds_to_target
    return ledger.plain(point)


def _audit(this: Run, name: str) -> dict[str, Any]:
    """Audit every saved model of this run against the retrained ones."""
    config = this.config
    units = [
        unit
        for unit in unlearn_units(config)
        if outcome_of(this, f"unlearn/{unit.name}").get("error") is None
    ]
    retrained = [
        load_model(this, unit.name, "unlearn")
        for unit in units
        if unit.method == "retrain"
    ]
    how = {"conv": this.runtime.conv, "dtype": assembly.compute_dtype(config)}
    retrained += [
        checkpoint.load(folder, **how) for folder in reference.retrained_models(config)
    ]
    if config.audit.retrained:
        retrained = retrained[: config.audit.retrained]
    candidates = {
        unit.name: load_model(this, unit.name, "unlearn")
        for unit in units
        if unit.method != "retrain" and not unit.seed
    }
    for model, folder in reference.further_models(config).items():
        candidates[model] = checkpoint.load(folder, **how)
    prepare = this.federation.prepare
    data = auditing.AuditData(
        this.federation.train, this.federation.test, lambda x: prepare(None, x)
    )
    steps: list[str] = []
    with this.progress.phase(name, 0) as update:
        del update

        def on_step(text):
            steps.append(text)
            this.progress.note(f"audit: {text}")
            if stopping(this):
                raise StopRequested

        report = auditing.audit(
            candidates,
            retrained,
            load_model(this, "raw", "pretrain"),
            data,
            this.classes,
            key_for(this, "audit"),
            on_step=on_step,
            **assembly.audit_options(config),
        )
    if this.runtime.is_main:
        ledger.write_text(this.workdir / "audit.json", report.to_json())
    return {"steps": len(steps)}


def _stop_on_sigterm(stop: threading.Event):
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda *_: stop.set())


def _rounds_left(config, workdir: Path) -> int:
    """Rounds of all units that have not finished in the workdir."""
    wanted, rounds = configuration.phases(config), {}
    if "pretrain" in wanted and not config.model.load:
        rounds["pretrain"] = config.train.rounds
    if "unlearn" in wanted:
        for unit in unlearn_units(config):
            scratch = unit.method == "retrain"
            tuned = config.train.rounds if scratch else config.fine_tune.rounds
            rounds[f"unlearn/{unit.name}"] = tuned
        if config.privacy.curve_fine_tune:
            for name, _ in privacy_units(config):
                rounds[name] = config.fine_tune.rounds
    return sum(
        number
        for unit, number in rounds.items()
        if not ledger.path_of(workdir, unit).exists()
    )


def _command() -> str:
    return " ".join(["python -m fuprune.main", *sys.argv[1:]])
