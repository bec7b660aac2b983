"""Federated learning in JAX that forgets a class on request, and shows the evidence.

The method is that of Wang, Guo, Xie and Qi, *Federated Unlearning via
Class-Discriminative Pruning*. What is public here are functions of arrays, keys and
Flax modules, and the types that they take and return; configs, clocks and progress
live in `fuprune.run` and are not needed by an embedding program.

The names are in `__init__.pyi`, where type checkers find them. They are loaded on first
use, so that `import fuprune` and the command line's own checks do not wait for JAX.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

__version__ = "0.2.0"


def _public_names() -> dict[str, tuple[str, str]]:
    """The module of each public name, and what it is called there."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    homes: dict[str, tuple[str, str]] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                homes[alias.asname or alias.name] = (node.module or "", alias.name)
        elif isinstance(node, ast.Assign):  # public = _imported
            homes[ast.unparse(node.targets[0])] = homes.pop(ast.unparse(node.value))
    return homes


_HOMES = _public_names()
# Type checkers have the stub.
__all__ = ["__version__", *sorted(_HOMES)]  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fuprune' has no attribute {name!r}")
    home, there = _HOMES[name]
    return getattr(importlib.import_module(home), there)


def _show_in_notebooks() -> None:
    """Lets IPython show plans, audits and records as tables, once there are any."""
    loaded = sys.modules.get("IPython")
    shell: Any = loaded.get_ipython() if loaded is not None else None
    if shell is None or not hasattr(shell, "display_formatter"):
        return

    def show(value: Any) -> str:
        return importlib.import_module("fuprune.report").show(value)

    formatter = shell.display_formatter.formatters["text/html"]
    for home, name in (
        ("fuprune.results", "RunRecord"),
        ("fuprune.results", "Run"),
        ("fuprune.audit.evidence", "AuditReport"),
        ("fuprune.surgery.plan", "PrunePlan"),
    ):
        formatter.for_type_by_name(home, name, show)


_show_in_notebooks()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
