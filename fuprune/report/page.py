"""The page around the evidence: head, contents, sections and figures.

The page holds everything it shows. A content-security policy forbids scripts and any
connection, so that even a slip in escaping could not run what a file carries.
"""

import importlib.resources
from collections.abc import Sequence
from typing import NamedTuple

from fuprune.report import charts, marks
from fuprune.report.markup import Child, Markup, element

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Section(NamedTuple):
    """One question of the page and its answer."""

    anchor: str
    contents: str  # its name in the table of contents
    body: Markup


def section(anchor: str, contents: str, question: str, lead: str, *body: Child):
    """Makes a section that opens with a question and explains it in plain words."""
    return Section(
        anchor,
        contents,
        element(
            "section",
            {"id": anchor},
            element("h2", None, question),
            element("p", {"class": "lead"}, lead) if lead else None,
            *body,
        ),
    )


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
        element(
            "div",
            {
                "class": "sideways",
                "tabindex": "0",
                "role": "region",
                "aria-label": f"Figure: {title}",
            },
            drawing,
        )
        if sideways
        else drawing,
        legend,
        element("figcaption", None, caption) if caption else None,
    )


def stack(figures: Sequence[Child]) -> Markup | None:
    """Sets figures one above the other, as one column of a grid."""
    kept = [entry for entry in figures if entry]
    return element("div", {"class": "stack"}, *kept) if kept else None


def grid(figures: Sequence[Child]) -> Markup | None:
    """Sets figures side by side where the screen has room."""
    kept = [entry for entry in figures if entry]
    return element("div", {"class": "grid"}, *kept) if kept else None


def line_legend(series: Sequence[charts.Series], guide: str = "") -> Markup:
    """Lists lines beside a sample of each, those of one family once.

    Args:
      series: the lines.
      guide: what the dotted line is, if there is one.
    """
    families: dict[tuple[str, str], int] = {}
    for line in series:
        entry = line.family or line.label, line.style
        families[entry] = families.get(entry, 0) + 1
    entries = [
        (name if amount == 1 else f"{name} ({amount})", "line", style)
        for (name, style), amount in families.items()
    ]
    return legend(entries + ([(guide, "guide", "")] if guide else []))


def legend(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Lists names beside their sample: name, kind of `marks.swatch`, CSS class."""
    items = [
        element("li", None, marks.swatch(kind, style), name)
        for name, kind, style in entries
    ]
    return element("ul", {"class": "legend"}, *items)


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

    Args:
      title: Its heading.
      eyebrow: The small line above the heading.
      facts: Name and value of what identifies the run, shown under the heading.
      sections: The body, in order.
      footer: The last line.

    Returns:
      A complete HTML document.
    """
    style = (
        importlib.resources.files("fuprune.report")
        .joinpath("page.css")
        .read_text(encoding="utf-8")
    )
    links = element(
        "ol",
        None,
        *(
            element(
                "li", None, element("a", {"href": f"#{part.anchor}"}, part.contents)
            )
            for part in sections
        ),
    )
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        element(
            "meta",
            {"name": "viewport", "content": "width=device-width, initial-scale=1"},
        ),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("title", None, title),
        element("style", None, Markup(style)),
    )
    top = element(
        "header",
        {"class": "top"},
        element("p", {"class": "eyebrow"}, eyebrow),
        element("h1", None, title),
        element(
            "ul",
            {"class": "facts"},
            *(
                element("li", None, name, " ", element("b", None, value))
                for name, value in facts
                if value
            ),
        ),
        element(
            "details",
            {"class": "contents"},
            element("summary", None, "Contents"),
            links,
        ),
    )
    body = element(
        "body",
        None,
        element(
            "div",
            {"class": "layout"},
            element(
                "nav",
                {"class": "side", "aria-label": "Contents"},
                element("p", {"class": "mark"}, "fuprune"),
                links,
            ),
            element(
                "main",
                None,
                top,
                *(part.body for part in sections),
                element("footer", None, footer),
            ),
        ),
    )
    return f"<!DOCTYPE html>\n{element('html', {'lang': 'en'}, head, body)}\n"
