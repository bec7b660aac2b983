"""HTML and SVG written so that text from a file cannot become markup.

`element` is the only place where tags are made: whatever is not already `Markup` is
escaped there, so a class called `<script>` comes out as the text it is.
"""

import html
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

_VOID = frozenset({"br", "hr", "img", "meta", "link", "col"})
# Characters that XML forbids, bidirectional overrides that let a name rewrite its
# neighbours on screen, and halves of surrogate pairs, which UTF-8 cannot hold.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
    "\ufffe\uffff\ud800-\udfff]"
)


class Markup(str):
    """A string that is HTML already and is not escaped again."""

    __slots__ = ()


Child: TypeAlias = "str | float | None | Iterable[Child]"


def printable(text: str) -> str:
    """Replaces what cannot be shown or stored as UTF-8 with a visible mark."""
    return _UNPRINTABLE.sub("\ufffd", text)


def text(value: object) -> Markup:
    """Escapes a value for use between tags or inside a quoted attribute."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(printable(str(value)), quote=True))


def element(
    name: str, attributes: Mapping[str, object] | None = None, /, *children: Child
) -> Markup:
    """Builds one element.

    The names of tag and attributes are constants of the program. Values and text are
    escaped, children that are `Markup` are kept, and what is `None` is left out.
    """
    given = (attributes or {}).items()
    pairs = [f' {key}="{text(value)}"' for key, value in given if value is not None]
    opening = f"<{name}{''.join(pairs)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(children)}</{name}>")


def region(style: str, name: str, child: Child) -> Markup:
    """A part that scrolls by itself, so that a keyboard and a reader can reach it."""
    reach = {"tabindex": "0", "role": "region", "aria-label": name}
    return element("div", {"class": style} | reach, child)


def join(children: Iterable[Child]) -> Markup:
    """Concatenates children, escaping the plain ones."""
    return Markup(
        "".join(
            text(child) if isinstance(child, str | int | float) else join(child)
            for child in children
            if child is not None
        )
    )
