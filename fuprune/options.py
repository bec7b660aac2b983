"""Options as typed dataclasses: a field is one key, with its default, bounds and use.

A dataclass marked `@options` is at once the keyword options of a function, a section of
the config and a row of the docs. Values are checked when one is made, by pydantic;
`make` turns what pydantic finds into one sentence of ours, for input that people typed.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, dataclass_transform

import pydantic
from pydantic import dataclasses as checked

from fuprune.errors import InputError

Options = TypeVar("Options")


def option(default: Any, use: str, **bounds: Any) -> Any:
    """A field: its default, one sentence on its use, and bounds such as `ge=0`."""
    return pydantic.Field(default=default, description=use, **bounds)


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
def options(cls: type[Options]) -> type[Options]:
    """Makes a frozen dataclass whose fields, written with `option`, are checked."""
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return checked.dataclass(frozen=True, config=config)(cls)  # type: ignore


def make(kind: type[Options], given: Mapping[str, Any], where: str = "") -> Options:
    """The options `given` by name, the others by default.

    Args:
      kind: a class made by `options`.
      given: values by name.
      where: what the sentence of an error puts before a name, such as "prune.".

    Raises:
      InputError: an option is unknown or its value is not allowed.
    """
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {where}{close[0]}?" if close else ""
            raise InputError(
                f"there is no option {where}{name}{hint or '; choose some of '}"
                f"{'' if close else ', '.join(known) + '.'}"
            )
    try:
        return kind(**given)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        problem = problem[:1].lower() + problem[1:]
        raise InputError(
            f"{where}{name} is {first['input']!r}: {problem.rstrip('.')}."
        ) from None
