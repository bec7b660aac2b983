"""Tables over all runs: every method, the speed-ups of Figure 3, and the runs."""

from collections.abc import Sequence

from fuprune.report import formats, joined_runs, palette, paper_numbers
from fuprune.report.joined_runs import Group, mean_cell, rounds_cell, same_cifar10
from fuprune.report.tables import Cell, Column, Table, cell
from fuprune.report.verdict import main_method, tally


def speed_table(groups: Sequence[Group]) -> Table | None:
    """Figure 3 in numbers: rounds to target and speed-up over retraining."""
    rows = []
    for group in groups:
        method = joined_runs.group_method(group)
        found = joined_runs.method_rows(group, method)
        retrained = joined_runs.method_rows(group, palette.RETRAIN)
        if not found:
            continue
        rows.append(
            (
                cell(joined_runs.subject(group)),
                cell(method, formats.method_name(method)),
                rounds_cell(found),
                rounds_cell(retrained),
                mean_cell([row.speedup for row in found], formats.times),
                cell(_paper_speedup(group)),
            )
        )
    if not rows:
        return None
    return Table(
        "figure_3",
        "Figure 3 in numbers: rounds until the target",
        (
            Column("Experiment", numeric=False),
            Column("Method", numeric=False),
            Column("Rounds, ours"),
            Column("Rounds, retraining"),
            Column("Speed-up"),
            Column("Paper's speed-up"),
        ),
        tuple(rows),
        "The paper gives ranges over its models and no curves in numbers.",
    )


def _paper_speedup(group: Group) -> str:
    if not group.forgets_last:
        rows = [
            row.speedup
            for row in paper_numbers.TABLE_3_AND_APPENDIX
            if same_cifar10(group, row.model, row.classes)
        ]
        return formats.times(rows[0]) if rows else ""
    for row in paper_numbers.FIGURE_3 if group.is_even else ():
        if row.dataset == group.dataset and group.model.startswith(row.family):
            if row.low == row.high:
                return formats.times(row.low)
            return f"{row.low:g} to {formats.times(row.high)}"
    return ""


def methods_table(groups: Sequence[Group]) -> Table | None:
    """Every method of every group: what it reached, cost, and how the audit judged."""
    rows = []
    for group in groups:
        names = dict.fromkeys(
            palette.family(row.method) for run in group.runs for row in run.methods
        )
        main = joined_runs.group_method(group)
        for name in names:
            found = joined_runs.method_rows(group, name)
            if not found:
                continue
            rows.append(
                (
                    cell(
                        joined_runs.subject(group),
                        kind="highlight" if name == main else "",
                    ),
                    cell(name, formats.method_name(name)),
                    mean_cell([row.u_accuracy for row in found], formats.percent),
                    mean_cell([row.r_accuracy for row in found], formats.percent),
                    rounds_cell(found),
                    mean_cell(
                        [row.seconds for row in found], formats.seconds, spread=False
                    ),
                    mean_cell(
                        [row.upload_bytes for row in found], formats.size, spread=False
                    ),
                    mean_cell([row.speedup for row in found], formats.times),
                    *_verdict_cells(group, name),
                    cell(len(found)),
                )
            )
    if not rows:
        return None
    return Table(
        "methods",
        "Every method of every experiment",
        (
            Column("Experiment", numeric=False),
            Column("Method", numeric=False),
            Column("U-set accuracy"),
            Column("R-set accuracy"),
            Column("Rounds to target"),
            Column("Time"),
            Column("Uploaded"),
            Column("Speed-up"),
            Column("Pass", group="Audit"),
            Column("Fail", group="Audit"),
            Column("Cannot tell", group="Audit"),
            Column("Results"),
        ),
        tuple(rows),
        "Mean \N{PLUS-MINUS SIGN} standard deviation over runs that differ only in "
        "their seed. Audit: tests, summed over those runs.",
    )


def _verdict_cells(group: Group, name: str) -> list[Cell]:
    counts = [
        tally(run.audit, name)
        for run in group.runs
        if run.audit is not None and name in run.audit.candidates
    ]
    if not counts:
        return [cell(None)] * 3
    return [cell(sum(column)) for column in zip(*counts, strict=True)]


def runs_table(groups: Sequence[Group]) -> Table:
    """Lists every run that went in."""
    rows = []
    for group in groups:
        for run in group.runs:
            main = main_method(run)
            counts = (
                tally(run.audit, main)
                if run.audit is not None and main in run.audit.candidates
                else None
            )
            rows.append(
                (
                    cell(run.name),
                    cell(joined_runs.subject(group)),
                    cell(str(run.config.get("seed", ""))),
                    cell(joined_runs.scale(group)),
                    cell(
                        f"{counts.passed} pass, {counts.failed} fail, "
                        f"{counts.undecided} cannot tell"
                        if counts
                        else "not audited"
                    ),
                    cell(run.commit[:12]),
                    cell(" ".join(run.notes)),
                )
            )
    names = ("Run", "Experiment", "Seed", "Scale", "Audit", "Commit", "Notes")
    wordy = ("Scale", "Notes", "Audit")
    return Table(
        "runs",
        "Every run that went in",
        tuple(Column(name, numeric=False, words=name in wordy) for name in names),
        tuple(rows),
    )
