"""The page around the evidence: head, contents, sections, figures, and its files.

The page holds everything it shows. A content-security policy forbids scripts and any
connection, so that even a slip in escaping could not run what a file carries.
"""

import importlib.resources
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fuprune.errors import InputError
from fuprune.files import write_whole
from fuprune.report import charts, marks, table_forms
from fuprune.report.markup import Child, Markup, element, join, region, text
from fuprune.report.table_forms import Table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Section(NamedTuple):
    """One question of the page and its answer."""

    anchor: str
    contents: str  # its name in the table of contents
    body: Markup


def section(anchor: str, contents: str, question: str, lead: str, *body: Child):
    """Makes a section that opens with a question and explains it in plain words."""
    heading = element("h2", None, question) if question else None
    explained = element("p", {"class": "lead"}, lead) if lead else None
    body = (heading, explained, *body)
    return Section(anchor, contents, element("section", {"id": anchor}, *body))


def figure(
    drawing: Child,
    title: str = "",
    caption: str = "",
    *,
    question: str = "",
    legend: Child = None,
    sideways: bool = False,
    verdict: Child = None,
) -> Markup:
    """Frames a drawing with its title above and its explanation below."""
    heading = element("h3", None, title, " " if verdict else None, verdict)
    return element(
        "figure",
        None,
        heading if title else None,
        element("p", {"class": "question"}, question) if question else None,
        region("sideways", f"Figure: {title}", drawing) if sideways else drawing,
        legend,
        element("figcaption", None, caption) if caption else None,
    )


def line_figure(
    series: Sequence[charts.Series],
    horizontal: marks.Axis,
    vertical: marks.Axis,
    label: str,
    title: str,
    caption: str,
    guide: tuple[float, float] | None = None,
    guide_name: str = "",
) -> Markup:
    """Frames a `charts.line_chart`; its legend lists lines of one family once."""
    drawing = charts.line_chart(series, horizontal, vertical, label, guide)
    families = Counter((line.family or line.label, line.style) for line in series)
    entries = [
        (name if amount == 1 else f"{name} ({amount})", "line", style)
        for (name, style), amount in families.items()
    ]
    listed = legend(entries + ([(guide_name, "guide", "")] if guide else []))
    return figure(drawing, title, caption, legend=listed)


def grid(figures: Sequence[Child], style: str = "grid") -> Markup | None:
    """Sets figures side by side where there is room; a "stack" is a column of them."""
    kept = [entry for entry in figures if entry]
    return element("div", {"class": style}, *kept) if kept else None


def legend(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Lists names beside their sample: name, kind of `marks.swatch`, CSS class."""
    items = [
        element("li", None, marks.swatch(kind, style), name)
        for name, kind, style in entries
    ]
    return element("ul", {"class": "legend"}, *items)


def details(summary: str, *content: Child) -> Markup:
    """Folds content under its summary."""
    return element("details", None, element("summary", None, summary), *content)


def missing(*explanation: Child) -> Markup:
    """Says what is not there, instead of leaving a gap."""
    return element("p", {"class": "missing"}, *explanation)


def note(*content: Child) -> Markup:
    """Sets a remark in small soft letters."""
    return element("p", {"class": "note"}, *content)


def document(
    title: str,
    eyebrow: str,
    facts: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    footer: Child,
) -> str:
    """Puts the page together.

    The eyebrow is the small line above the heading, and the facts below it are the name
    and value of what identifies the run.
    """
    items = [
        element("li", None, element("a", {"href": f"#{part.anchor}"}, part.contents))
        for part in sections
    ]
    known = [
        element("li", None, name, " ", element("b", None, value))
        for name, value in facts
        if value
    ]
    return _PAGE.format(
        policy=_POLICY,
        title=text(title),
        style=style_sheet(),
        links=element("ol", None, *items),
        eyebrow=text(eyebrow),
        facts=element("ul", {"class": "facts"}, *known),
        sections=join(part.body for part in sections),
        footer=join([footer]),
    )


def style_sheet() -> str:
    """The style sheet that every drawing and table relies on."""
    folder = importlib.resources.files("fuprune.report")
    return folder.joinpath("page.css").read_text(encoding="utf-8")


def write_report(
    folder: Path, html: str, heading: Iterable[str], tables: Iterable[Table]
) -> Path:
    """Writes `report.html`, `report.md` and one CSV per table, each as a whole.

    `heading` is the lines of Markdown before the tables. Returns `report.html`'s path.

    Raises:
      InputError: a file is in the folder's place.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"{str(folder)!r} is not a folder; remove it or choose another place."
        ) from error
    folder, tables = folder.resolve(), list(tables)
    parts = [*heading, "", *map(table_forms.to_markdown, tables)]
    write_whole(folder / "report.md", "\n".join(parts))
    for table in tables:
        write_whole(folder / f"{table.name}.csv", table_forms.to_csv(table))
    write_whole(folder / "report.html", html)
    return folder / "report.html"


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title><style>{style}</style></head>
<body><div class="layout">
<nav class="side" aria-label="Contents"><p class="mark">fuprune</p>{links}</nav>
<main><header class="top"><p class="eyebrow">{eyebrow}</p><h1>{title}</h1>{facts}
<details class="contents"><summary>Contents</summary>{links}</details></header>
{sections}
<footer>{footer}</footer></main></div></body></html>
"""
