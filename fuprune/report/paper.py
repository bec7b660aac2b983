"""Tables 1 to 5 and the appendix of the paper, our numbers under the paper's.

Every function takes the groups and returns a `Table`; rows of the paper that nothing
was run for stay, so that a gap is seen.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fuprune.report import (
    formats,
    joined,
    judgement,
    paper_numbers,
    roles,
    speed,
    tables,
)
from fuprune.report.joined import Group, mean_cell, same_cifar10
from fuprune.report.paper_numbers import PaperRow
from fuprune.report.table_forms import Cell, Column, Table, cell, in_words

PRUNING = "class_pruning"


class Comparison(NamedTuple):
    """How one table of the paper finds our numbers for its rows."""

    entries: Sequence[PaperRow]
    written: Sequence[Callable[[float], str]]  # one per column
    label: Callable[[PaperRow | Group], tuple[str, ...]]  # the first columns
    repeats: Callable[[Group, PaperRow], bool]  # whether a group repeats a row
    belongs: Callable[[Group], bool]  # whether one that repeats none is shown, too
    our_cells: Callable[[Group], list[Cell] | None]  # None without any


def bias_table(groups: Sequence[Group]) -> Table:
    """Table 1: bias of the clients' data, against the Fisher method."""
    rows = []
    for method in (PRUNING, "fisher"):
        comparison = Comparison(
            entries=[row for row in paper_numbers.TABLE_1 if row.method == method],
            written=[formats.number, _exact, _exact],
            label=lambda row, m=method: (row.dataset, f"{row.bias:g}", m),
            repeats=lambda group, row: (
                _fits_table_1(group)
                and group.dataset == row.dataset
                and abs((group.bias or 0.0) - (row.bias or 0.0)) < 5e-3
            ),
            belongs=_fits_table_1,
            our_cells=lambda group, m=method: _rounds_and_accuracy(group, m),
        )
        rows += _rows(groups, comparison)
    return _table(
        "table_1",
        "Table 1: impact of bias probability q (ResNet20, last class)",
        ("Data", "q", "Method"),
        [Column("Rounds"), Column("U-set"), Column("R-set")],
        rows,
        "The paper uses FedAvg with five local epochs here. Our rounds: until "
        "retraining's own R-set accuracy.",
    )


def _fits_table_1(group: Group) -> bool:
    settings = (group.model, group.algorithm) == ("resnet20", "fed_avg")
    return settings and group.forgets_last and group.bias is not None


def _rounds_and_accuracy(group: Group, method: str) -> list[Cell] | None:
    found = joined.method_rows(group, method)
    rounds = tables.reached_cells(speed.reached(found, "retrained"))[0]
    return [rounds, *_mean_pair(found)] if found else None


def erasure_table(groups: Sequence[Group]) -> Table:
    """Table 2: raw, after-pruned, fine-tuned and re-trained accuracy."""
    comparison = Comparison(
        entries=paper_numbers.TABLE_2,
        written=[_exact] * 8,
        label=lambda row: (row.dataset, row.model),
        repeats=lambda group, row: (
            group.forgets_last
            and group.is_even
            and group.algorithm != "fed_avg"
            and (group.dataset, group.model) == (row.dataset, row.model)
        ),
        belongs=lambda group: (
            group.forgets_last and group.dataset not in ("cifar10", "cifar100")
        ),
        our_cells=lambda group: _stage_cells(group, [-1]),
    )
    return _table(
        "table_2",
        "Table 2: information erased (last class)",
        ("Data", "Model"),
        _accuracy_columns("Raw", "After-pruned", "Fine-tuned", "Re-trained"),
        _rows(groups, comparison),
        "The paper uses FedSGD and an even split here; ours with FedAvg are in Table "
        "1. After-pruned values of the paper such as 11.11% are those of a "
        "constant answer.",
    )


def _stage_cells(group: Group, cuts: Sequence[int]) -> list[Cell] | None:
    """Accuracies of the raw, cut, fine-tuned and retrained models of a group."""
    found = joined.method_rows(group, PRUNING)
    if not found:
        return None
    pruned = [joined.cut_stages(group, PRUNING, position) for position in cuts]
    retrained = joined.method_rows(group, roles.RETRAIN)
    models = [joined.raw_stages(group), *pruned, found, retrained]
    return [made for rows in models for made in _mean_pair(rows)]


def removal_table(groups: Sequence[Group]) -> Table:
    """Table 3 and the appendix: several classes at once."""

    def ours(group: Group) -> list[Cell] | None:
        accuracies = _stage_cells(group, [0, -1])
        ratio = joined.speedup(group, PRUNING, "retrained")[0]
        return accuracies and [*accuracies, cell(ratio, formats.times(ratio))]

    stages = ("Raw", "First class pruned", "Last class pruned")
    return _cifar10_table(
        groups,
        "table_3_and_appendix",
        "Table 3 and appendix: several classes removed",
        paper_numbers.TABLE_3_AND_APPENDIX,
        [*_accuracy_columns(*stages, "Fine-tuned", "Re-trained"), Column("Speed-up")],
        [*[_exact] * 10, formats.times],
        ours,
        "The first three rows of the paper are its Table 3. Our speed-up is in rounds, "
        "until retraining's own R-set accuracy.",
        belongs=lambda group: len(group.classes) > 1,
    )


def membership_table(groups: Sequence[Group]) -> Table:
    """Table 4: difference of the attack's success rate to retraining."""

    def ours(group: Group) -> list[Cell] | None:
        found = _evidence(group, "shadow_success_rate")
        # An attacker who gives every model the same answer has not attacked.
        attacked = [
            abs(value - sum(retrained) / len(retrained))
            for value, retrained in found
            if any(other != value for other in retrained)
        ]
        made = mean_cell(attacked, _exact)
        result = made if attacked else cell(None, judgement.NO_RESULT)
        return [result] if found else None

    return _cifar10_table(
        groups,
        "table_4",
        "Table 4: membership attack, difference to retraining",
        paper_numbers.TABLE_4,
        [Column("Difference of success rate")],
        [_exact],
        ours,
        "Ours: shadow-model attack, absolute difference to the mean of the retrained "
        "models. Whether a difference matters is judged in each run's own report.",
    )


def distribution_table(groups: Sequence[Group]) -> Table:
    """Table 5: class-wise accuracy against retraining."""

    def ours(group: Group) -> list[Cell] | None:
        greatest = _evidence(group, "class_accuracy_difference")
        divergence = _evidence(group, "class_accuracy_kl")
        made = [
            mean_cell([value for value, _ in greatest], _exact),
            mean_cell([value for value, _ in divergence]),
        ]
        return made if greatest or divergence else None

    return _cifar10_table(
        groups,
        "table_5",
        "Table 5: class-wise accuracy, distance to retraining",
        paper_numbers.TABLE_5,
        [Column("Greatest difference"), Column("KL divergence")],
        [_exact, formats.number],
        ours,
        "The paper does not say how accuracies become a distribution.",
    )


def _evidence(group: Group, test_name: str) -> list[tuple[float, list[float]]]:
    """A number of the audits: of the pruned and of the retrained models, per run."""
    return [
        (value, roles.known(test.retrained))
        for run in group.runs
        for test in (run.audit.tests if run.audit is not None else ())
        if test.name == test_name
        and (value := test.values.get(PRUNING)) is not None
        and roles.known(test.retrained)
    ]


def _cifar10_table(
    groups: Sequence[Group],
    name: str,
    title: str,
    entries: Sequence[PaperRow],
    columns: Sequence[Column],
    written: Sequence[Callable[[float], str]],
    our_cells: Callable[[Group], list[Cell] | None],
    note: str,
    belongs: Callable[[Group], bool] = bool,
) -> Table:
    """A table whose rows are a model and classes of CIFAR-10."""
    comparison = Comparison(
        entries,
        written,
        label=lambda row: (row.dataset, row.model, "+".join(map(str, row.classes))),
        repeats=lambda group, row: same_cifar10(group, row.model, row.classes),
        belongs=belongs,
        our_cells=our_cells,
    )
    labels = ("Data", "Model", "Classes")
    return _table(name, title, labels, columns, _rows(groups, comparison), note)


def _rows(groups: Sequence[Group], comparison: Comparison) -> list[tuple[Cell, ...]]:
    """Follows each row of the paper with ours, then adds ours that it has no row for.

    The column after the label says whose a row is, the last one which group's.
    """
    rows = []

    def add(label: tuple[str, ...], source: str, numbers: list[Cell], tag: str) -> None:
        tint = "highlight" if source == "ours" else ""
        named = [cell(part, formats.in_words(part), tint) for part in label]
        rows.append((*named, cell(source), *numbers, cell(tag)))

    def add_ours(group: Group) -> None:
        numbers = comparison.our_cells(group)
        if numbers is not None:
            add(comparison.label(group), "ours", numbers, group.tag)

    used = []
    for entry in comparison.entries:
        written = zip(entry.numbers, comparison.written, strict=True)
        numbers = [cell(value, write(value)) for value, write in written]
        add(comparison.label(entry), "paper", numbers, "")
        for group in groups:
            if comparison.repeats(group, entry):
                used.append(group.tag)
                add_ours(group)
    for group in groups:
        if group.tag not in used and comparison.belongs(group):
            add_ours(group)
    return rows


def _table(
    name: str,
    title: str,
    labels: Sequence[str],
    columns: Sequence[Column],
    rows: Sequence[tuple[Cell, ...]],
    note: str,
) -> Table:
    words, tag = in_words(*labels, "Source"), in_words("Experiment")
    return Table(name, title, (*words, *columns, *tag), tuple(rows), note)


def _accuracy_columns(*groups: str) -> list[Column]:
    return [
        Column(title, group=group) for group in groups for title in ("U-set", "R-set")
    ]


def _mean_pair(rows: Sequence) -> list[Cell]:
    return [
        mean_cell([row.u_accuracy for row in rows], _exact),
        mean_cell([row.r_accuracy for row in rows], _exact),
    ]


def _exact(value: float) -> str:
    return formats.percent(value, 2)
