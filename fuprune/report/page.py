"""The page of one run: four questions, each a screen, with what supports them folded.

`build` reads what a run wrote and nothing else, so a report can be made again at any
time, and the same files give the same bytes. The page holds everything it shows; a
content-security policy forbids scripts and any connection.
"""

import functools
import importlib.resources
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fuprune.audit.record import Audit
from fuprune.errors import InputError
from fuprune.files import write_whole
from fuprune.report import figures, subject, tables
from fuprune.report.figures import Drawing
from fuprune.report.subject import Subject
from fuprune.report.summary import closing_lines, summary
from fuprune.report.tables import Table, cell, words
from fuprune.results import Run, RunRecord
from fuprune.surgery.plan import PrunePlan


def build(workdir: str | Path) -> Path:
    """Writes the report of a run into `workdir/report`; the path of `report.html`.

    Beside it are `report.md`, one CSV per table, and an SVG, a PDF and a CSV per
    figure. Missing files of the run are said in the page.
    """
    about = subject.read_subject(workdir)
    drawn = [one for draw in figures.OF_A_RUN if (one := draw(about)) is not None]
    made = _tables(about)
    html = render("page.html", **_content(about, drawn, made))
    return write_report(Path(workdir) / "report", html, _heading(about), made, drawn)


def closing(workdir: str | Path, written: str | Path) -> tuple[str, str]:
    """What a terminal shows at the end of a run: its methods, and six lines."""
    about = subject.read_subject(workdir)
    table = tables.only(tables.methods_table(about), _IN_TERMINAL)._replace(title="")
    return tables.to_text(table), closing_lines(summary(about), str(written))


_ACCURACY = ("Method", "Forgot", "Accuracy U-set", "Accuracy R-set")
_IN_TERMINAL = (*_ACCURACY, "Rounds", "Audit")
_MAIN = (
    *(*_ACCURACY, "Role", "Images", "Time", "Uploaded", "Parameters"),
    *("Speed-up over retraining images", "Audit"),
)


class Shown(str):
    """HTML that a notebook renders."""

    def _repr_html_(self) -> str:
        return str(self)


def show(value: Any) -> Shown:
    """A record, an audit, a plan or a whole run (`read_run`) as HTML."""
    found, made = None, []
    if isinstance(value, PrunePlan):
        made = [plan_table(value)]
    elif isinstance(value, Run | RunRecord | Audit):
        about = subject.subject_of(_as_run(value))
        found = None if isinstance(value, Audit) else summary(about)
        made = [
            tables.methods_table(about),
            tables.audit_table(about, headline=True),
        ]
    else:
        raise InputError(
            f"a {type(value).__name__} cannot be shown; give a RunRecord, an audit, a "
            "PrunePlan or a Run."
        )
    # A scoped sheet, so that the page's rules do not reach the rest of the notebook.
    sheet = style_sheet().replace(":root", ":scope")
    kept = [table for table in made if table.rows]
    return Shown(render("shown.html", sheet=sheet, summary=found, tables=kept))


def _as_run(value: Run | RunRecord | Audit) -> Run:
    if isinstance(value, Audit):
        return Run("", RunRecord(classes=value.classes), [], {}, value)
    return Run("", value, [], {}) if isinstance(value, RunRecord) else value


def plan_table(plan: PrunePlan) -> Table:
    """How many channels a plan keeps in each layer, and which."""
    rows = [
        [cell(layer), cell(len(kept)), cell(", ".join(map(str, kept)))]
        for layer, kept in plan.keep.items()
    ]
    columns = [*words("Layer"), tables.Column("Kept"), *words("Channels kept")]
    return Table("plan", "What a cut keeps", columns, rows)


def _tables(about: Subject) -> list[Table]:
    """Every table of a run that has rows."""
    record, audit = about.record, about.audit
    provenance = record.provenance
    made = (
        tables.methods_table(about),
        tables.audit_table(about, headline=True),
        tables.audit_table(about, headline=False),
        tables.seeds_table(about),
        tables.stages_table(record),
        tables.units_table(about.run.clocks),
        tables.key_value_table("privacy", "The privacy accountant", record.privacy),
        tables.key_value_table("settings", "Every setting", provenance.config),
        tables.key_value_table("versions", "Versions", provenance.versions),
        tables.key_value_table(
            "audit_settings", "Settings of the audit", audit.settings if audit else {}
        ),
    )
    return [table for table in made if table.rows]


def _content(
    about: Subject, drawn: Sequence[Drawing], made: Sequence[Table]
) -> dict[str, Any]:
    """What the template is filled with."""
    record, provenance = about.record, about.record.provenance
    return dict(
        title=subject.title(record),
        facts=_facts(about),
        notes=about.run.notes,
        summary=summary(about),
        figures={one.name: framed(one) for one in drawn},
        tables={table.name: table for table in made},
        main_columns=_MAIN,
        of_classes=about.of_classes,
        them=subject.forgotten(record),
        confidence=tables.confidence(about.audit),
        command=shlex.join(provenance.command),
        rebuild=f"python -m fuprune.report {about.run.name}",
        commit=provenance.commit,
        platform=provenance.platform,
    )


def framed(drawing: Drawing) -> dict[str, Any]:
    """A figure as the templates take it."""
    return dict(vars(drawing), svg=Markup(drawing.svg))


def _facts(about: Subject) -> list[tuple[str, str]]:
    """What identifies a run, name and value."""
    named = {
        "seed": "seed",
        "clients": "partition.clients",
        "per round": "train.cohort",
        "bias": "partition.bias",
        "algorithm": "train.algorithm",
        "rounds": "train.rounds",
        "pruning rate": "prune.rate",
        "images per class": "data.limit",
        "retrained models of": "audit.reference",
    }
    found = {k: subject.setting_in_use(about.record, v) for k, v in named.items()}
    facts = [
        (k, str(v)) for k, v in found.items() if v not in (None, "", 0) or k == "seed"
    ]
    return [("run", about.run.name), *(one for one in facts if one[1] != "None")]


def _heading(about: Subject) -> list[str]:
    """What `report.md` says before the tables."""
    text, found = tables.markdown_text, summary(about)
    answers = [f"- **{one.question}** {text(one.text)}" for one in found.answers]
    notes = [f"> {text(note)}" for note in about.run.notes]
    lines = [f"# {text(subject.title(about.record))}", ""]
    return [*lines, f"**{text(found.headline)}**", "", *answers, "", *notes]


@functools.cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("fuprune.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(style_sheet=lambda: Markup(style_sheet()))
    made.filters["only"] = tables.only
    made.filters["chosen"] = lambda by_name, names: [
        by_name[name] for name in names if name in by_name
    ]
    return made


def render(template: str, **content: Any) -> str:
    """Fills a template of this folder; text is escaped."""
    return _templates().get_template(template).render(**content)


def style_sheet() -> str:
    """The style sheet that every drawing and table relies on."""
    folder = importlib.resources.files("fuprune.report")
    return folder.joinpath("page.css").read_text(encoding="utf-8")


def write_report(
    folder: Path,
    html: str,
    heading: Iterable[str],
    made: Iterable[Table],
    drawn: Iterable[Drawing],
) -> Path:
    """Writes a report's files, each whole, and removes those of an earlier one.

    `heading` is the lines of Markdown before the tables. Returns `report.html`'s path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder, made = folder.resolve(), list(made)
    content: dict[str, str | bytes] = {
        "report.md": "\n".join([*heading, "", *map(tables.to_markdown, made)])
    }
    content |= {f"{table.name}.csv": tables.to_csv(table) for table in made}
    for one in drawn:
        content[f"{one.name}.svg"] = _DECLARED + one.svg
        content[f"{one.name}.pdf"] = one.pdf
        content[f"{one.name}.csv"] = tables.to_csv(one.data)
    # A folder that holds a report is the report's own.
    if (folder / "report.html").exists():
        for path in folder.iterdir():
            if path.suffix in (".csv", ".svg", ".pdf") and path.name not in content:
                path.unlink()
    for name, data in content.items():
        write_whole(folder / name, data)
    write_whole(folder / "report.html", html)
    return folder / "report.html"


_DECLARED = '<?xml version="1.0" encoding="utf-8"?>\n'
