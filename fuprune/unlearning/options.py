"""Options by flat name for functions that take some of them in groups.

A method's signature groups what belongs together (`Reading`, `Cut`, `Noise`, ...): a
parameter whose default is a NamedTuple is such a group. A config and a table of methods
know single options by name, so here names are packed into the groups that have them.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def options_of_function(
    function: Callable[..., Any], rest: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """The keyword-only parameters of a function, and their defaults.

    Args:
      function: whose parameters they are.
      rest: what `**rest` of its signature is handed to, if it has such a parameter.
    """
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    if rest is not None and any(p.kind is p.VAR_KEYWORD for p in parameters):
        found = options_of_function(rest) | found
    return found


def flat_names(parameters: Mapping[str, Any]) -> frozenset[str]:
    """The names of all single options, those of the groups' fields included."""
    names: set[str] = set()
    for name, default in parameters.items():
        names |= set(default._fields) if _is_group(default) else {name}
    return frozenset(names)


def pack(parameters: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Flat options as the function takes them: fields go into their groups.

    Args:
      parameters: from `options_of_function`.
      options: by flat name; whole groups, and unknown names, stay as they are.
    """
    packed = dict(options)
    for name, default in parameters.items():
        if _is_group(default):
            fields = [field for field in default._fields if field in options]
            given = {field: packed.pop(field) for field in fields}
            if given:
                packed[name] = packed.get(name, default)._replace(**given)
    return packed


def _is_group(default: Any) -> bool:
    return isinstance(default, tuple) and hasattr(default, "_fields")
