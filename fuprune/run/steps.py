"""The steps of a run: train the raw model, forget by one method, show, audit.

Each returns its part of the run's record, which `store.Store.do` keeps; `build` says
which units there are.
"""

import contextlib
import logging
import time
from typing import Any

import jax
import numpy as np

from fuprune import results
from fuprune.audit import AuditData, RequestData
from fuprune.audit.audit import audit as audit_classes
from fuprune.audit.audit import audit_request
from fuprune.audit.backdoor import TARGET, triggered
from fuprune.audit.outputs import logits_of, prepare
from fuprune.errors import UnlearnError
from fuprune.federated.objective import Objective
from fuprune.federated.train import FitResult, Record
from fuprune.files import write_whole
from fuprune.report.subject import tested_among
from fuprune.results import (
    CutRow,
    FeatureMapsRow,
    LayerRow,
    MethodRow,
    Pictures,
    PicturesRow,
    RunRecord,
)
from fuprune.run import build, checkpoint, machine
from fuprune.run.build import Budget, UnlearnUnit, make_budget
from fuprune.run.loop import (
    Experiment,
    append_row,
    judged_name,
    key_for,
    make_judge,
    measure,
    row_of,
    stop_if_asked,
    train_unit,
)
from fuprune.surgery import layer_names
from fuprune.unlearning.feature_maps import telling_feature_maps
from fuprune.unlearning.head import MASKED_LOGIT, set_rows
from fuprune.unlearning.job import FineTune, Stage, UnlearnResult, tree_bytes
from fuprune.unlearning.methods import METHODS


def pretrain(this: Experiment) -> RunRecord:
    """Train the raw model, or take one that was trained elsewhere."""
    train = this.config.train
    if this.elsewhere.raw is not None:
        model, variables = this.elsewhere.raw
    else:
        model = build.make_model(this.setup)
        budget = Budget(
            build.training_schedule(train),
            is_due=lambda number: number % train.evaluate_every == 0,
            target=train.target_accuracy or None,
            metric="accuracy",
            stops=True,
        )
        fit = train_unit(
            this,
            "pretrain",
            model,
            build.initial_variables(model, key_for(this, "initial")),
            this.federation.data,
            budget,
            key=key_for(this, "pretrain"),
            interval=train.history_interval,
        )
        variables = fit.state.variables
    checkpoint.save_model(this.store.model("raw"), model, variables)
    judge, metric = make_judge(this, model), judged_name(this, "r_accuracy")
    masked = None
    # A network may have no dense layer, or no bias of it, at its end.
    with contextlib.suppress(UnlearnError):
        if this.classes:
            head = build.head_option(model, variables).get("head", "")
            # The raw model that never answers with a forgotten class: what the R-set
            # would gain from the class being gone, without any forgetting.
            masked = set_rows(variables, this.classes, bias=MASKED_LOGIT, head=head)
    # What fine-tuning aims at: 0 is no target, -1 what the raw model has.
    wanted = this.config.fine_tune.target_accuracy
    target = judge(variables).get(metric) if wanted < 0 else wanted or None
    return RunRecord(
        stages=[measure(this, "raw", Stage("raw", model, variables))],
        targets={
            "raw_masked": None if masked is None else judge(masked).get(metric),
            "configured": target,
        },
    )


class _Stopwatch:
    """Seconds of a method's own work, logged before each training and at the end.

    Those in which jax traced and compiled are counted apart.
    """

    def __init__(self, this: Experiment, unit: str):
        self._this, self._unit = this, unit
        self.start()

    def start(self) -> None:
        self._since, self._compiling = time.monotonic(), machine.compiling_seconds()

    def log(self, made: Any) -> None:
        jax.block_until_ready(made)  # or its making would count as what follows
        seconds = time.monotonic() - self._since
        compiling = min(machine.compiling_seconds() - self._compiling, seconds)
        self._this.store.clock(
            self._unit, own_seconds=round(seconds, 3), compiling=round(compiling, 3)
        )


def _fine_tune(
    this: Experiment,
    name: str,
    budget: Budget,
    watch: _Stopwatch,
    taught: Objective | None = None,
) -> FineTune:
    """What a method is given to train with: a unit of the run, within the budget.

    `taught` is what the config wants minimised, if it is not the cross-entropy; a
    method that brings an objective of its own keeps it.
    """

    def tune(model, variables, data, key, objective=None) -> FitResult:
        objective = taught if objective is None else objective
        watch.log(variables)
        given = (model, variables, data, budget)
        fit = train_unit(this, name, *given, key=key, objective=objective)
        watch.start()
        return fit

    return tune


def unlearn(this: Experiment, unit: UnlearnUnit) -> RunRecord:
    """One method from the raw model; an `UnlearnError` is its result, not the end."""
    name, method, budget = unit.phase, unit.method, METHODS[unit.method].budget
    model, variables = this.raw
    options = build.method_options(this.setup, method)
    options |= build.head_option(model, variables)
    workdir = this.store.workdir
    if METHODS[method].needs:
        kept = workdir / checkpoint.KEPT_ROUNDS
        options |= {
            "kept_rounds": checkpoint.RoundFiles(kept, variables),
            "server": build.make_server(this.config.train),
            "replay": build.make_replay(this.setup, model),
        }
    # Several processes could find different files when they start a replay again.
    if jax.process_count() == 1 or not METHODS[method].needs:
        options["checkpoints"] = checkpoint.CheckpointFiles(
            workdir / unit.name, variables, on_write=lambda: stop_if_asked(this)
        )
    how = make_budget(this.config, budget, this.store.record.targets.get("configured"))
    watch = _Stopwatch(this, name)
    taught = None
    if budget == "fine_tune":
        # Training from scratch has no teacher: it is what fine-tuning is compared with.
        taught = build.fine_tune_objective(this.config, model, variables, this.classes)
    try:
        result: UnlearnResult = METHODS[method](
            model,
            variables,
            this.federation.data,
            this.federation.request,
            # The same for every method with this seed, so that all see the same
            # cohorts and batches in the same order.
            key=jax.random.fold_in(key_for(this, "unlearn"), unit.seed),
            fine_tune=_fine_tune(this, name, how, watch, taught),
            **options,
        )
    except UnlearnError as error:
        logging.warning("%s stopped: %s", method, error)
        stopped = MethodRow(unit.name, method, unit.seed, error=str(error))
        return RunRecord(methods=[stopped])
    watch.log(result.variables)
    if result.fit is None:
        # Nothing was trained, so that round 0 is all there is to its curve.
        this.store.drop_rows(name, after=-1)
        judged = make_judge(this, result.model)(result.variables)
        append_row(this, name, Record(0, judged))
    notes = results.to_plain(dict(result.notes))
    stages = [
        measure(this, unit.name, stage) for stage in _save_stages(this, unit, result)
    ]
    cuts, privacy = notes.pop("cuts", []), notes.pop("privacy", {})
    for cut in cuts:
        cut["class_id"], cut["removed"] = cut.pop("class"), cut.pop("cut")
        cut["layers"] = [LayerRow(**layer) for layer in cut.pop("plan")]
    row = MethodRow(
        unit.name,
        method,
        unit.seed,
        u_accuracy=stages[-1].u_accuracy,
        r_accuracy=stages[-1].r_accuracy,
        rounds=0 if result.fit is None else int(result.fit.state.round_number),
        statistics_bytes=int(result.upload_bytes),
        model_bytes=tree_bytes(result.variables),
        notes=notes,
    )
    rows = {unit.name: [CutRow(**cut) for cut in cuts]} if cuts else {}
    return RunRecord(stages=stages, methods=[row], cuts=rows, privacy=privacy)


def _save_stages(
    this: Experiment, unit: UnlearnUnit, result: UnlearnResult
) -> list[Stage]:
    """Saves the models that a method made, and lists them, the last one last."""
    stages = list(result.stages)
    if result.fit is not None:
        for stage in stages:
            path = this.store.model(f"{unit.name}_{stage.name}")
            checkpoint.save_model(path, stage.model, stage.variables)
    checkpoint.save_model(this.store.model(unit.name), result.model, result.variables)
    # A method that trains by itself lists its result as its last stage.
    if result.fit is not None or not stages:
        last = "fine_tuned" if result.fit is not None else unit.method
        stages.append(Stage(last, result.model, result.variables))
    return stages


def cut_of_channels(this: Experiment) -> CutRow | None:
    """The first cut of a convolution's channels, whose maps are to be shown."""
    layers = layer_names(*this.raw)
    firsts = (cuts[0] for cuts in this.store.record.cuts.values())
    return next((x for x in firsts if not x.scores.keys().isdisjoint(layers)), None)


def feature_maps(this: Experiment, cut: CutRow) -> RunRecord:
    """Figure 2: what the most and the least telling channel see on real images."""
    (model, variables), scores = this.raw, cut.scores
    layers = layer_names(model, variables)
    chosen = telling_feature_maps(
        model,
        variables,
        this.federation.test,
        # From input to output, an order that a file does not keep.
        {layer: scores[layer] for layer in layers if layer in scores},
        target=this.classes[0],
        prepare=this.federation.prepare,
    )
    _write_arrays(this, "feature_maps.npz", chosen.arrays)
    row = FeatureMapsRow(chosen.layer, chosen.most, chosen.least)
    return RunRecord(feature_maps=row)


def _write_arrays(this: Experiment, name: str, arrays: dict[str, Any]) -> None:
    if this.store.writes:
        write_whole(
            this.store.workdir / name,
            lambda file: np.savez(file, allow_pickle=False, **arrays),
        )


_PICTURES = 12


def pictures(this: Experiment) -> RunRecord:
    """Images of what was forgotten, with the answers before and after.

    They are test images of the classes, or training images that a request for clients
    or examples names; the answers after are those of the method under test.
    """
    rows = [row_of(this, unit) for unit in this.units]
    done = [row for row in rows if row.error is None]
    tested = tested_among(row.method for row in done)
    if tested is None:
        return RunRecord(pictures=PicturesRow())
    unit = next(row.name for row in done if row.method == tested)
    federation = this.federation
    shown = federation.test if this.classes else federation.forgotten
    labels = np.asarray(shown.labels)
    asked = np.isin(labels, this.classes) if this.classes else labels >= 0
    chosen = np.flatnonzero(asked)[:_PICTURES]
    images = np.asarray(shown.images)[chosen]
    if this.store.writes and len(images):
        # By the program that the audit runs, too.
        before, after = (
            logits_of(
                prepare(unit, model), images, lambda x: federation.prepare(None, x)
            ).argmax(axis=-1)
            for model in (this.raw, this.load(unit))
        )
        arrays = Pictures(images, labels[chosen], before, after)._asdict()
        _write_arrays(this, "pictures.npz", arrays)
    return RunRecord(pictures=PicturesRow(unit))


def audit(this: Experiment) -> RunRecord:
    """Audit every saved model of this run against the retrained ones, in audit.json."""
    config, federation = this.config, this.federation
    data = AuditData(
        federation.train, federation.test, lambda x: federation.prepare(None, x)
    )
    done = [unit for unit in this.units if row_of(this, unit).error is None]
    # Retrained models are references; the others are judged, one seed or all.
    retrained = [u for u in done if METHODS[u.method].budget == "training"]
    all_seeds = config.audit.seeds == "all"
    own = [u for u in done if u not in retrained and (u.seed == 0 or all_seeds)]
    candidates = {unit.name: this.load(unit.name) for unit in own}
    candidates |= this.elsewhere.candidates
    references = [this.load(unit.name) for unit in retrained]
    references += this.elsewhere.references
    # 0 takes all of them.
    references = references[: config.audit.retrained or None]
    raw = this.raw
    # Every model has its outputs taken, and is taught a class again; a kind is a step.
    kinds = config.audit.kinds
    taught = "relearn" in kinds and bool(this.classes)
    expected = (len(candidates) + len(references) + 1) * (1 + taught)
    expected += len(kinds) + config.audit.shadows
    with this.progress.steps("audit", expected) as show:

        def on_step(text: str) -> None:
            show(text)
            stop_if_asked(this)

        key = key_for(this, "audit")
        asked = {"options": config.audit, "on_step": on_step}
        if this.classes:
            report = audit_classes(
                candidates, references, raw, data, this.classes, key, **asked
            )
        else:
            planted = triggered(data.test) if config.audit.backdoor else None
            images = RequestData(
                federation.forgotten, data.test, data.preprocess, planted, TARGET
            )
            report = audit_request(candidates, references, raw, images, key, **asked)
    if this.store.writes:
        write_whole(this.store.workdir / "audit.json", report.to_json())
    return RunRecord()
