"""One run: pretrain, unlearn by every method asked for, audit, report; resumable.

This is where the pure parts meet files, clocks and signals. The run is a sequence of
units (see `ledger`): a finished one is never repeated, an unfinished one continues from
its last checkpoint, and the files of a run that was killed at any moment and started
again are, clocks apart, those of a run that never was.
"""

import logging
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fuprune import assembly, checkpoint, ledger, logs, runtime
from fuprune import audit as auditing
from fuprune import config as configuration
from fuprune import report as reporting
from fuprune.config import ConfigError, FupruneError
from fuprune.data.federated import drop_classes
from fuprune.federated.cohort import resolve_backend
from fuprune.federated.evaluate import Evaluation, make_evaluator
from fuprune.federated.train import FitResult, iterate, reached
from fuprune.models import zoo
from fuprune.unlearning import history as update_history
from fuprune.unlearning.feature_maps import telling_feature_maps
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.protocol import Stage, UnlearnError, UnlearnResult

_REDUCED = {
    "cifar10": "configs/cifar10_resnet_cpu.py",
    "cifar100": "configs/cifar100_resnet_cpu.py",
}


class StopRequested(Exception):
    """SIGTERM came; everything worth keeping is saved."""


class Run(NamedTuple):
    """What every unit of a run has at hand."""

    config: Any
    workdir: Path
    runtime: runtime.Runtime
    federation: assembly.Federation
    classes: tuple[int, ...]
    key: jax.Array
    metrics: logs.MetricsLog
    timings: logs.TimingsLog
    board: logs.TensorBoardLog | None
    progress: logs.Progress
    stop: threading.Event


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
        heartbeat_seconds=config.runtime.heartbeat_seconds,
        coordinator=coordinator,
        num_processes=num_processes,
        process_id=process_id,
    )
    runtime.check_same_config(configuration.to_json(config))
    if not machine.is_main:
        return _run_locked(config, workdir, machine)
    with logs.WorkdirLock(workdir):
        return _run_locked(config, workdir, machine)


def _run_locked(config, workdir: Path, machine) -> dict[str, Any]:
    stored = workdir / "config.json"
    if stored.exists():
        _refuse_other_config(stored, config)
    federation = assembly.make_federation(config, machine)
    configuration.check_classes(config, federation.num_classes)
    main = machine.is_main
    if main and not stored.exists():
        ledger.write_json(stored, _describe_run(config))
    stop = threading.Event()
    previous = _stop_on_sigterm(stop)
    mode = config.runtime.progress if main else "off"
    with (
        logs.MetricsLog(workdir / "metrics.jsonl" if main else None) as metrics,
        logs.TimingsLog(workdir / "timings.jsonl" if main else None) as timings,
        logs.Progress(
            mode=mode,
            whole_run_rounds=_planned_rounds(config),
            platform=jax.default_backend(),
            reduced_config=_REDUCED.get(config.data.name),
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
        f"{_backend_of(this)} over clients; workdir {this.workdir}"
    )
    if "pretrain" in wanted:
        _unit(this, "pretrain", _pretrain)
    results: dict[str, Any] = {}
    if "unlearn" in wanted:
        for unit in _unlearn_units(config):
            _unit(this, f"unlearn/{unit.name}", lambda r, n, u=unit: _unlearn(r, n, u))
        results = _collect_results(this)
    if "audit" in wanted:
        _unit(this, "audit", _audit)
    if this.runtime.is_main:
        if not results and (this.workdir / "results.json").exists():
            results = _read_json(this.workdir / "results.json")
        _show_tables(results)
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
    _rewind(this)
    start = time.monotonic()
    outcome = work(this, name)
    this.timings.append(
        {"phase": name, "unit_seconds": round(time.monotonic() - start, 3)}
    )
    if this.runtime.is_main:
        ledger.finish(this.workdir, name, outcome, offset=this.metrics.offset())
    runtime.barrier(f"{name} finished")
    return outcome


def _rewind(this: Run) -> None:
    """Cut off what a dead run logged after the last finished unit."""
    offsets = [0]
    for path in (this.workdir / "units").glob("*.json"):
        offsets.append(int(_read_json(path)["offset"]))
    if this.metrics.offset() > max(offsets):
        this.metrics.truncate_to(max(offsets))


def _pretrain(this: Run, name: str) -> dict[str, Any]:
    config = this.config
    model = assembly.make_model(config, this.federation, this.runtime)
    variables = assembly.initial_variables(model, _key(this, "initial"))
    store = None
    if config.train.history_bytes:
        store = update_history.empty(config.train.history_bytes)
    fit = _train(
        this,
        name,
        model,
        variables,
        this.federation.data,
        key=_key(this, "pretrain"),
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
    return {"stages": [_measure(this, "raw", Stage("raw", model, fit.state.variables))]}


class _Unlearn(NamedTuple):
    name: str  # of the unit: the method, with the seed's number behind it
    method: str
    seed: int


def _unlearn_units(config) -> list[_Unlearn]:
    units = []
    for method in configuration.methods(config):
        seeds = {
            "retrain": config.unlearn.retrain_seeds,
            "class_pruning": config.fine_tune.seeds,
        }.get(method, 1)
        for seed in range(seeds):
            suffix = f"_seed{seed + 1}" if seed else ""
            units.append(_Unlearn(f"{method}{suffix}", method, seed))
    return units


def _unlearn(this: Run, name: str, unit: _Unlearn) -> dict[str, Any]:
    """One method from the raw model; an `UnlearnError` is its outcome, not the end."""
    config, method = this.config, unit.method
    raw = _load(this, "raw", "pretrain")
    target = _target_accuracy(this)
    scratch = method == "retrain"
    start = time.monotonic()

    def tune(model, variables, data, key) -> FitResult:
        del key  # all methods see the same cohorts in the same order
        return _train(
            this,
            name,
            model,
            variables,
            data,
            key=jax.random.fold_in(_key(this, "fine_tune"), unit.seed),
            rounds=config.train.rounds if scratch else config.fine_tune.rounds,
            learning_rate=(not scratch and config.fine_tune.learning_rate)
            or config.train.learning_rate,
            schedule=config.train.schedule if scratch else config.fine_tune.schedule,
            warmup=config.train.warmup_rounds,
            target=target,
            metric="r_accuracy",
            stop_at_target=config.fine_tune.stop_at_target and not scratch,
            evaluate_every=config.train.evaluate_every
            if scratch
            else config.fine_tune.evaluate_every,
        )

    options = assembly.method_options(
        config, method, this.federation, this.runtime, classes=this.classes
    )
    if method == "amnesiac":
        options["history"] = update_history.load(this.workdir / "history")
    key = _key(this, f"retrain_{unit.seed}" if scratch else f"unlearn/{method}")
    try:
        result: UnlearnResult = METHODS[method](
            raw[0],
            raw[1],
            this.federation.data,
            this.classes,
            key=key,
            fine_tune=tune,
            **options,
        )
    except UnlearnError as error:
        logging.warning("%s stopped: %s", method, error)
        return {"method": method, "seed": unit.seed, "error": str(error), "stages": []}
    for stage in result.stages:
        path = this.workdir / "models" / f"{unit.name}_{stage.name}"
        checkpoint.save_model(path, stage.model, stage.variables)
    path = this.workdir / "models" / unit.name
    checkpoint.save_model(path, result.model, result.variables)
    last = Stage("fine_tuned" if result.fit else method, result.model, result.variables)
    this.timings.append(
        {"phase": name, "method_seconds": round(time.monotonic() - start, 3)}
    )
    fit = result.fit
    return {
        "method": method,
        "seed": unit.seed,
        "error": None,
        "stages": [
            _measure(this, unit.name, stage)
            for stage in (*(s for s in result.stages if s.name != last.name), last)
        ],
        "rounds": 0 if fit is None else int(fit.state.round_number),
        "rounds_to_target": None if fit is None else fit.rounds_to_target,
        "upload_bytes": int(result.upload_bytes),
        "notes": _plain(dict(result.notes)),
    }


def _train(
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
    """Federated training with logs and checkpoints, from the last one if there is."""
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
            raise ValueError(
                f"the checkpoint in {where} is of another model; delete {this.workdir} "
                "to start afresh."
            )
        return jax.eval_shape(lambda: state)

    restored = checkpoint.restore(where, make_target)
    start, first_reached = 0, None
    if restored is not None:
        start, tree, saved = restored
        state = runtime.replicate(tree, this.runtime)
        first_reached = saved["rounds_to_target"]
        this.metrics.truncate_to(saved["metrics_offset"])
        if store is not None:
            store = update_history.load(this.workdir / "history", rounds=start)
        this.progress.note(f"{unit}: continues after round {start}")
    evaluate = _evaluator(this, model)

    def save(number, state):
        if store is not None:
            update_history.save(this.workdir / "history", store)
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

    history = []
    steps = iterate(
        algorithm,
        state,
        data,
        key=key,
        cohort_size=config.train.cohort,
        rounds=rounds,
        start=start if not (first_reached and stop_at_target) else rounds,
        evaluate=lambda v: _accuracies(evaluate(v), this.classes),
        evaluate_every=evaluate_every,
        dropout_rate=config.train.dropout_rate,
        min_participants=_min_participants(config, data),
    )
    clock, number = time.monotonic(), start
    with this.progress.phase(unit, rounds, first_round=start) as update:
        for step in steps:
            state, number = step.state, step.record.round_number
            history.append(step.record)
            if store is not None:
                store = update_history.record(store, step.info, step.cohort, number)
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
            if last or number % config.train.checkpoint_every == 0 or _stopping(this):
                save(number, state)
            if _stopping(this):
                raise StopRequested
            if last:
                break
    return FitResult(state, history, first_reached)


def _audit(this: Run, name: str) -> dict[str, Any]:
    """Audit every saved model of this run against the retrained ones."""
    config = this.config
    units = [
        unit
        for unit in _unlearn_units(config)
        if _outcome(this, f"unlearn/{unit.name}").get("error") is None
    ]
    retrained = [
        _load(this, unit.name, "unlearn") for unit in units if unit.method == "retrain"
    ]
    if config.audit.retrained:
        retrained = retrained[: config.audit.retrained]
    candidates = {
        unit.name: _load(this, unit.name, "unlearn")
        for unit in units
        if unit.method != "retrain" and not unit.seed
    }
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
            if _stopping(this):
                raise StopRequested

        report = auditing.audit(
            candidates,
            retrained,
            _load(this, "raw", "pretrain"),
            data,
            this.classes,
            _key(this, "audit"),
            on_step=on_step,
            **assembly.audit_options(config),
        )
    if this.runtime.is_main:
        ledger.write_json(this.workdir / "audit.json", report.to_json())
    return {"steps": len(steps)}


def _collect_results(this: Run) -> dict[str, Any]:
    """results.json from the outcomes of the units."""
    config = this.config
    stages = [*_outcome(this, "pretrain").get("stages", [])]
    outcomes = [
        (unit, _outcome(this, f"unlearn/{unit.name}")) for unit in _unlearn_units(config)
    ]
    seconds = _unit_seconds(this.workdir)
    retrain = next((o for u, o in outcomes if u.name == "retrain"), {})
    methods, plans, scores, cuts = [], {}, {}, {}
    for unit, outcome in outcomes:
        stages += outcome["stages"]
        methods.append(
            _method_row(unit, outcome, retrain, seconds.get(f"unlearn/{unit.name}"))
        )
        made = outcome.get("notes", {}).get("cuts")
        if made:
            plans[unit.name] = made[-1]["plan"]
            scores[unit.name] = made[0]["scores"]
            cuts[unit.name] = made[0]["cut"]
    results = {
        "dataset": config.data.name,
        "classes": list(this.classes),
        "class_names": list(this.federation.class_names),
        "model": zoo.spec(assembly.make_model(config, this.federation, this.runtime)),
        "target_accuracy": _target_accuracy(this),
        "stages": stages,
        "methods": methods,
        "plan": plans,
        "scores": scores,
        "cut": cuts,
    }
    pruned = dict((u.name, o) for u, o in outcomes).get("class_pruning", {})
    for note in ("privacy", "privacy_curve"):
        if note in pruned.get("notes", {}):
            results[note] = pruned["notes"][note]
    if this.runtime.is_main:
        if scores.get("class_pruning"):
            results["feature_maps"] = _save_feature_maps(this, pruned)
        ledger.write_json(this.workdir / "results.json", results)
    return results


def _method_row(unit: _Unlearn, outcome, retrain, seconds) -> dict[str, Any]:
    last = outcome["stages"][-1] if outcome["stages"] else {}
    rounds, base = outcome.get("rounds_to_target"), retrain.get("rounds_to_target")
    speedup = base / rounds if base and rounds and unit.method != "retrain" else None
    return {
        "method": unit.name,
        "u_accuracy": last.get("u_accuracy"),
        "r_accuracy": last.get("r_accuracy"),
        "rounds": outcome.get("rounds"),
        "rounds_to_target": rounds,
        "seconds": seconds,
        "upload_bytes": outcome.get("upload_bytes"),
        "speedup": speedup,
        "error": outcome.get("error"),
        "notes": {k: v for k, v in outcome.get("notes", {}).items() if k != "cuts"},
    }


def _save_feature_maps(this: Run, outcome) -> dict[str, Any]:
    """Figure 2: what the most and the least telling channel see on real images."""
    model, variables = _load(this, "raw", "pretrain")
    chosen = telling_feature_maps(
        model,
        variables,
        this.federation.test,
        outcome["notes"]["cuts"][0]["scores"],
        target=this.classes[0],
        prepare=this.federation.prepare,
    )
    path = this.workdir / "feature_maps.npz"
    temporary = this.workdir / ".feature_maps.npz"
    np.savez(temporary, **chosen.arrays)
    temporary.replace(path)
    return {"layer": chosen.layer, "most": chosen.most, "least": chosen.least}


def _show_tables(results: dict[str, Any]) -> None:
    if not results:
        return
    percent = lambda x: None if x is None else f"{100 * x:.2f}%"  # noqa: E731
    logs.print_table(
        [
            {
                "method": row["method"],
                "stage": row["stage"],
                "U-set": percent(row["u_accuracy"]),
                "R-set": percent(row["r_accuracy"]),
            }
            for row in results["stages"]
        ],
        title=f"Accuracy by stage, forgetting class {_listed(results['classes'])}",
    )
    logs.print_table(
        [
            {
                "method": row["method"],
                "U-set": percent(row["u_accuracy"]),
                "R-set": percent(row["r_accuracy"]),
                "rounds to target": row["rounds_to_target"],
                "seconds": row["seconds"],
                "bytes": row["upload_bytes"],
                "speed-up": row["speedup"],
                "error": row["error"],
            }
            for row in results["methods"]
        ],
        title=f"Methods, target R-set accuracy {percent(results['target_accuracy'])}",
    )


def _listed(numbers) -> str:
    return ", ".join(str(n) for n in numbers)


def _measure(this: Run, name: str, stage: Stage) -> dict[str, Any]:
    evaluation = _evaluator(this, stage.model)(stage.variables)
    return {
        "method": name,
        "stage": stage.name,
        **_accuracies(evaluation, this.classes),
        "per_class": [float(x) for x in np.nan_to_num(evaluation.per_class)],
        "confusion": evaluation.confusion.tolist(),
    }


def _accuracies(evaluation: Evaluation, classes) -> dict[str, float]:
    return {
        "accuracy": evaluation.accuracy,
        "u_accuracy": evaluation.accuracy_on(classes),
        "r_accuracy": evaluation.accuracy_without(classes),
        "test_loss": evaluation.loss if np.isfinite(evaluation.loss) else 1e30,
    }


def _evaluator(this: Run, model):
    return make_evaluator(
        model,
        this.federation.test,
        num_classes=this.federation.num_classes,
        preprocess=this.federation.prepare,
        mesh=this.runtime.mesh if _backend_of(this) == "shard_map" else None,
    )


def _backend_of(this: Run) -> str:
    return resolve_backend(
        this.runtime.backend, loops_are_fast=this.runtime.conv == "onednn"
    )[0]


def _target_accuracy(this: Run) -> float | None:
    wanted = this.config.fine_tune.target_accuracy
    if wanted >= 0:
        return wanted or None
    return _outcome(this, "pretrain")["stages"][-1]["r_accuracy"]


def _min_participants(config, data) -> int:
    """The configured number, but never more than can hold data after a class is gone."""
    holders = int(np.count_nonzero(jax.device_get(data.lengths)))
    return min(config.train.min_participants, holders)


def _outcome(this: Run, unit: str) -> dict[str, Any]:
    done = ledger.finished(this.workdir, unit)
    if done is None:
        phase = unit.split("/")[0]
        raise ConfigError(
            f"phases is {this.config.phases!r}, but {unit} has not been run in "
            f"{this.workdir}; add {phase} to phases."
        )
    return done["outcome"]


def _load(this: Run, name: str, phase: str):
    path = this.workdir / "models" / name
    if not path.exists():
        raise ConfigError(
            f"phases is {this.config.phases!r}, but there is no model {path}; add "
            f"{phase} to phases."
        )
    return checkpoint.load(
        path, conv=this.runtime.conv, dtype=assembly.compute_dtype(this.config)
    )


def _key(this: Run, purpose: str) -> jax.Array:
    return jax.random.fold_in(this.key, ledger.seed_of(purpose))


def _stopping(this: Run) -> bool:
    return this.stop.is_set()


def _stop_on_sigterm(stop: threading.Event):
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda *_: stop.set())


def _planned_rounds(config) -> int:
    wanted = configuration.phases(config)
    rounds = config.train.rounds if "pretrain" in wanted else 0
    if "unlearn" in wanted:
        for unit in _unlearn_units(config):
            scratch = unit.method == "retrain"
            rounds += config.train.rounds if scratch else config.fine_tune.rounds
    return rounds


def _unit_seconds(workdir: Path) -> dict[str, float]:
    """Seconds of every method, over all the starts it took."""
    total: dict[str, float] = {}
    path = workdir / "timings.jsonl"
    for row in logs.read_rows(path) if path.exists() else []:
        if "method_seconds" in row or "round" not in row:
            continue
        total[row["phase"]] = total.get(row["phase"], 0.0) + row["seconds"]
    return {phase: round(seconds, 3) for phase, seconds in total.items()}


def _describe_run(config) -> dict[str, Any]:
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    try:
        versions["fuprune"] = metadata.version("fuprune")
    except metadata.PackageNotFoundError:
        from fuprune import __version__

        versions["fuprune"] = __version__
    return {
        "config": configuration.to_json(config),
        "versions": {**versions, "python": platform.python_version()},
        "commit": _commit(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "platform": f"{jax.default_backend()}, {jax.device_count()} device(s)",
    }


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            [git, "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


def _refuse_other_config(stored: Path, config) -> None:
    old = _read_json(stored)
    if not isinstance(old, dict) or not isinstance(old.get("config"), dict):
        raise FupruneError(
            f"{stored} is not the record of a run; choose another --workdir."
        )
    keys = configuration.difference(old["config"], configuration.to_json(config))
    if keys:
        raise ConfigError(
            f"the workdir {stored.parent} holds a run with another value of "
            f"{', '.join(keys)}; choose another --workdir, or delete it."
        )


def _read_json(path: Path) -> Any:
    import json

    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FupruneError(
            f"{path} cannot be read ({type(error).__name__}); delete it, or choose "
            "another --workdir."
        ) from None


def _plain(value: Any) -> Any:
    """Notes in JSON's own types."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _command() -> str:
    return " ".join(["python -m fuprune.main", *sys.argv[1:]])


__all__ = ["Run", "StopRequested", "drop_classes", "run"]
