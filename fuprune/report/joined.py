"""Several runs as experiments, in parts or with other seeds, and tables over them."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fuprune import results
from fuprune.report import figures, formats, judgement, paper_numbers, roles, tables
from fuprune.report.charts import Points
from fuprune.report.table_forms import Column, Table, cell, in_words
from fuprune.results import MethodRow, Run, RunRecord, StageRow


class Group(NamedTuple):
    """Runs of one experiment."""

    tag: str  # how tables refer to it: E1, E2, ...
    runs: tuple[Run, ...]
    record: RunRecord  # of the run that describes it
    dataset: str
    model: str
    classes: tuple[int, ...]  # forgotten
    num_classes: int  # before forgetting
    algorithm: str  # "fed_avg" or "fed_sgd"
    bias: float | None  # the paper's q; for an even split, one over the classes
    tested: str  # the method that the group is about

    @property
    def is_even(self) -> bool:
        """Whether every client holds every class alike, as in most of the paper."""
        if self.bias is None or not self.num_classes:
            return False
        return abs(self.bias - 1 / self.num_classes) < 1e-6

    @property
    def forgets_last(self) -> bool:
        """Whether it forgets the last class alone, as most of the paper does."""
        return self.classes == (self.num_classes - 1,)

    @property
    def subject(self) -> str:
        """Names the group: `E1: resnet20 on cifar10, class 9, q 0.1`."""
        noun = "classes" if len(self.classes) > 1 else "class"
        forgotten = f"{noun} {'+'.join(map(str, self.classes)) or '?'}"
        if self.record.request.kind != "classes":
            forgotten = roles.forgotten(self.record)
        named = f"{self.tag}: {self.model or '?'} on {self.dataset or '?'}"
        bias = f", q {self.bias:g}" if self.bias is not None else ""
        return f"{named}, {forgotten}{bias}"

    @property
    def scale(self) -> str:
        """Says at what scale the group was run, in the settings' own words."""
        parts = []
        for words, key in _SCALE:
            found = (roles.setting_in_use(run.record, key) for run in self.runs)
            parts += [words.format(value) for value in found if value][:1]
        names = [run.name for run in self.runs]
        amount = formats.plural(len(names), "run")
        return f"{', '.join(parts)}; {amount}: {formats.listing(names)}"


_SCALE = (
    ("{} clients", "partition.clients"),
    ("{} per round", "train.cohort"),
    ("{}", "train.algorithm"),
    ("local epochs: {}", "train.local_epochs"),
    ("local steps: at most {}", "train.local_steps"),
    ("q {}", "partition.bias"),
    ("{} rounds", "train.rounds"),
    ("R {}", "prune.rate"),
    ("scope {}", "prune.scope"),
    ("{} images per class", "data.limit"),
)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Puts runs together that are one experiment, with other seeds or other methods.

    The groups come in the order of their first run; a run without a config is alone.
    """
    groups: dict[str, list[Run]] = {}
    for position, run in enumerate(runs):
        key = results.experiment_of(run.record) or str(position)
        groups.setdefault(key, []).append(run)
    return [_make_group(f"E{n}", found) for n, found in enumerate(groups.values(), 1)]


def _make_group(tag: str, runs: Sequence[Run]) -> Group:
    """A group, described by its first run that has results, or else its first."""
    records = [run.record for run in runs]
    record = next((one for one in records if one.class_names), records[0])
    amount = len(record.class_names)
    bias = roles.setting_in_use(record, "partition.bias")
    if results.setting(record, "partition.kind") == "iid" and amount:
        bias = 1 / amount
    tested = [roles.topic_of(run.record, run.audit).tested for run in runs]
    return Group(
        tag,
        tuple(runs),
        record,
        record.dataset,
        results.model_name(record),
        tuple(record.classes),
        amount,
        str(results.setting(record, "train.algorithm") or ""),
        bias if isinstance(bias, int | float) else None,
        next(filter(None, tested), "class_pruning"),
    )


def _seed(run: Run) -> str:
    return str(results.setting(run.record, "seed") or 0)


def method_rows(group: Group, method: str) -> list[MethodRow]:
    """Every result of a method: over runs, and over seeds inside a run."""
    return [row for _, row in _models(group, method)]


def _models(group: Group, method: str) -> list[tuple[Run, MethodRow]]:
    """Every model of a method, with its run.

    Parts of an experiment that share the seed made the same model by the same name: it
    counts once.
    """
    found: dict[tuple, tuple[Run, MethodRow]] = {}
    for run in group.runs:
        seed = _seed(run)
        for row in results.rows_of(run.record, method):
            found.setdefault((seed, row.name), (run, row))
    return list(found.values())


def raw_stages(group: Group) -> list[StageRow]:
    """The models before forgetting, each once: those that are loaded are one."""
    found: dict[str | None, StageRow] = {}
    for run in group.runs:
        if (stage := results.raw_stage(run.record)) is not None:
            loaded = results.setting(run.record, "model.load")
            seed = None if loaded else _seed(run)
            found.setdefault(seed, stage)
    return list(found.values())


def recovery_curves(group: Group) -> dict[str, list[Points]]:
    """By method, the R-set accuracy of each of its models over rounds."""
    found: dict[str, dict[tuple, Points]] = {}
    for run in group.runs:
        seed = _seed(run)
        for unit, points in figures.recovery_curves(run.curves).items():
            # What two parts of an experiment both trained counts once, as in `_models`;
            # one of them may have been stopped on the way.
            models = found.setdefault(roles.family(unit), {})
            models[seed, unit] = max(models.get((seed, unit), []), points, key=len)
    return {method: list(models.values()) for method, models in found.items()}


def cut_stages(group: Group, method: str, position: int) -> list[StageRow]:
    """The models after one cut (0 is the first class's, -1 the last's), per seed."""
    return [
        stages[position]
        for run, row in _models(group, method)
        if (stages := results.pruned_stages(run.record, row.name))
    ]


def reached(group: Group, method: str, target: str) -> results.Reached | None:
    """When a method came to a target, over its seeds."""
    return results.reached(method_rows(group, method), target)


def speedup(group: Group, method: str, target: str) -> list[float | None]:
    """How many times less than retraining: rounds, seconds, images, bytes."""
    base = reached(group, roles.RETRAIN, target)
    return results.speedups(reached(group, method, target), base)


def speed_table(groups: Sequence[Group]) -> Table:
    """Figure 3 in numbers: what was spent until each target, beside retraining."""
    rows = [
        (
            cell(group.subject),
            cell(group.tested, roles.method_words),
            cell(target, formats.in_words),
            cell(found.accuracy, formats.percent),
            *tables.reached_cells(found)[:2],
            *tables.reached_cells(reached(group, roles.RETRAIN, target))[:2],
            *tables.reached_cells(reached(group, "retrain_short", target))[:1],
            *(cell(r, formats.times) for r in speedup(group, group.tested, target)),
            cell(_paper_speedup(group)),
        )
        for group, target in itertools.product(groups, results.TARGETS)
        if (found := reached(group, group.tested, target)) is not None
    ]
    return Table(
        "figure_3",
        "Figure 3 in numbers: what was spent until a target",
        (
            *in_words("Experiment", "Method", "Target"),
            Column("R-set"),
            *tables.cost_columns("Ours")[:2],
            *tables.cost_columns("Retraining")[:2],
            *tables.cost_columns("Short retraining")[:1],
            *tables.cost_columns("Times less than retraining"),
            Column("Paper's speed-up"),
        ),
        rows,
        "Targets: retraining's own R-set accuracy, the masked raw model's, and the "
        "one set in the config. The paper gives ranges over its models and no curves "
        "in numbers.",
    )


def _paper_speedup(group: Group) -> str:
    if group.forgets_last:
        found = [
            row.numbers
            for row in paper_numbers.FIGURE_3
            if (group.dataset, group.is_even) == (row.dataset, True)
            and group.model.startswith(row.model)
        ]
    else:
        found = [
            row.numbers[-1:]
            for row in paper_numbers.TABLE_3_AND_APPENDIX
            if same_cifar10(group, row.model, row.classes)
        ]
    for *lowest, highest in found:
        return " to ".join([*map("{:g}".format, lowest), formats.times(highest)])
    return ""


def same_cifar10(group: Group, model: str, classes: Iterable[int]) -> bool:
    """Whether a group repeats a CIFAR-10 experiment of the paper."""
    repeated = (group.dataset, group.model) == ("cifar10", model)
    return repeated and sorted(group.classes) == sorted(classes)


def methods_table(groups: Sequence[Group]) -> Table:
    """Every method of every group: what it reached, spent, and how it was judged."""
    return Table(
        "methods",
        "Every method of every experiment",
        (*in_words("Experiment"), *_METHOD_COLUMNS),
        [
            (cell(group.subject), *row)
            for group in groups
            for row in group_table(group).rows
        ],
        "Mean \N{PLUS-MINUS SIGN} standard deviation over seeds, also those of several "
        "runs. Audit: tests, summed over those runs.",
    )


_METHOD_COLUMNS = (
    *in_words("Method"),
    *tables.COST_COLUMNS,
    *tables.count_columns("Audit"),
    Column("Results"),
    *in_words("Remark"),
)


def group_table(group: Group) -> Table:
    """The same for one group, which is its title."""
    rows = []
    for name in dict.fromkeys(
        r.method for run in group.runs for r in run.record.methods
    ):
        if not (found := method_rows(group, name)):
            continue
        audits = [
            judgement.counts(run.audit, judged)
            for run in group.runs
            if (judged := roles.candidate_of(run.audit, name)) and run.audit
        ]
        counts = [sum(column) for column in zip(*audits, strict=True)]
        row = (
            cell(name, formats.in_words, highlight=name == group.tested),
            *tables.cost_cells(found),
            *map(cell, counts or [None] * len(judgement.COUNTED)),
            cell(len(found)),
            cell(roles.warning(name)),
        )
        rows.append(row)
    return Table("methods", group.subject, _METHOD_COLUMNS, rows, f"{group.scale}.")


def runs_table(groups: Sequence[Group]) -> Table:
    """Lists every run that went in."""
    rows = []
    for group in groups:
        for run in group.runs:
            judged = "not audited"
            model = roles.candidate_of(run.audit, group.tested)
            if run.audit is not None and model is not None:
                found = judgement.headline(run.audit, model)
                failed = f"{len(found.failed)} of {found.tests} failed"
                judged = f"{found.verdict}: {failed}"
            rows.append(
                (
                    cell(run.name),
                    cell(group.subject),
                    cell(_seed(run)),
                    cell(group.scale),
                    cell(judged),
                    cell(run.record.provenance.commit[:12]),
                    cell(" ".join(run.notes)),
                )
            )
    names = ("Run", "Experiment", "Seed", "Scale", "Audit", "Commit", "Notes")
    wordy = ("Scale", "Notes", "Audit")
    columns = [Column(n, numeric=False, words=n in wordy) for n in names]
    return Table("runs", "Every run that went in", columns, rows)
