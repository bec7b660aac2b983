"""Tables 1 to 5 and the appendix of the paper, our numbers under the paper's.

Rows of the paper that nothing was run for stay, so that a gap is seen.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fuprune import results
from fuprune.report import formats, joined, judgement, paper_numbers, roles, tables
from fuprune.report.joined import Group, same_cifar10
from fuprune.report.paper_numbers import PaperRow
from fuprune.report.table_forms import Cell, Column, Table, cell, in_words
from fuprune.report.tables import (
    accuracy_cells,
    accuracy_columns,
    exact_percent,
    mean_cell,
)

PRUNING = "class_pruning"


class PaperTable(NamedTuple):
    """One table of the paper, and how it finds our numbers for its rows."""

    name: str
    title: str
    note: str
    labels: tuple[str, ...]  # titles of the first columns
    label: Callable[[PaperRow | Group, str], tuple[str, ...]]  # of a row and a method
    columns: Sequence[Column]
    written: Sequence[Callable[[float], str]]  # one per column
    entries: Sequence[PaperRow]
    repeats: Callable[[Group, PaperRow], bool]  # whether a group repeats a row
    belongs: Callable[[Group], bool]  # whether one that repeats none is shown, too
    our_cells: Callable[[Group, str], list[Cell] | None]  # of a method; None without


def paper_tables(groups: Sequence[Group]) -> list[Table]:
    """Every table of the paper with our rows in it."""
    return [_filled(table, groups) for table in TABLES]


def _filled(table: PaperTable, groups: Sequence[Group]) -> Table:
    """Follows each row of the paper with ours, then adds ours that it has no row for.

    The column after the label says whose a row is, the last one which group's.
    """
    rows: list[tuple[Cell, ...]] = []
    labels: dict[str, set[tuple[str, ...]]] = {"ours": set(), "paper": set()}

    def add(
        source: str, label: tuple[str, ...], numbers: Iterable[Cell], tag=""
    ) -> None:
        ours = source == "ours"
        named = [cell(part, formats.in_words, highlight=ours) for part in label]
        rows.append((*named, cell(source), *numbers, cell(tag)))
        labels[source].add(label)

    def add_ours(group: Group, method: str) -> None:
        numbers = table.our_cells(group, method)
        if numbers is not None:
            add("ours", table.label(group, method), numbers, group.tag)

    for method in dict.fromkeys(entry.method for entry in table.entries):
        further = [group for group in groups if table.belongs(group)]
        for entry in (entry for entry in table.entries if entry.method == method):
            numbers = map(cell, entry.numbers, table.written)
            add("paper", table.label(entry, method), numbers)
            for group in groups:
                if table.repeats(group, entry):
                    add_ours(group, method)
                    further = [other for other in further if other != group]
        for group in further:
            add_ours(group, method)
    words, tag = in_words(*table.labels, "Source"), in_words("Experiment")
    columns = (*words, *table.columns, *tag)
    every, lacking = labels["paper"], labels["paper"] - labels["ours"]
    words = (
        f"{len(lacking)} of {formats.plural(len(every), 'row')} of the paper's table"
    )
    gap = f"{words} have no run here." if lacking else ""
    return Table(table.name, table.title, columns, rows, table.note, gap)


def _fits_table_1(group: Group) -> bool:
    settings = (group.model, group.algorithm) == ("resnet20", "fed_avg")
    return settings and group.forgets_last and group.bias is not None


def _rounds_and_accuracy(group: Group, method: str) -> list[Cell] | None:
    found = joined.method_rows(group, method)
    rounds = tables.reached_cells(results.reached(found, "retrained"))[0]
    return [rounds, *accuracy_cells([found])] if found else None


def _stage_cells(group: Group, cuts: Sequence[int]) -> list[Cell] | None:
    """Accuracies of the raw, cut, fine-tuned and retrained models of a group."""
    found = joined.method_rows(group, PRUNING)
    if not found:
        return None
    pruned = [joined.cut_stages(group, PRUNING, position) for position in cuts]
    retrained = joined.method_rows(group, roles.RETRAIN)
    return accuracy_cells([joined.raw_stages(group), *pruned, found, retrained])


def _stages_and_speedup(group: Group, method: str) -> list[Cell] | None:
    accuracies = _stage_cells(group, [0, -1])
    ratio = joined.speedup(group, method, "retrained")[0]
    return accuracies and [*accuracies, cell(ratio, formats.times)]


def _attack(group: Group, method: str) -> list[Cell] | None:
    found = _evidence(group, method, "shadow_success_rate")
    # An attacker who gives every model the same answer has not attacked.
    attacked = [
        abs(value - sum(retrained) / len(retrained))
        for value, retrained in found
        if any(other != value for other in retrained)
    ]
    if not found:
        return None
    if not attacked:
        return [cell(None, judgement.NO_RESULT)]
    return [mean_cell(attacked, exact_percent)]


def _distances(group: Group, method: str) -> list[Cell] | None:
    greatest = _evidence(group, method, "class_accuracy_difference")
    divergence = _evidence(group, method, "class_accuracy_kl")
    made = [
        mean_cell([value for value, _ in greatest], exact_percent),
        mean_cell([value for value, _ in divergence]),
    ]
    return made if greatest or divergence else None


def _evidence(group: Group, method: str, test_name: str):
    """A number of the audits: of a method's and of the retrained models, per run."""
    return [
        (value, results.known(test.retrained))
        for run in group.runs
        for test in (run.audit.tests if run.audit is not None else ())
        if test.name == test_name
        and (judged := roles.candidate_of(run.audit, method))
        and (value := test.values.get(judged)) is not None
        and results.known(test.retrained)
    ]


_STAGES = ("Raw", "First class pruned", "Last class pruned", "Fine-tuned", "Re-trained")
# Tables whose rows are a model and classes of CIFAR-10.
_CIFAR10: dict[str, Any] = dict(
    labels=("Data", "Model", "Classes"),
    label=lambda row, _: (row.dataset, row.model, "+".join(map(str, row.classes))),
    repeats=lambda group, row: same_cifar10(group, row.model, row.classes),
)
TABLES = (
    PaperTable(
        "table_1",
        "Table 1: impact of bias probability q (ResNet20, last class)",
        "The paper uses FedAvg with five local epochs here. Our rounds: until "
        "retraining's own R-set accuracy.",
        labels=("Data", "q", "Method"),
        label=lambda row, method: (row.dataset, f"{row.bias:g}", method),
        columns=[Column("Rounds"), Column("U-set"), Column("R-set")],
        written=[formats.number, exact_percent, exact_percent],
        entries=paper_numbers.TABLE_1,
        repeats=lambda group, row: (
            _fits_table_1(group)
            and group.dataset == row.dataset
            and abs((group.bias or 0.0) - (row.bias or 0.0)) < 5e-3
        ),
        belongs=_fits_table_1,
        our_cells=_rounds_and_accuracy,
    ),
    PaperTable(
        "table_2",
        "Table 2: information erased (last class)",
        "The paper uses FedSGD and an even split here; ours with FedAvg are in Table "
        "1. After-pruned values of the paper such as 11.11% are those of a "
        "constant answer.",
        labels=("Data", "Model"),
        label=lambda row, _: (row.dataset, row.model),
        columns=accuracy_columns("Raw", "After-pruned", "Fine-tuned", "Re-trained"),
        written=[exact_percent] * 8,
        entries=paper_numbers.TABLE_2,
        repeats=lambda group, row: (
            group.forgets_last
            and group.is_even
            and group.algorithm != "fed_avg"
            and (group.dataset, group.model) == (row.dataset, row.model)
        ),
        belongs=lambda group: (
            group.forgets_last and group.dataset not in ("cifar10", "cifar100")
        ),
        our_cells=lambda group, _: _stage_cells(group, [-1]),
    ),
    PaperTable(
        "table_3_and_appendix",
        "Table 3 and appendix: several classes removed",
        "The first three rows of the paper are its Table 3. Our speed-up is in rounds, "
        "until retraining's own R-set accuracy.",
        columns=[*accuracy_columns(*_STAGES), Column("Speed-up")],
        written=[*[exact_percent] * 10, formats.times],
        entries=paper_numbers.TABLE_3_AND_APPENDIX,
        belongs=lambda group: len(group.classes) > 1,
        our_cells=_stages_and_speedup,
        **_CIFAR10,
    ),
    PaperTable(
        "table_4",
        "Table 4: membership attack, difference to retraining",
        "Ours: shadow-model attack, absolute difference to the mean of the retrained "
        "models. Whether a difference matters is judged in each run's own report.",
        columns=[Column("Difference of success rate")],
        written=[exact_percent],
        entries=paper_numbers.TABLE_4,
        belongs=bool,
        our_cells=_attack,
        **_CIFAR10,
    ),
    PaperTable(
        "table_5",
        "Table 5: class-wise accuracy, distance to retraining",
        "The paper does not say how accuracies become a distribution.",
        columns=[Column("Greatest difference"), Column("KL divergence")],
        written=[exact_percent, formats.number],
        entries=paper_numbers.TABLE_5,
        belongs=bool,
        our_cells=_distances,
        **_CIFAR10,
    ),
)
