"""The report over several runs: the paper's tables and Figure 3, ours beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fuprune.errors import InputError
from fuprune.report import (
    charts,
    formats,
    joined_runs,
    joined_tables,
    output,
    page,
    palette,
    paper_tables,
    tables,
)
from fuprune.report.joined_runs import Group
from fuprune.report.markup import Child, Markup, element
from fuprune.report.run_figures import recovery_chart, unlearning_curves
from fuprune.report.run_files import Run, read_run


def join(workdirs: Sequence[str | Path], folder: str | Path) -> Path:
    """Writes one report over several runs.

    Args:
      workdirs: Directories of runs. Those that differ only in their seed are averaged.
      folder: Where `report.html`, `report.md` and the CSV files go.

    Returns:
      The path of `report.html`.

    Raises:
      ValueError: If a directory is not a run, is given twice, or none is given.
    """
    if not workdirs:
        raise InputError("no run was given; name at least one run's directory.")
    places = [Path(workdir).resolve() for workdir in workdirs]
    for place in places:
        if places.count(place) > 1:
            raise InputError(f"{str(place)!r} is given twice; give each run once.")
    runs = [read_run(workdir) for workdir in workdirs]
    groups = joined_runs.group_runs(runs)
    every_table = _tables(groups)
    files = {
        "report.html": _page(runs, groups, every_table),
        "report.md": _markdown(runs, every_table),
    }
    for table in every_table.values():
        files[f"{table.name}.csv"] = tables.to_csv(table)
    target = output.make_folder(Path(folder))
    output.write_files(target, files)
    return target / "report.html"


def _tables(groups: Sequence[Group]) -> dict[str, tables.Table]:
    found = [
        joined_tables.methods_table(groups),
        joined_tables.speed_table(groups),
        paper_tables.bias_table(groups),
        paper_tables.erasure_table(groups),
        paper_tables.removal_table(groups),
        paper_tables.membership_table(groups),
        paper_tables.distribution_table(groups),
        joined_tables.runs_table(groups),
    ]
    return {table.name: table for table in found if table is not None}


def _page(
    runs: Sequence[Run],
    groups: Sequence[Group],
    every_table: Mapping[str, tables.Table],
) -> str:
    def shown(name: str) -> Child:
        table = every_table.get(name)
        if table is None:
            return page.missing("No run holds figures for this.")
        remark = page.note(table.note) if table.note else None
        return [_not_run(table), tables.to_html(table), remark]

    figures = [_recovery(group) for group in groups]
    sections = [
        page.section(
            "methods",
            "All methods",
            "What did each method reach, and at what cost?",
            "Every experiment and every way to forget in it, controls included. A "
            "method that does not beat its controls somewhere has shown nothing.",
            *(_group_methods(group) for group in groups),
            page.note(
                "Mean \N{PLUS-MINUS SIGN} standard deviation over runs that differ "
                "only in their seed. Audit: tests, summed over those runs."
            ),
        ),
        page.section(
            "figure-3",
            "Figure 3: speed",
            "How fast does accuracy come back?",
            "Accuracy on the remaining classes against rounds of fine-tuning, beside "
            "retraining from scratch; shaded is one standard deviation over seeds.",
            page.grid(figures)
            or page.missing("No run logged an unlearning phase with R-set accuracy."),
            shown("figure_3"),
        ),
        page.section(
            "table-1",
            "Table 1: biased data",
            "What if the clients' data are biased?",
            "The larger q, the more each client's images are of one class.",
            shown("table_1"),
        ),
        page.section(
            "table-2",
            "Table 2: erasure",
            "Is the class erased, and at what price?",
            "Test accuracy on the forgotten class (U-set) and on the others (R-set).",
            shown("table_2"),
        ),
        page.section(
            "table-3",
            "Table 3 and appendix",
            "Can several classes be removed?",
            "Classes are cut one after another, then fine-tuned together.",
            shown("table_3_and_appendix"),
        ),
        page.section(
            "table-4",
            "Table 4: membership",
            "Does an attacker learn more than from retraining?",
            "Success of a membership-inference attack, as difference to retraining.",
            shown("table_4"),
        ),
        page.section(
            "table-5",
            "Table 5: distribution",
            "Is accuracy spread over the classes as after retraining?",
            "How far the class-wise accuracies are from those of retrained models.",
            shown("table_5"),
        ),
        page.section(
            "runs",
            "The runs",
            "Which runs went in?",
            "Each has a report of its own with verdict and evidence.",
            shown("runs"),
            element("h3", None, "This page, from the files alone"),
            element(
                "pre",
                {"class": "wrapping"},
                "python -m fuprune.report " + " ".join(run.name for run in runs),
            ),
        ),
    ]
    return page.document(
        "Our runs beside the paper's tables",
        "Federated unlearning \N{MIDDLE DOT} joined report",
        [
            ("runs", str(len(runs))),
            ("experiments", str(len(groups))),
            ("data", formats.listing(list(dict.fromkeys(g.dataset for g in groups)))),
            ("models", formats.listing(list(dict.fromkeys(g.model for g in groups)))),
        ],
        sections,
        "Made by fuprune from the files of the runs listed above; nothing on this page "
        "is loaded from elsewhere.",
    )


def _group_methods(group: Group) -> Child:
    """Shows one experiment's methods; its name is the heading, not a column."""
    table = joined_tables.methods_table([group])
    heading = element("h3", None, joined_runs.subject(group))
    if table is None:
        return [heading, page.missing("No method of this run has finished.")]
    narrow = table._replace(
        title=joined_runs.subject(group),
        columns=table.columns[1:],
        rows=tuple((row[1]._replace(kind=row[0].kind), *row[2:]) for row in table.rows),
    )
    remark = page.note(f"{joined_runs.scale(group)}.")
    return [heading, tables.to_html(narrow, caption=False), remark]


def _not_run(table: tables.Table) -> Markup | None:
    """Says how much of a table of the paper has no run beside it."""
    sources = [column.title for column in table.columns]
    if "Source" not in sources:
        return None
    position = sources.index("Source")
    labels: dict[str, set[tuple[str, ...]]] = {"ours": set(), "paper": set()}
    for row in table.rows:
        labels[row[position].text].add(tuple(entry.text for entry in row[:position]))
    paper = labels["paper"]
    open_rows = len(paper - labels["ours"])
    if not open_rows:
        return None
    return page.missing(
        f"{open_rows} of {formats.plural(len(paper), 'row')} of the paper's table have "
        "no run here."
    )


def _recovery(group: Group) -> Markup | None:
    families: dict[str, list[list[tuple[float, float]]]] = {}
    for run in group.runs:
        for name, points in unlearning_curves(run):
            families.setdefault(palette.family(name), []).append(points)
    if not families:
        return None
    styles = palette.styles(families)
    series = []
    for name, curves in families.items():
        by_round: dict[float, list[float]] = {}
        for points in curves:
            for x, y in points:
                by_round.setdefault(x, []).append(y)
        # A mean over runs that were still going would jump where one of them stops.
        kept = sorted(x for x in by_round if len(by_round[x]) == len(curves))
        if not kept:
            continue
        means = tuple((x, sum(by_round[x]) / len(by_round[x])) for x in kept)
        spread = tuple(joined_runs.standard_deviation(by_round[x]) for x in kept)
        words = formats.method_name(name)
        shaded = spread if len(curves) > 1 else ()
        series.append(charts.Series(words, styles[name], means, shaded))
    if not series:
        return None
    targets = {run.target_accuracy for run in group.runs}
    target = targets.pop() if len(targets) == 1 else None
    caption = f"{joined_runs.scale(group)}."
    return recovery_chart(series, target, joined_runs.subject(group), caption)


def _markdown(runs: Sequence[Run], every_table: Mapping[str, tables.Table]) -> str:
    names = formats.listing([run.name for run in runs], 20)
    lines = ["# Our runs beside the paper's tables", ""]
    lines += [f"Runs: {tables.markdown_text(names)}.", ""]
    return "\n".join(lines + [tables.to_markdown(t) for t in every_table.values()])
