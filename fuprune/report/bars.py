"""Charts over one axis: rows of bars, and values against a range."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fuprune.report import formats
from fuprune.report.drawing import WIDTH, fit, letters, path, rect, short, svg
from fuprune.report.markup import Markup, element


class Bar(NamedTuple):
    """One horizontal bar."""

    value: float | None
    style: str
    shown: str  # written at the right; may be empty
    title: str


def bar_rows(
    rows: Sequence[tuple[str, Sequence[Bar]]],
    label: str,
    *,
    high: float,
    emphasised: Sequence[bool] = (),
    label_width: float = 96,
    value_width: float = 46,
    bar_height: float = 9,
) -> Markup:
    """Draws rows of horizontal bars, several to a row.

    Args:
      rows: Row label and its bars, from top to bottom.
      label: Text alternative.
      high: The value that fills the width.
      emphasised: Which row labels stand out.
      label_width: Room for row labels.
      value_width: Room for the numbers at the right.
      bar_height: Thickness of one bar.

    Returns:
      The drawing.
    """
    marks = []
    y = 4.0
    left = label_width
    room = WIDTH - label_width - value_width
    for position, (name, bars) in enumerate(rows):
        row_height = max(len(bars) * (bar_height + 2), 13)
        strong = position < len(emphasised) and emphasised[position]
        marks.append(
            letters(
                left - 8,
                y + row_height / 2 + 3,
                fit(name, label_width - 10),
                "end",
                "strong" if strong else "tick",
            )
        )
        top = y + (row_height - len(bars) * (bar_height + 2)) / 2
        for bar in bars:
            marks.append(rect(left, top, room, bar_height, "track"))
            if bar.value is not None and high > 0:
                length = room * min(max(bar.value / high, 0.0), 1.0)
                marks.append(
                    rect(
                        left,
                        top,
                        max(length, 1.5),
                        bar_height,
                        f"fill {bar.style}",
                        element("title", None, bar.title),
                    )
                )
            if bar.shown:
                marks.append(
                    letters(
                        WIDTH - value_width + 6,
                        top + bar_height / 2 + 3.5,
                        bar.shown,
                        "start",
                        "small",
                    )
                )
            top += bar_height + 2
        y += row_height + 6
    return svg(WIDTH, y + 2, label, *marks)


def interval_strip(
    interval: tuple[float, float] | None,
    dots: Sequence[tuple[str, str, float]],
    retrained: Sequence[float],
    label: str,
    *,
    shown: Callable[[float], str] = formats.number,
    logarithmic: bool = False,
) -> Markup:
    """Draws values on one line against the interval of retrained models.

    Args:
      interval: Lower and upper end of what retraining gives.
      dots: Name, CSS class and value of each model.
      retrained: Values of the single retrained models.
      label: Text alternative.
      shown: How a number is written.
      logarithmic: Spread small values apart.

    Returns:
      The drawing.
    """
    dots = [dot for dot in dots if math.isfinite(dot[2])]
    everything = [value for _, _, value in dots] + list(retrained) + [*(interval or ())]
    everything = [value for value in everything if math.isfinite(value)]
    if not everything:
        return Markup("")
    low, high = min(everything), max(everything)
    if logarithmic and low > 0 and high / low > 50:
        place = math.log
    else:
        place = float
    span = place(high) - place(low) or 1.0
    left, right = 14.0, WIDTH - 14

    def at(value: float) -> float:
        return left + (right - left) * (place(value) - place(low)) / span

    levels = _stack([at(value) for _, _, value in dots])
    middle = 20.0 + 10 * max(0, -min(levels, default=0))
    height = middle + 32 + 10 * max(0, max(levels, default=0))
    marks = [path([(left - 8, middle), (right + 8, middle)], "axis")]
    if interval is not None and all(map(math.isfinite, interval)):
        start, end = at(interval[0]), at(interval[1])
        if end - start < 4:
            start, end = start - 2, end + 2
        marks.append(
            element(
                "rect",
                {
                    "x": short(start),
                    "y": short(middle - 11),
                    "width": short(end - start),
                    "height": 22,
                    "rx": 3,
                    "class": "range",
                },
                element(
                    "title",
                    None,
                    f"retrained: {shown(interval[0])} to {shown(interval[1])}",
                ),
            )
        )
    for value in retrained:
        if math.isfinite(value):
            x = at(value)
            marks.append(path([(x, middle - 8), (x, middle + 8)], "tickmark"))
    # The candidate is listed first and must not disappear under a control.
    for (name, style, value), level in reversed([*zip(dots, levels, strict=True)]):
        marks.append(
            element(
                "circle",
                {
                    "cx": short(at(value)),
                    "cy": short(middle + 10 * level),
                    "r": 5.5 if style == "main" else 4.5,
                    "class": f"dot {style}",
                },
                element("title", None, f"{name}: {shown(value)}"),
            )
        )
    marks.append(letters(left - 6, height - 8, shown(low), "start", "small"))
    if high > low:
        marks.append(letters(right + 6, height - 8, shown(high), "end", "small"))
    return svg(WIDTH, height, label, *marks, style="strip")


def _stack(places: Sequence[float]) -> list[int]:
    """Moves dots that would cover each other up or down, the first staying put."""
    levels: list[int] = []
    for place in places:
        taken = {
            level
            for level, other in zip(levels, places, strict=False)
            if abs(other - place) < 9.5
        }
        free = (level for level in (0, -1, 1, -2, 2, -3, 3, -4) if level not in taken)
        levels.append(next(free, 4))
    return levels
