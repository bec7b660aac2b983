"""How numbers read in the report: percentages, durations, bytes and missing values.

One place decides the digits, so that the page, the Markdown and the figures agree.
"""

import math
from collections.abc import Sequence

MISSING = "\N{EN DASH}"


def percent(value: float | None, digits: int = 1) -> str:
    """Formats a fraction in [0, 1] as a percentage."""
    if value is None:
        return MISSING
    # Less than nothing has the minus of `number`, and no share is minus zero.
    return f"{100 * value:z.{digits}f}%".replace("-", "\N{MINUS SIGN}")


def number(value: float, digits: int = 3) -> str:
    """Formats a number with `digits` significant digits, integers in full."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "\N{MINUS SIGN}infinite"
    if float(value).is_integer() and abs(value) < 1e6:
        shown = f"{int(value):,}"
    elif value != 0 and not 1e-3 <= abs(value) < 1e6:
        shown = f"{value:.{digits - 1}e}"
    else:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        shown = f"{value:,.{decimals}f}"
    return shown.replace("-", "\N{MINUS SIGN}", 1) if value < 0 else shown


def seconds(value: float | None) -> str:
    """Formats a duration in the unit a person would use."""
    if value is None:
        return MISSING
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"


def size(value: float) -> str:
    """Formats a count of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def count(value: float) -> str:
    """Formats a large count: `812`, `36.0 thousand`, `1.2 million`."""
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if value >= 10 * unit or value >= unit >= 1e6:
            return f"{value / unit:.1f} {name}"
    return number(round(value))


def times(value: float) -> str:
    """Formats a ratio such as a speed-up."""
    return f"{number(value, 3)}\N{MULTIPLICATION SIGN}"


def speedup(value: float) -> str:
    """Formats a speed-up: `10×`, and `3× slower` for a third."""
    slower = value < 0.995
    return f"{times(1 / value)} slower" if slower else times(value)


def plural(amount: int, noun: str) -> str:
    """Formats `3 tests`, `1 test`."""
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def listing(names: Sequence[str], limit: int = 6) -> str:
    """Joins names as in a sentence: `a, b and c`."""
    names = list(names)
    if len(names) > limit:
        names = [*names[: limit - 1], f"{len(names) - limit + 1} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def in_words(identifier: str) -> str:
    """Turns an identifier such as `fine_tune_only` into words."""
    return identifier.replace("_", " ")


def capital(words: str) -> str:
    """Starts a sentence."""
    return words[:1].upper() + words[1:]
