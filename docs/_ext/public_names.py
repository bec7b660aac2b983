"""Directives that write the reference from the package itself.

`public-names` documents every public name of `fuprune`, grouped by the module that
defines it, and `config-keys` every key of a configuration with its default and
comment, so that neither page can fall behind the code. Fields of named tuples and
dataclasses are described by the comments behind them.
"""

import ast
import inspect
import io
import textwrap
import tokenize

from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import fuprune
from fuprune import config as config_lib


class PublicNames(SphinxDirective):
    """Documents the public names of `fuprune`, module by module."""

    def run(self):
        """Returns the sections."""
        homes: dict[str, list[str]] = {}
        for name in fuprune.__all__:
            value = getattr(fuprune, name)
            if callable(value):
                homes.setdefault(value.__module__, []).append(name)
        lines = []
        for home in sorted(homes, key=_left_to_right):
            lines += [f".. rubric:: {home}", ""]
            for name in homes[home]:
                value = getattr(fuprune, name)
                kind = "autoclass" if inspect.isclass(value) else "autofunction"
                lines += [f".. {kind}:: fuprune.{name}", ""]
        return _parse(self, lines)


ROOMS = ("data", "models", "surgery", "federated", "unlearning", "audit", "run")


def _left_to_right(home: str) -> tuple[int, str]:
    """Rooms in the order in which data flows through them."""
    room = home.split(".")[1]
    return (ROOMS.index(room) if room in ROOMS else len(ROOMS), home)


class ConfigKeys(SphinxDirective):
    """Lists the keys of a configuration, as `fuprune --help` does."""

    def run(self):
        """Returns one table per section."""
        lines = []
        for title, keys in config_lib.describe(config_lib.default()).items():
            lines += [f".. list-table:: {title}", "   :header-rows: 1"]
            lines += ["   :widths: 34 22 44", "", *_row("key", "default", "meaning")]
            for name, value, use in keys:
                cells = f"``{name}``", f"``{value!r}``", use.replace("*", r"\*")
                lines += _row(*cells)
            lines += [""]
        return _parse(self, lines)


def describe_fields(app, what, name, value, options, lines):
    """Adds to a class's description those of its fields, which carry their shapes."""
    if what != "class" or any(line.startswith(":param ") for line in lines):
        return
    fields = field_comments(value)
    lines += ["", *(f":param {field}: {text}" for field, text in fields.items())]


def field_comments(kind: type) -> dict[str, str]:
    """The comments of the fields of a named tuple or dataclass, by name.

    A field's comment stands behind it, or above it in lines of its own.
    """
    if not (hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__")):
        return {}
    source = textwrap.dedent(inspect.getsource(kind))
    comments, alone = {}, set()  # by line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
            if not token.line[: token.start[1]].strip():
                alone.add(token.start[0])
    found = {}
    for field in ast.walk(ast.parse(source)):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            lines = [field.end_lineno]
            while min(lines[0], field.lineno) - 1 in alone:
                lines.insert(0, min(lines[0], field.lineno) - 1)
            text = " ".join(comments[line] for line in lines if line in comments)
            found[field.target.id] = text.replace("*", r"\*")
    return {name: text for name, text in found.items() if text}


def _row(*cells: str) -> list[str]:
    """A row of a `list-table`."""
    return [f"   {'*' if not n else ' '} - {cell}" for n, cell in enumerate(cells)]


def _parse(directive: SphinxDirective, lines: list[str]):
    """Nodes of reStructuredText; the pages are Markdown, so it is fenced."""
    fenced = ["```{eval-rst}", *lines, "```"]
    return directive.parse_text_to_nodes(StringList(fenced, directive.name))


def setup(app):
    """Makes both directives known to Sphinx."""
    app.setup_extension("sphinx.ext.napoleon")  # translates sections before fields come
    app.connect("autodoc-process-docstring", describe_fields, priority=600)
    app.add_directive("public-names", PublicNames)
    app.add_directive("config-keys", ConfigKeys)
    return {"version": fuprune.__version__, "parallel_read_safe": True}
