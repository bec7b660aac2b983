"""Tables 1 to 5 and the appendix of the paper, our numbers under the paper's.

Every function takes the groups and returns a `Table`; rows of the paper that nothing
was run for stay, so that a gap is seen.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
from fuprune.report.paper_numbers import Accuracies
from fuprune.report.table_forms import Cell, Column, Table, cell

PRUNING = "class_pruning"
_OURS = Column("Experiment", numeric=False)


def bias_table(groups: Sequence[Group]) -> Table:
    """Table 1: bias of the clients' data, against the Fisher method."""

    def matches(group: Group, entry: paper_numbers.BiasRow) -> bool:
        return (
            _fits_table_1(group)
            and group.dataset == entry.dataset
            and abs((group.bias or 0.0) - entry.bias) < 5e-3
        )

    def ours(group: Group, method: str) -> list[Cell] | None:
        found = joined.method_rows(group, method)
        if not found:
            return None
        rounds = tables.reached_cells(speed.reached(found, "retrained"))[0]
        return [rounds, *_mean_pair(found)]

    rows = []
    for method in (PRUNING, "fisher"):
        rows += _beside(
            groups,
            [entry for entry in paper_numbers.TABLE_1 if entry.method == method],
            matches=matches,
            others=_fits_table_1,
            paper_label=lambda entry: (entry.dataset, f"{entry.bias:g}", entry.method),
            our_label=lambda group, m=method: (group.dataset, f"{group.bias:g}", m),
            paper=lambda entry: [cell(entry.rounds), *_pair(entry.accuracy)],
            ours=lambda group, m=method: ours(group, m),
        )
    return Table(
        "table_1",
        "Table 1: impact of bias probability q (ResNet20, last class)",
        (
            *_text_columns("Data", "q", "Method", "Source"),
            Column("Rounds"),
            Column("U-set"),
            Column("R-set"),
            _OURS,
        ),
        tuple(rows),
        "The paper uses FedAvg with five local epochs here. Our rounds: until "
        "retraining's own R-set accuracy.",
    )


def _fits_table_1(group: Group) -> bool:
    return (
        group.model == "resnet20"
        and group.algorithm == "fed_avg"
        and group.forgets_last
        and group.bias is not None
    )


def erasure_table(groups: Sequence[Group]) -> Table:
    """Table 2: raw, after-pruned, fine-tuned and re-trained accuracy."""

    def ours(group: Group) -> list[Cell] | None:
        found = joined.method_rows(group, PRUNING)
        if not found:
            return None
        return [
            *_mean_pair(joined.raw_stages(group)),
            *_mean_pair(joined.cut_stages(group, PRUNING, -1)),
            *_mean_pair(found),
            *_mean_pair(joined.method_rows(group, roles.RETRAIN)),
        ]

    rows = _beside(
        groups,
        paper_numbers.TABLE_2,
        matches=lambda group, entry: (
            group.forgets_last
            and group.is_even
            and group.algorithm != "fed_avg"
            and (group.dataset, group.model) == (entry.dataset, entry.model)
        ),
        others=lambda group: (
            group.forgets_last and group.dataset not in ("cifar10", "cifar100")
        ),
        paper_label=lambda entry: (entry.dataset, entry.model),
        our_label=lambda group: (group.dataset, group.model),
        paper=lambda entry: [c for pair in entry[2:] for c in _pair(pair)],
        ours=ours,
    )
    return Table(
        "table_2",
        "Table 2: information erased (last class)",
        (
            *_text_columns("Data", "Model", "Source"),
            *_accuracy_columns("Raw", "After-pruned", "Fine-tuned", "Re-trained"),
            _OURS,
        ),
        tuple(rows),
        "The paper uses FedSGD and an even split here; ours with FedAvg stand in Table "
        "1. After-pruned values of the paper such as 11.11% are those of a "
        "constant answer.",
    )


def removal_table(groups: Sequence[Group]) -> Table:
    """Table 3 and the appendix: several classes at once."""

    def ours(group: Group) -> list[Cell] | None:
        found = joined.method_rows(group, PRUNING)
        if not found:
            return None
        ratio = joined.speedup(group, PRUNING, "retrained")[0]
        return [
            *_mean_pair(joined.raw_stages(group)),
            *_mean_pair(joined.cut_stages(group, PRUNING, 0)),
            *_mean_pair(joined.cut_stages(group, PRUNING, -1)),
            *_mean_pair(found),
            *_mean_pair(joined.method_rows(group, roles.RETRAIN)),
            cell(ratio, formats.times(ratio)),
        ]

    rows = _beside_cifar10(
        groups,
        paper_numbers.TABLE_3_AND_APPENDIX,
        others=lambda group: len(group.classes) > 1,
        paper=lambda entry: [
            *(c for pair in entry[2:7] for c in _pair(pair)),
            cell(entry.speedup, formats.times(entry.speedup)),
        ],
        ours=ours,
    )
    stages = ("Raw", "First class pruned", "Last class pruned")
    return Table(
        "table_3_and_appendix",
        "Table 3 and appendix: several classes removed",
        (
            *_text_columns("Data", "Model", "Classes", "Source"),
            *_accuracy_columns(*stages, "Fine-tuned", "Re-trained"),
            Column("Speed-up"),
            _OURS,
        ),
        tuple(rows),
        "The first three rows of the paper are its Table 3.",
    )


def membership_table(groups: Sequence[Group]) -> Table:
    """Table 4: difference of the attack's success rate to retraining."""

    def ours(group: Group) -> list[Cell] | None:
        found = _evidence(group, "shadow_success_rate")
        if not found:
            return None
        # An attacker who gives every model the same answer has not attacked.
        attacked = [
            abs(value - sum(retrained) / len(retrained))
            for value, retrained in found
            if any(other != value for other in retrained)
        ]
        made = mean_cell(attacked, _exact)
        return [made if attacked else cell(None, judgement.NO_RESULT)]

    rows = _beside_cifar10(
        groups,
        paper_numbers.TABLE_4,
        others=lambda group: True,
        paper=lambda entry: [cell(entry.difference, _exact(entry.difference))],
        ours=ours,
    )
    return Table(
        "table_4",
        "Table 4: membership attack, difference to retraining",
        (
            *_text_columns("Data", "Model", "Classes", "Source"),
            Column("Difference of success rate"),
            _OURS,
        ),
        tuple(rows),
        "Ours: shadow-model attack, absolute difference to the mean of the retrained "
        "models. Whether a difference matters is judged in each run's own report.",
    )


def distribution_table(groups: Sequence[Group]) -> Table:
    """Table 5: class-wise accuracy against retraining."""

    def ours(group: Group) -> list[Cell] | None:
        greatest = _evidence(group, "class_accuracy_difference")
        divergence = _evidence(group, "class_accuracy_kl")
        if not greatest and not divergence:
            return None
        return [
            mean_cell([value for value, _ in greatest], _exact),
            mean_cell([value for value, _ in divergence]),
        ]

    rows = _beside_cifar10(
        groups,
        paper_numbers.TABLE_5,
        others=lambda group: True,
        paper=lambda entry: [
            cell(entry.difference, _exact(entry.difference)),
            cell(entry.divergence, formats.number(entry.divergence)),
        ],
        ours=ours,
    )
    return Table(
        "table_5",
        "Table 5: class-wise accuracy, distance to retraining",
        (
            *_text_columns("Data", "Model", "Classes", "Source"),
            Column("Greatest difference"),
            Column("KL divergence"),
            _OURS,
        ),
        tuple(rows),
        "The paper does not say how accuracies become a distribution; ours adds 1e-6 "
        "to each and scales the sum to one.",
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


def _beside_cifar10(groups, entries, *, others, paper, ours) -> list[tuple[Cell, ...]]:
    """`_beside` for tables whose rows are a model and classes of CIFAR-10."""
    return _beside(
        groups,
        entries,
        matches=lambda group, entry: same_cifar10(group, entry.model, entry.classes),
        others=others,
        paper_label=lambda entry: ("cifar10", entry.model, _plus(entry.classes)),
        our_label=lambda group: (group.dataset, group.model, _plus(group.classes)),
        paper=paper,
        ours=ours,
    )


def _beside(
    groups: Sequence[Group],
    entries: Iterable[Any],
    *,
    matches: Callable[[Group, Any], bool],
    others: Callable[[Group], bool],
    paper_label: Callable[[Any], tuple[str, ...]],
    our_label: Callable[[Group], tuple[str, ...]],
    paper: Callable[[Any], list[Cell]],
    ours: Callable[[Group], list[Cell] | None],
) -> list[tuple[Cell, ...]]:
    """Follows each row of the paper with ours, then adds ours that it has no row for.

    Args:
      groups: Our groups.
      entries: The paper's rows.
      matches: Whether a group repeats a row of the paper.
      others: Whether a group that repeats none belongs into this table at all.
      paper_label: The first columns of a row of the paper.
      our_label: The first columns of a row of ours.
      paper: The numbers of a row of the paper.
      ours: The numbers of a group, `None` if it has none.

    Returns:
      The rows; the column after the label says whose they are, the last which group.
    """
    rows = []
    used = set()

    def add(group: Group) -> None:
        numbers = ours(group)
        if numbers is not None:
            head, *rest = our_label(group)
            label = [cell(head, kind="highlight"), *_labels(*rest)]
            rows.append((*label, cell("ours"), *numbers, cell(group.tag)))

    for entry in entries:
        label = _labels(*paper_label(entry))
        rows.append((*label, cell("paper"), *paper(entry), cell("")))
        for position, group in enumerate(groups):
            if matches(group, entry):
                used.add(position)
                add(group)
    for position, group in enumerate(groups):
        if position not in used and others(group):
            add(group)
    return rows


def _text_columns(*titles: str) -> list[Column]:
    return [Column(title, numeric=False) for title in titles]


def _plus(classes: Iterable[int]) -> str:
    return "+".join(map(str, classes))


def _labels(*names: str) -> tuple[Cell, ...]:
    return tuple(cell(name, formats.in_words(name)) for name in names)


def _accuracy_columns(*groups: str) -> list[Column]:
    return [
        Column(title, group=group) for group in groups for title in ("U-set", "R-set")
    ]


def _pair(accuracy: Accuracies) -> list[Cell]:
    return [cell(value, _exact(value)) for value in accuracy]


def _mean_pair(rows: Sequence) -> list[Cell]:
    return [
        mean_cell([row.u_accuracy for row in rows], _exact),
        mean_cell([row.r_accuracy for row in rows], _exact),
    ]


def _exact(value: float) -> str:
    return formats.percent(value, 2)
