"""Tables that come out three times: in the page, as Markdown and as CSV.

A cell has the text a person reads and, where it is a number, the full value that goes
into the CSV. Each form escapes what it must: tags, pipes, spreadsheet formulas.
"""

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fuprune.report import formats
from fuprune.report.markup import Markup, element, join, printable, region

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Cell(NamedTuple):
    """One value of a table."""

    text: str
    value: float | str | None  # for the CSV; None is unknown, empty there and muted
    highlight: bool = False  # in a row's first cell, to tint the row
    verdict: str = ""  # of the audit, a coloured word beside the text


class Column(NamedTuple):
    """Heading of a column; neighbours with the same `group` share a heading above."""

    title: str
    numeric: bool = True
    group: str = ""
    words: bool = False  # holds sentences: give it room and let it wrap


class Table(NamedTuple):
    """A titled table with a file name of its own."""

    name: str  # file name without its ending; a constant of the program
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]  # without any, the table is left out of a report
    note: str = ""
    gap: str = ""  # what it lacks, said above it in a page


def by_name(tables: Iterable[Table]) -> dict[str, Table]:
    """Those tables that hold something."""
    return {table.name: table for table in tables if table.rows}


def without_empty_columns(table: Table) -> Table:
    """Leaves out the columns in which no row has a value."""
    used = [
        any(entry.value is not None for entry in c)
        for c in zip(*table.rows, strict=True)
    ]
    columns = [*itertools.compress(table.columns, used)]
    rows = [[*itertools.compress(row, used)] for row in table.rows]
    return table._replace(columns=columns, rows=rows)


def in_words(*titles: str) -> list[Column]:
    """Makes columns of text."""
    return [Column(title, numeric=False) for title in titles]


def cell(
    value: object,
    text: str | Callable[..., str] | None = None,
    *,
    highlight: bool = False,
    verdict: str = "",
) -> Cell:
    """Makes a cell of a raw value and the text that a person reads, or its writer."""
    if value is None:
        shown = text if isinstance(text, str) else formats.MISSING
        return Cell(shown, None, highlight, verdict)
    exact = value if isinstance(value, int | float) else str(value)
    shown = text(value) if callable(text) else text
    return Cell(str(value) if shown is None else shown, exact, highlight, verdict)


def chip(verdict: str) -> Markup:
    """Renders a verdict as a coloured word."""
    tone = _TONES.get(verdict, "unknown")
    return element("span", {"class": f"chip {tone}"}, verdict.split(" at this ")[0])


_TONES = {"pass": "pass", "fail": "fail", "not told apart at this power": "apart"}


def to_html(table: Table | None, caption: bool = True) -> Markup:
    """Renders a table, if there is one, in a part that scrolls, and its note below."""
    if table is None:
        return Markup()
    heads = [
        element(
            "th", {"scope": "col", "class": "number" if c.numeric else None}, c.title
        )
        for c in table.columns
    ]
    body = [
        element(
            "tr",
            {"class": "highlight" if row and row[0].highlight else None},
            *map(_html_cell, row, table.columns, range(len(row))),
        )
        for row in table.rows
    ]
    title = element("caption", None, table.title) if caption else None
    groups, titles = _group_heads(table.columns), element("tr", None, *heads)
    parts = (element("thead", None, groups, titles), element("tbody", None, *body))
    inside = element("table", None, title, *parts)
    note = element("p", {"class": "note"}, table.note) if table.note else None
    gap = element("p", {"class": "missing"}, table.gap) if table.gap else None
    return join([gap, region("scroll", f"Table: {table.title}", inside), note])


def _group_heads(columns: Sequence[Column]) -> Markup | None:
    """The row above the titles, if neighbours share a heading."""
    if not any(column.group for column in columns):
        return None
    heads = []
    for group, members in itertools.groupby(columns, key=lambda column: column.group):
        span = {"colspan": len(list(members))}
        scope = {"scope": "colgroup", "class": "group"}
        made = element("th", span | scope, group) if group else element("td", span)
        heads.append(made)
    return element("tr", None, *heads)


def _html_cell(entry: Cell, column: Column, position: int) -> Markup:
    flags = (column.numeric, column.words, entry.value is None)
    kinds = itertools.compress(("number", "words", "muted"), flags)
    content = [entry.text, " ", chip(entry.verdict)] if entry.verdict else [entry.text]
    tag, scope = ("td", None) if position else ("th", "row")
    return element(tag, {"class": " ".join(kinds) or None, "scope": scope}, *content)


def to_markdown(table: Table) -> str:
    """Renders a table as GitHub-flavoured Markdown with its title and note."""
    titles = _full_titles(table)
    lines = [
        f"## {markdown_text(table.title)}",
        "",
        "| " + " | ".join(map(markdown_text, titles)) + " |",
        "|" + "|".join("---:" if c.numeric else "---" for c in table.columns) + "|",
    ]
    lines += [
        "| " + " | ".join(markdown_text(_with_verdict(entry)) for entry in row) + " |"
        for row in table.rows
    ]
    if table.note:
        lines += ["", markdown_text(table.note)]
    return "\n".join(lines) + "\n"


def _full_titles(table: Table) -> list[str]:
    return [" ".join(filter(None, (c.group, c.title))) for c in table.columns]


def _with_verdict(entry: Cell) -> str:
    if entry.verdict and entry.text:
        return f"{entry.text} ({entry.verdict})"
    return entry.text or entry.verdict


def markdown_text(value: str) -> str:
    """Escapes text for a line of Markdown."""
    value = " ".join(printable(value).split())
    for character in "\\`*_[]|":
        value = value.replace(character, "\\" + character)
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_csv(table: Table) -> str:
    """Renders a table as CSV with unrounded numbers."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = []
    for position, title in enumerate(_full_titles(table)):
        entries = [row[position] for row in table.rows]
        columns.append([title, *(entry.value for entry in entries)])
        if any(entry.verdict for entry in entries):
            columns.append([f"{title} verdict", *(entry.verdict for entry in entries)])
    writer.writerows([*map(_csv_value, row)] for row in zip(*columns, strict=True))
    return buffer.getvalue()


def _csv_value(value: float | str | None) -> float | str | None:
    """Defuses text that a spreadsheet would take for a formula."""
    if not isinstance(value, str):
        return value
    value = printable(value)
    return "'" + value if value.startswith(_FORMULA_STARTS) else value
