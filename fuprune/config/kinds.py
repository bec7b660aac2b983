"""Kinds of values that a configuration key can have, beside the type of its default.

A kind reads a value as it stands in a config and returns what it means: itself, or for
a list such as "0,9" a tuple. The table in `fuprune.config.keys` names one per key.
"""

import difflib
import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Allowed(NamedTuple):
    """One kind of value."""

    # What a value means; ValueError if it is not allowed, which may say what is wrong.
    read: Callable[[Any], Any]
    text: str  # completes "allowed: "
    choices: tuple[str, ...] = ()  # if it is one of a few words
    is_list: bool = False  # "a,b", ("a", "b") and a number are all welcome


def within(holds: Callable[[Any], bool], text: str, choices=()) -> Allowed:
    """A value of which something holds."""

    def read(value):
        if not holds(value):
            raise ValueError
        return value

    return Allowed(read, text, choices)


def one_of(*names: str) -> Allowed:
    """One of some words."""
    return within(lambda value: value in names, ", ".join(names), names)


def between(low: float, high: float, *, or_else: float | None = None) -> Allowed:
    """A number from low to high, or one special value."""
    extra = "" if or_else is None else f", or {or_else}"
    span = f"{low} to {high}{extra}"
    return within(lambda value: low <= value <= high or value == or_else, span)


def at_most(high: float) -> Allowed:
    """A number above 0 and not above another."""
    span = f"more than 0 and at most {high:g}"
    return within(lambda value: 0 < value <= high, span)


def matching(pattern: str, text: str) -> Allowed:
    """A string that a regular expression describes."""
    return within(lambda value: re.fullmatch(pattern, value) is not None, text)


def some_of(*names: str, or_nothing: bool = False) -> Allowed:
    """Any of some words, in the order given; "all" is every one."""

    def read(value):
        if or_nothing and value == "":
            return ()
        found = pieces(value)
        if found == ("all",):
            return names
        for given in found:
            if given not in names:
                close = difflib.get_close_matches(given, names, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise ValueError(f"names {quoted(given)}{hint}")
        return tuple(dict.fromkeys(found))

    return Allowed(read, f"all, or some of {', '.join(names)}", names, is_list=True)


def numbers(
    holds: Callable[[float], bool], text: str, *, or_nothing: bool = False
) -> Allowed:
    """A string of numbers such as "0.003,0.01", none of them twice in six digits."""

    def read(value):
        if or_nothing and not value.strip():
            return ()
        try:
            found = tuple(map(float, value.split(","))) if value.isascii() else ()
        except ValueError:
            found = ()
        once = {f"{number:g}" for number in found}
        if not found or len(once) < len(found) or not all(map(holds, found)):
            raise ValueError
        return found

    return Allowed(read, text)


def whole_numbers(text: str, *, or_nothing: bool = False) -> Allowed:
    """Whole numbers such as "0,9", (0, 9) or 9, each once."""

    def read(value):
        if or_nothing and value == "":
            return ()
        parts = pieces(value)
        if not all(re.fullmatch(r"[+-]?[0-9]{1,9}", part) for part in parts):
            raise ValueError
        found = tuple(map(int, parts))
        if len(set(found)) < len(found):
            raise ValueError
        return found

    return Allowed(read, text, is_list=True)


def pieces(value: Any) -> tuple[str, ...]:
    """Splits "a,b", ("a", "b") or 9 into strings."""
    if isinstance(value, str):
        value = value.split(",")
    parts = value if isinstance(value, (tuple, list)) else [value]
    # A bool is an int to isinstance, and what a flag without a value gives.
    if not parts or not all(type(part) in (str, int) for part in parts):
        raise ValueError
    return tuple(str(part).strip() for part in parts)


def quoted(value: Any) -> str:
    """The value on one line, shortened, with nothing a terminal would obey."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= 80 else text[:77] + "..."
