"""What a run found out, as one typed record: written by the run, read by the report.

`RunRecord` is the whole of results.json. Each fact has one field here and one function
in `run/` that writes it; `report/` reads the fields. The curves of training are in
metrics.jsonl, a row per round, and the audit's findings in audit.json, an
`audit.AuditReport`; `run.files` reads all three.

Units of a run leave outcomes; `add_outcomes` makes the record of those that have
finished, with what the curves and the clocks add to them.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FORMAT = 2


class Provenance(NamedTuple):
    """Everything needed to know, and repeat, what a run did; also in config.json."""

    config: dict[str, Any]  # as `config.to_json` gives it
    versions: dict[str, str]  # of Python, fuprune and what it computes with
    commit: str  # of the code; "" if unknown
    command: list[str]
    platform: str  # such as "cpu, 2 device(s)"


class RequestRow(NamedTuple):
    """What the run forgets, and which images its two accuracies are taken on."""

    kind: str  # "classes", "clients" or "examples"
    targets: list[int]  # their numbers
    u_set: str  # "the 812 training images of client 3"
    r_set: str  # "the 10000 test images, which nobody trained on"


class StageRow(NamedTuple):
    """What one model on the way does on the test split: raw, pruned, fine-tuned."""

    method: str  # the unit that made it; "raw" for the trained model
    stage: str
    accuracy: float
    u_accuracy: float | None  # on what is to be forgotten; None without such images
    r_accuracy: float | None  # on the rest
    test_loss: float | None  # None if it is not finite
    per_class: list[float | None]  # [U], None for a class without test images
    confusion: list[list[int]]  # [U][U] counts, rows are true classes


class Times(NamedTuple):
    """Seconds that a method took, over all the starts it needed."""

    own: float  # its own work: capture, scoring, surgery, noise, sums over clients
    training: float  # federated rounds that it ran, evaluation included

    @property
    def total(self) -> float:
        """All of it."""
        return self.own + self.training


class Crossing(NamedTuple):
    """When a method's R-set accuracy first came to a target, on one evaluation grid.

    The grid starts at round 0, before any fine-tuning. None: not within the budget.
    """

    target: str  # "retrained", "raw_masked" or "configured"
    accuracy: float  # the target itself
    rounds: int | None
    seconds: float | None  # the method's own work included
    images: int | None  # forward and backward passes over one image, by all clients
    upload_bytes: int | None  # by one client that takes part in everything


class MethodRow(NamedTuple):
    """What one method, with one seed, reached and cost."""

    name: str  # of the unit: the method, with the seed's number behind it
    method: str
    seed: int
    u_accuracy: float | None
    r_accuracy: float | None
    rounds: int
    images: int  # forward and backward passes over one image, by all clients
    times: Times
    statistics_bytes: int  # sent by one client before fine-tuning
    model_bytes: int  # sent by one client per round
    crossings: list[Crossing]
    error: str | None  # why it stopped; the figures above are then empty
    notes: dict[str, Any]  # facts of this method only, for the report

    @property
    def upload_bytes(self) -> int:
        """Sent by one client that takes part in the statistics and every round."""
        return self.statistics_bytes + self.rounds * self.model_bytes


class LayerRow(NamedTuple):
    """Size of one layer, or of all ("total"), before and after a cut."""

    layer: str
    channels_before: int
    channels_after: int
    spared: int  # cuts not made because a layer must keep some channels
    parameters_before: int
    parameters_after: int
    flops_before: int
    flops_after: int


class CutRow(NamedTuple):
    """What was scored and removed for one class; layers are named."""

    class_id: int
    scores: dict[str, list[float]]  # TF-IDF of the channels that the layer had
    channels: dict[str, list[int]]  # their ids in the uncut network
    removed: dict[str, list[int]]  # ids of those that were cut
    layers: list[LayerRow]


class FeatureMapsRow(NamedTuple):
    """Which channels feature_maps.npz shows (Figure 2)."""

    layer: str
    most: int  # the channel with the highest score
    least: int


class PrivacyPoint(NamedTuple):
    """One noise level of accuracy against epsilon."""

    epsilon: float
    u_accuracy: float | None
    r_accuracy: float | None
    overlap: float  # share of the noiseless cut that is kept
    sigma_total: float
    sigma_count: float
    fine_tuned_u_accuracy: float | None
    fine_tuned_r_accuracy: float | None


class RunRecord(NamedTuple):
    """All of a run's results; see the classes above."""

    format: int
    provenance: Provenance
    dataset: str
    model: dict[str, Any]  # the uncut network, as `surgery.rebuild.spec` has it
    classes: list[int]  # to forget, in their order
    class_names: list[str]
    chosen_on: str  # the split that targets and stops were judged on
    stages: list[StageRow]
    methods: list[MethodRow]
    cuts: dict[str, list[CutRow]]  # by unit, one for each class in the order cut
    privacy: dict[str, Any]  # the accountant's statement; empty without noise
    privacy_curve: list[PrivacyPoint]
    feature_maps: FeatureMapsRow | None
    request: RequestRow


class CurveRow(NamedTuple):
    """One row of metrics.jsonl."""

    phase: str  # the unit
    round_number: int  # 0 is before the first round
    # "r_accuracy" and its kin are of the test split, "validation_r_accuracy" and its
    # kin of the validation split; a row of a round without evaluation has neither.
    values: dict[str, float]

    def judged(self, metric: str) -> float | None:
        """A metric on the split that the run's choices were made on, if evaluated."""
        return self.values.get(f"validation_{metric}", self.values.get(metric))


class TrainedOutcome(NamedTuple):
    """Outcome of the unit that trains the raw model, or loads it."""

    stage: StageRow
    # R-set accuracy on the split that choices are made on, as it is and with the
    # forgotten classes' logits masked; None without such images.
    r_accuracy: float | None
    masked_r_accuracy: float | None


class UnlearnedOutcome(NamedTuple):
    """Outcome of one method with one seed."""

    name: str  # of the unit, as in `MethodRow`
    method: str
    seed: int
    budget: str  # what it trains with, as `unlearning.methods` names it
    stages: list[StageRow]
    rounds: int
    statistics_bytes: int
    model_bytes: int
    cuts: list[CutRow]
    privacy: dict[str, Any]
    notes: dict[str, Any]
    error: str | None


class UnlearnedUnits(NamedTuple):
    """Outcome of the phase as a whole: there is nothing left of it to do."""

    names: list[str]


class AuditOutcome(NamedTuple):
    """Outcome of the audit; its findings are in audit.json."""

    steps: int


class PhaseClock(NamedTuple):
    """Seconds of one unit from timings.jsonl, over all the starts it needed."""

    own: float
    rounds: list[tuple[int, float]]  # (round, seconds); a repeated round is there twice
    unit: float | None = None  # the last start, all of it; None if it did not finish
    programs: float | None = None  # of that, making or loading programs

    @property
    def training(self) -> float:
        """All rounds."""
        return sum(seconds for _, seconds in self.rounds)

    def until(self, last: int) -> float:
        """The unit's own work and its rounds up to `last`."""
        return self.own + sum(s for number, s in self.rounds if number <= last)


def find_problem(record: RunRecord) -> str | None:
    """What a record has that its types allow and no run writes; None without any."""
    if record.request.kind not in ("classes", "clients", "examples"):
        return f"a request for {record.request.kind!r:.40}"
    tables = [(stage.per_class, stage.confusion) for stage in record.stages]
    counts = {len(row) for means, matrix in tables for row in (means, matrix, *matrix)}
    counts -= {0}  # a stage may lack either
    if len(counts) > 1:
        return "stages of different numbers of classes"
    number = max(counts, default=len(record.class_names))
    if not all(0 <= class_id < number for class_id in record.classes):
        return f"classes {record.classes!r:.40} of {number} to forget"
    for cut in (cut for cuts in record.cuts.values() for cut in cuts):
        both = cut.scores.keys() & cut.channels.keys()
        if any(len(cut.scores[name]) != len(cut.channels[name]) for name in both):
            return "a cut whose scores are not those of its channels"
    return None


def add_outcomes(
    record: RunRecord,
    trained: TrainedOutcome,
    unlearned: Sequence[UnlearnedOutcome],
    *,
    curves: Sequence[CurveRow],
    clocks: Mapping[str, PhaseClock],
    configured_target: float | None,
) -> RunRecord:
    """The record with the stages, methods and cuts of the units that have finished.

    `configured_target` is the R-set accuracy that fine-tuning aims at, None without
    one.
    """
    by_unit: dict[str, list[CurveRow]] = collections.defaultdict(list)
    for row in curves:
        by_unit[row.phase.removeprefix("unlearn/")].append(row)
    targets = {
        "retrained": _retrained_accuracy(unlearned, by_unit),
        "raw_masked": trained.masked_r_accuracy,
        "configured": configured_target,
    }
    rows = []
    for outcome in unlearned:
        curve = by_unit[outcome.name]
        clock = clocks.get(f"unlearn/{outcome.name}", PhaseClock(0.0, []))
        crossings = [
            _crossing(name, target, outcome, curve, clock)
            for name, target in targets.items()
            if target is not None and outcome.error is None
        ]
        rows.append(_method_row(outcome, curve, clock, crossings))
    return record._replace(
        stages=[trained.stage, *(s for outcome in unlearned for s in outcome.stages)],
        methods=rows,
        cuts={outcome.name: outcome.cuts for outcome in unlearned if outcome.cuts},
        privacy=next((o.privacy for o in unlearned if o.privacy), {}),
    )


def _retrained_accuracy(unlearned, by_unit) -> float | None:
    """R-set accuracy at the end of the first retraining with the whole budget."""
    for outcome in unlearned:
        if outcome.budget == "training" and outcome.error is None:
            judged = [row.judged("r_accuracy") for row in by_unit[outcome.name]]
            return next((a for a in reversed(judged) if a is not None), None)
    return None


def _crossing(
    name: str,
    target: float,
    outcome: UnlearnedOutcome,
    curve: Sequence[CurveRow],
    clock: PhaseClock,
) -> Crossing:
    reached = (
        row.round_number
        for row in curve
        if (accuracy := row.judged("r_accuracy")) is not None and accuracy >= target
    )
    first = next(reached, None)
    if first is None:
        return Crossing(name, target, None, None, None, None)
    return Crossing(
        name,
        target,
        first,
        round(clock.until(first), 3),
        _images(outcome, curve, first),
        outcome.statistics_bytes + first * outcome.model_bytes,
    )


def _images(outcome, curve: Sequence[CurveRow], last: int) -> int:
    """Images of the rounds up to `last`, and of rounds of the method's own."""
    trained = sum(r.values.get("images", 0.0) for r in curve if r.round_number <= last)
    return int(trained) + int(outcome.notes.get("images", 0))


def _method_row(outcome, curve, clock, crossings) -> MethodRow:
    last = outcome.stages[-1] if outcome.stages else None
    return MethodRow(
        name=outcome.name,
        method=outcome.method,
        seed=outcome.seed,
        u_accuracy=last.u_accuracy if last else None,
        r_accuracy=last.r_accuracy if last else None,
        rounds=outcome.rounds,
        images=_images(outcome, curve, outcome.rounds),
        times=Times(own=round(clock.own, 3), training=round(clock.training, 3)),
        statistics_bytes=outcome.statistics_bytes,
        model_bytes=outcome.model_bytes,
        crossings=crossings,
        error=outcome.error,
        notes=outcome.notes,
    )
