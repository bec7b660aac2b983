"""Directives that write the reference from the package itself.

`public-names` documents every public name of `fuprune`, grouped by the module that
defines it, and `config-keys` every key of a configuration with its default and
comment, so that neither page can fall behind the code.
"""

import inspect

from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import fuprune
from fuprune import config


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
        return self.parse_text_to_nodes(StringList(lines, "public-names"))


ROOMS = ("data", "models", "surgery", "federated", "unlearning", "audit", "run")


def _left_to_right(home: str) -> tuple[int, str]:
    """Rooms in the order in which data flows through them."""
    room = home.split(".")[1]
    return (ROOMS.index(room) if room in ROOMS else len(ROOMS), home)


class ConfigKeys(SphinxDirective):
    """Lists the keys of a configuration."""

    def run(self):
        """Returns one definition list per section."""
        lines = [".. code-block:: text", ""]
        lines += [f"   {line}" for line in config.default().to_json().splitlines()]
        return self.parse_text_to_nodes(StringList(lines, "config-keys"))


def setup(app):
    """Makes both directives known to Sphinx."""
    app.add_directive("public-names", PublicNames)
    app.add_directive("config-keys", ConfigKeys)
    return {"version": fuprune.__version__, "parallel_read_safe": True}
