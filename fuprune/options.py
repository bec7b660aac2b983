"""Options as typed dataclasses: a field is one key, with its default, bounds and use.

A dataclass marked `@options` is at once the keyword options of a function, a section of
the config and a row of the docs. Pydantic checks a value when an instance is made and
when a field is assigned. Lists are written as people type them: 9, "0,9" or (0, 9).
"""

import contextlib
import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, dataclass_transform, get_args, get_origin

import pydantic
from pydantic import dataclasses as checked
from pydantic_core import ArgsKwargs, PydanticCustomError, core_schema

from fuprune.errors import ConfigError

Options = TypeVar("Options")

_SETTINGS = pydantic.ConfigDict(
    strict=True,
    validate_assignment=True,
    extra="forbid",
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
)


def option(default: Any, use: str, **bounds: Any) -> Any:
    """A field: its default, one sentence on its use, and bounds such as `ge=0`."""
    return pydantic.Field(default=default, description=use, **bounds)


@dataclass_transform()
def options(cls: type[Options]) -> type[Options]:
    """Makes a dataclass whose fields, written with `option`, are checked.

    Its instances may be changed and are hashed by value, so change none that serves as
    a key or as a static argument.
    """
    kind: Any = checked.dataclass(config=_SETTINGS, unsafe_hash=True)(cls)
    make, assign = kind.__init__, kind.__setattr__

    def __init__(self, *args, **given):
        with _one_sentence(kind):
            make(self, *args, **given)

    def __setattr__(self, name, value):
        where = self.__dict__.get("_where", "")
        with _one_sentence(kind, where):
            assign(self, name, value)
        name_in_errors(self, where)  # pydantic has replaced `__dict__`

    kind.__init__, kind.__setattr__ = __init__, __setattr__
    return kind


def make(kind: type[Options], given: Mapping[str, Any], where: str = "") -> Options:
    """The options `given` by name, the others by default; raises ConfigError.

    `where` is what the sentence of an error puts before a name, such as "prune.".
    """
    validator, made = kind.__pydantic_validator__, kind.__new__(kind)  # type: ignore
    with _one_sentence(kind, where):
        values = ArgsKwargs((), dict(given))
        return validator.validate_python(values, self_instance=made)


def read_text(kind: type, name: str, text: str, where: str = "") -> Any:
    """The value of one option written as text; raises as `make` does."""
    with _one_sentence(kind, where):
        validator = kind.__pydantic_validator__  # type: ignore
        return getattr(validator.validate_strings({name: text}), name)


def name_in_errors(instance: Any, where: str) -> None:
    """Sets what stands before the names of an instance's options in errors."""
    object.__setattr__(instance, "_where", where)


def fields(kind: type) -> dict[str, Any]:
    """The options of a class by name, as pydantic describes them."""
    return dict(kind.__pydantic_fields__)  # type: ignore


def choices(field: Any) -> tuple[str, ...]:
    """The words that a field chooses from; none if it is something else."""
    if get_origin(field.annotation) is Literal:
        return get_args(field.annotation)
    return next((m.choices for m in field.metadata if isinstance(m, Kind)), ())


def quoted(value: Any) -> str:
    """The value on one line, shortened, with nothing a terminal would obey."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A question for the known name that is most like another; "" if none is."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {close[0]}?" if close else ""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a value may be where bounds cannot say it: goes into `Annotated`."""

    read: Callable[[Any], Any]  # what it means; ValueError, with a reason, if nothing
    text: str  # completes "allowed: "
    choices: tuple[str, ...] = ()  # the words it is made of
    keep: Callable[[Any], Any] | None = None  # a list: the form in which it is kept

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """How pydantic checks it: a list instead of its type, others after it."""
        if self.keep:
            return core_schema.no_info_plain_validator_function(self._check)
        return core_schema.no_info_after_validator_function(
            self._check, handler(source)
        )

    def _check(self, value: Any) -> Any:
        try:
            self.read(value)
        except ValueError as error:
            given = {"text": self.text, "seen": str(error)}
            raise PydanticCustomError("kind", "{text}", given) from None
        return self.keep(value) if self.keep else value


def within(holds: Callable[[Any], bool], text: str) -> Kind:
    """A value of which something holds."""

    def read(value):
        if not holds(value):
            raise ValueError
        return value

    return Kind(read, text)


def one_of(names: Iterable[str]) -> Kind:
    """One of some words, which other packages may have added to."""
    words = tuple(names)
    kind = within(lambda value: value in words, ", ".join(words))
    return dataclasses.replace(kind, choices=words)


def matching(pattern: str, text: str) -> Kind:
    """A string that a regular expression describes."""
    return within(lambda value: re.fullmatch(pattern, value) is not None, text)


def some_of(*names: str, or_nothing: bool = False) -> Kind:
    """Any of some words, in the order given; "all" is every one."""

    def read(value):
        if or_nothing and value == "":
            return ()
        found = pieces(value)
        if found == ("all",):
            return names
        for given in found:
            if given not in names:
                hint = closest(given, names)
                raise ValueError(f"names {quoted(given)}{hint and f' ({hint})'}")
        return tuple(dict.fromkeys(found))

    text = f"all, or some of {', '.join(names)}"
    shown = () if or_nothing else names
    return Kind(read, text, shown, keep=lambda value: ",".join(pieces(value)))


def whole_numbers(text: str) -> Kind:
    """Whole numbers such as "0,9", (0, 9) or 9, each once; or nothing."""

    def read(value):
        parts = () if value == "" else pieces(value)
        if not all(re.fullmatch(r"[+-]?[0-9]{1,9}", part) for part in parts):
            raise ValueError
        found = tuple(map(int, parts))
        if len(set(found)) < len(found):
            raise ValueError
        return found

    def keep(value):
        found = read(value)
        return found if len(found) > 1 else found[0] if found else ""

    return Kind(read, text, keep=keep)


def pieces(value: Any) -> tuple[str, ...]:
    """Splits "a,b", ("a", "b") or 9 into strings."""
    if isinstance(value, str):
        value = value.split(",")
    parts = value if isinstance(value, (tuple, list)) else [value]
    # A bool is an int to isinstance, and what a flag without a value gives.
    if not parts or not all(type(part) in (str, int) for part in parts):
        raise ValueError
    return tuple(str(part).strip() for part in parts)


@contextlib.contextmanager
def _one_sentence(kind: type, where: str = "") -> Iterator[None]:
    """Raises what pydantic finds inside as a ConfigError of one sentence."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise _refusal(kind, error, where) from None


def _refusal(kind: type, error: pydantic.ValidationError, where: str) -> ConfigError:
    """The first thing that pydantic found, in one sentence."""
    first, known = error.errors()[0], list(fields(kind))
    place = first["loc"][0]
    name = place if isinstance(place, str) else known[place]
    if name not in known:
        hint = closest(f"{where}{name}", [where + other for other in known])
        hint = hint or f"allowed: {', '.join(known)}."
        return ConfigError(f"unknown key {quoted(where + name)}; {hint}")
    # A field of several types has an error for each.
    found = [one["msg"] for one in error.errors() if one["loc"][0] == place]
    texts = (re.sub("^Input should be |, (got|unable) .*", "", x) for x in found)
    seen = first.get("ctx", {}).get("seen") or f"is {quoted(first['input'])}"
    return ConfigError(f"{where}{name} {seen}; allowed: {', or '.join(texts)}.")
