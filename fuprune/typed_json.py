"""Typed records as strict JSON, both ways: the one place that knows how.

A record is a NamedTuple whose annotations say what it holds: numbers, text, lists,
dictionaries, other records, or None. `to_plain` gives JSON's own types, and
`from_plain` gives the record back or says in one sentence what does not fit. Nothing is
guessed: a missing field, an unknown one or a value of another type is an error.
"""

import json
import math
import reprlib
import types
import typing
from typing import Any, TypeVar

from fuprune.errors import FupruneError

Record = TypeVar("Record")


class FormatError(FupruneError, ValueError):
    """A file or text that does not hold the record it should."""


def dumps(record: Any) -> str:
    """A record as JSON text, with sorted keys so that equal records are equal files."""
    plain = to_plain(record)
    return json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n"


def loads(text: str, kind: type[Record], what: str) -> Record:
    """The record of type `kind` that `dumps` wrote; `what` is its name in an error.

    Raises:
      FormatError: the text is not strict JSON, or not a record of this type.
    """
    try:
        plain = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what} is not JSON ({error})") from error
    return from_plain(plain, kind, what)


def to_plain(value: Any) -> Any:
    """A value in JSON's own types; NaN and infinities become null.

    A NamedTuple becomes a dictionary of its fields, other tuples become lists, and
    NumPy and JAX arrays and scalars become lists and numbers.
    """
    if hasattr(value, "_asdict"):
        return {name: to_plain(field) for name, field in value._asdict().items()}
    if isinstance(value, typing.Mapping):
        return {str(key): to_plain(field) for key, field in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return to_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_plain(value: Any, kind: Any, what: str) -> Any:
    """The value of type `kind` that `to_plain` gave.

    Args:
      value: JSON's own types.
      kind: a NamedTuple or TypedDict type, `int`, `float`, `str`, `bool`, `list[T]`,
        `tuple[T, ...]`, `dict[str, T]`, a union of those with None, or `Any` for
        plain JSON.
      what: the value's name in an error.

    Raises:
      FormatError: the value is of another type.
    """
    if kind is Any:
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in inner:
            return None
        (kind,) = (one for one in inner if one is not types.NoneType)
        return from_plain(value, kind, what)
    if origin in (list, tuple):
        _check(value, list, what)
        items = (from_plain(v, inner[0], f"{what}[{i}]") for i, v in enumerate(value))
        return origin(items)
    if origin is dict:
        _check(value, dict, what)
        return {k: from_plain(v, inner[1], f"{what}.{k}") for k, v in value.items()}
    if hasattr(kind, "_fields") or typing.is_typeddict(kind):
        return _record(value, kind, what)
    if kind is float:
        _check(value, (int, float), what)
        return float(value)
    _check(value, kind, what)
    return value


def _record(value: Any, kind: Any, what: str) -> Any:
    _check(value, dict, what)
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(value) - set(hints))
    # Of a TypedDict that is not total some keys may be absent.
    missing = sorted(set(getattr(kind, "__required_keys__", hints)) - set(value))
    if unknown or missing:
        problem = f"an unknown {unknown[0]!r}" if unknown else f"no {missing[0]!r}"
        raise FormatError(f"{what} has {problem}; it must have {', '.join(hints)}")
    fields = {
        name: from_plain(value[name], hint, f"{what}.{name}")
        for name, hint in hints.items()
        if name in value
    }
    return kind(**fields)


def _check(value: Any, kind: Any, what: str) -> None:
    # JSON's true is an int in Python, and a number too large for a float is no number.
    wrong = isinstance(value, bool) and kind is not bool
    if not wrong and isinstance(value, int) and not isinstance(value, bool):
        wrong = value.bit_length() > 1000
    if wrong or not isinstance(value, kind):
        names = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(_WORDS[one] for one in names)
        raise FormatError(f"{what} is {reprlib.repr(value)}, but must be {wanted}")


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{reprlib.repr(digits)} is too large a number")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"it holds {name}, which strict JSON does not allow")
