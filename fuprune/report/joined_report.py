"""The report over several runs: the paper's tables and Figure 3, ours beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fuprune.audit.evidence import AuditReport
from fuprune.errors import InputError
from fuprune.report import (
    charts,
    figures,
    formats,
    joined,
    page,
    paper,
    roles,
    table_forms,
)
from fuprune.report.joined import Group
from fuprune.report.markup import Child, Markup, element
from fuprune.report.table_forms import Table
from fuprune.results import Run, read_run


def join(workdirs: Sequence[str | Path], folder: str | Path) -> Path:
    """Writes one report over several runs.

    Args:
      workdirs: directories of runs. Seeds and parts of one experiment are put together.
      folder: where `report.html`, `report.md` and the CSV files go.

    Returns:
      The path of `report.html`.

    Raises:
      InputError: a directory is not a run, is given twice, or none is given.
    """
    if not workdirs:
        raise InputError("no run was given; name at least one run's directory.")
    places = [Path(workdir).resolve() for workdir in workdirs]
    for place in places:
        if places.count(place) > 1:
            raise InputError(f"{str(place)!r} is given twice; give each run once.")
    runs = [read_run(workdir, AuditReport.from_json) for workdir in workdirs]
    groups = joined.group_runs(runs)
    every_table = table_forms.by_name(
        [
            joined.methods_table(groups),
            joined.speed_table(groups),
            *paper.paper_tables(groups),
            joined.runs_table(groups),
        ]
    )
    names = table_forms.markdown_text(formats.listing([run.name for run in runs], 20))
    return page.write_report(
        Path(folder),
        _page(runs, groups, every_table),
        ["# Our runs beside the paper's tables", "", f"Runs: {names}."],
        every_table.values(),
    )


def _page(
    runs: Sequence[Run], groups: Sequence[Group], every_table: Mapping[str, Table]
) -> str:
    def in_page(name: str) -> Child:
        table = every_table.get(name)
        if table is None:
            return page.missing("No run holds numbers for this.")
        return table_forms.to_html(table, caption=name == "figure_3")

    curves = page.grid([_recovery(group) for group in groups])
    command = "python -m fuprune.report " + " ".join(run.name for run in runs)
    sections = [
        page.section(
            "methods",
            "All methods",
            "What did each method reach, and at what cost?",
            "Every experiment and every way to forget in it, controls included. A "
            "method that does not beat its controls somewhere has shown nothing.",
            *(_group_methods(group) for group in groups),
            page.note(every_table["methods"].note if "methods" in every_table else ""),
        ),
        page.section(
            "figure-3",
            "Figure 3: speed",
            "How fast does accuracy come back?",
            "Accuracy on what remains (R-set) against rounds of fine-tuning, beside "
            "retraining from scratch; shaded is one standard deviation over seeds.",
            curves or page.missing("No run logged R-set accuracy while unlearning."),
            in_page("figure_3"),
        ),
        *(
            page.section(
                name, table.title.split(":")[0], table.title, "", in_page(name)
            )
            for name, table in every_table.items()
            if name.startswith("table_")
        ),
        page.section(
            "runs",
            "The runs",
            "Which runs went in?",
            "Each has a report of its own with verdict and evidence.",
            in_page("runs"),
            element("h3", None, "This page, from the files alone"),
            element("pre", {"class": "wrapping"}, command),
        ),
    ]
    data = formats.listing(list(dict.fromkeys(group.dataset for group in groups)))
    models = formats.listing(list(dict.fromkeys(group.model for group in groups)))
    amounts = [("runs", str(len(runs))), ("experiments", str(len(groups)))]
    return page.document(
        "Our runs beside the paper's tables",
        "Federated unlearning \N{MIDDLE DOT} joined report",
        [*amounts, ("data", data), ("models", models)],
        sections,
        "Made by fuprune from the files of the runs listed above; nothing on this page "
        "is loaded from elsewhere.",
    )


def _group_methods(group: Group) -> Child:
    """One experiment's methods; its name is the heading, not a column."""
    table = table_forms.without_empty_columns(joined.group_table(group))
    heading = element("h3", None, group.subject)
    if not table.rows:
        return [heading, page.missing("No method of this run has finished.")]
    return [heading, table_forms.to_html(table, caption=False)]


def _recovery(group: Group) -> Markup | None:
    """Figure 3 of one group: each method's mean over its seeds."""
    methods = joined.recovery_curves(group)
    styles = roles.styles(methods, group.tested)
    series = []
    for name, curves in methods.items():
        means, spread = charts.mean_curve(curves)
        if means:
            words = formats.in_words(name)
            series.append(charts.Series(words, styles[name], means, spread))
    target = joined.reached(group, roles.RETRAIN, "retrained")
    accuracy = target.accuracy if target else None
    return figures.recovery_chart(series, accuracy, group.subject, f"{group.scale}.")
