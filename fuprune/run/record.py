"""What a run found out, as one typed record: written by the run, read by the report.

`RunRecord` is the whole of results.json. Each fact has one field here, one function in
`run/` that writes it and one in `report/` that reads it. The curves of training are in
metrics.jsonl, a row per round, and the audit's findings in audit.json, an
`audit.AuditReport`; `run.files` reads all three.
"""

from typing import Any, NamedTuple

FORMAT = 2


class Provenance(NamedTuple):
    """Everything needed to know, and repeat, what a run did; also in config.json."""

    config: dict[str, Any]  # as `config.to_json` gives it
    versions: dict[str, str]  # of Python, fuprune and what it computes with
    commit: str  # of the code; "" if unknown
    command: list[str]
    platform: str  # such as "cpu, 2 device(s)"


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
    model: dict[str, Any]  # the uncut network, as `models.zoo.spec` describes it
    classes: list[int]  # to forget, in their order
    class_names: list[str]
    chosen_on: str  # the split that targets and stops were judged on
    stages: list[StageRow]
    methods: list[MethodRow]
    cuts: dict[str, list[CutRow]]  # by unit, one for each class in the order cut
    privacy: dict[str, Any]  # the accountant's statement; empty without noise
    privacy_curve: list[PrivacyPoint]
    feature_maps: FeatureMapsRow | None


class CurveRow(NamedTuple):
    """One row of metrics.jsonl."""

    phase: str  # the unit
    round_number: int  # 0 is before the first round
    values: dict[str, float]
