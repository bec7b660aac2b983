"""Charts over two axes: lines, and columns of dots for many classes."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fuprune.report import formats
from fuprune.report.drawing import WIDTH, fit, letters, path, rect, short, svg
from fuprune.report.markup import Markup, element

_MOST_POINTS = 400


class Series(NamedTuple):
    """One line of a chart."""

    label: str
    style: str  # CSS class that sets colour and dash
    points: tuple[tuple[float, float], ...]
    spread: tuple[float, ...] = ()  # standard deviation at each point, if known
    family: str = ""  # one name in the legend for several seeds; the label if empty


class Axis(NamedTuple):
    """One axis: what it shows and how its numbers are written."""

    title: str
    low: float
    high: float
    shown: Callable[[float], str] = formats.number
    logarithmic: bool = False


def line_chart(
    series: Sequence[Series],
    horizontal: Axis,
    vertical: Axis,
    label: str,
    *,
    guide: float | None = None,
    diagonal: bool = False,
    height: float = 290,
) -> Markup:
    """Draws lines over two axes.

    Args:
      series: Lines; those drawn last lie on top.
      horizontal: The axis below.
      vertical: The axis at the left.
      label: Text alternative.
      guide: Height of a dotted horizontal line, such as a target.
      diagonal: Draw the line of equal coordinates, as in a ROC plot.
      height: Height of the drawing.

    Returns:
      The drawing.
    """
    frame = _Frame(48, 14, WIDTH - 12, height - 46, horizontal, vertical)
    marks: list[Markup] = [_axes(frame)]
    if diagonal:
        low = max(horizontal.low, vertical.low)
        high = min(horizontal.high, vertical.high)
        steps = [low + (high - low) * step / 40 for step in range(41)]
        if horizontal.logarithmic:
            steps = [low * (high / low) ** (step / 40) for step in range(41)]
        marks.append(path([frame.at(step, step) for step in steps], "guide"))
    if guide is not None and vertical.low <= guide <= vertical.high:
        left, y = frame.at(horizontal.low, guide)
        marks.append(path([(left, y), (frame.right, y)], "guide"))
    for line in series:
        marks.extend(_line(frame, line))
    return svg(WIDTH, height, label, *marks)


def on_top(series: Sequence[Series]) -> list[Series]:
    """Orders lines so that the method under test and retraining are drawn last."""
    order = {"main": 2, "gold": 1}
    return sorted(series, key=lambda line: order.get(line.style, 0))


def _line(frame: "_Frame", line: Series) -> list[Markup]:
    stride = max(1, math.ceil(len(line.points) / _MOST_POINTS))
    # Counted from the end so that the last point, the result, is always drawn.
    kept = sorted(range(len(line.points) - 1, -1, -stride))
    points = [frame.at(*line.points[position]) for position in kept]
    marks = []
    if line.spread and len(line.spread) == len(line.points) and len(points) > 1:
        upper = [
            frame.at(line.points[p][0], line.points[p][1] + line.spread[p])
            for p in kept
        ]
        lower = [
            frame.at(line.points[p][0], line.points[p][1] - line.spread[p])
            for p in kept
        ]
        corners = " ".join(f"{short(x)},{short(y)}" for x, y in upper + lower[::-1])
        marks.append(
            element("polygon", {"points": corners, "class": f"band {line.style}"})
        )
    title = element("title", None, line.label)
    if len(points) > 1:
        marks.append(path(points, f"line {line.style}", title))
    if points:
        x, y = points[-1]
        marks.append(
            element(
                "circle",
                {
                    "cx": short(x),
                    "cy": short(y),
                    "r": 3,
                    "class": f"dot {line.style}",
                },
                element(
                    "title",
                    None,
                    f"{line.label}: {frame.vertical.shown(line.points[-1][1])} at "
                    f"{frame.horizontal.shown(line.points[-1][0])}",
                ),
            )
        )
    return marks


def column_dots(
    names: Sequence[str],
    groups: Sequence[tuple[str, str, Sequence[float | None]]],
    label: str,
    *,
    emphasised: Sequence[bool] = (),
) -> Markup:
    """Draws one narrow column per class with a dot per model, for many classes.

    Args:
      names: Class names, shown on hover.
      groups: Model name, CSS class and its values in [0, 1], one per class.
      label: Text alternative.
      emphasised: Which columns are marked.

    Returns:
      A wide drawing that the page lets scroll.
    """
    step = max(6.0, 760.0 / max(1, len(names)))
    width = 48 + step * len(names) + 8
    height = 240.0
    vertical = Axis("accuracy", 0, 1, lambda v: formats.percent(v, 0))
    frame = _Frame(44, 10, width - 8, height - 24, Axis("", 0, len(names)), vertical)
    marks = [_axes(frame, horizontal_ticks=False)]
    for position, name in enumerate(names):
        x, _ = frame.at(position + 0.5, 0)
        if position < len(emphasised) and emphasised[position]:
            marks.append(
                rect(
                    x - step / 2,
                    frame.top,
                    step,
                    frame.bottom - frame.top,
                    "outline",
                    element("title", None, name),
                )
            )
            marks.append(letters(x, height - 8, fit(name, 60), "middle", "strong"))
        for model, style, values in groups:
            value = values[position] if position < len(values) else None
            if value is None:
                continue
            _, y = frame.at(0, value)
            marks.append(
                element(
                    "circle",
                    {
                        "cx": short(x),
                        "cy": short(y),
                        "r": 2.4,
                        "class": f"dot {style}",
                    },
                    element(
                        "title", None, f"{name}, {model}: {formats.percent(value)}"
                    ),
                )
            )
    return svg(width, height, label, *marks, style="wide")


class _Frame(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float
    horizontal: Axis
    vertical: Axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = _position(self.horizontal, x)
        up = _position(self.vertical, y)
        return (
            self.left + (self.right - self.left) * across,
            self.bottom - (self.bottom - self.top) * up,
        )


def _position(axis: Axis, value: float) -> float:
    low, high = axis.low, axis.high
    if axis.logarithmic:
        value = max(value, low)
        low, high, value = math.log(low), math.log(high), math.log(value)
    share = (value - low) / (high - low) if high > low else 0.5
    return min(max(share, 0.0), 1.0)


def _axes(frame: _Frame, horizontal_ticks: bool = True) -> Markup:
    marks = []
    for value in _ticks(frame.vertical, 5):
        _, y = frame.at(frame.horizontal.low, value)
        marks.append(path([(frame.left, y), (frame.right, y)], "grid"))
        marks.append(
            letters(frame.left - 6, y + 3.5, frame.vertical.shown(value), "end", "tick")
        )
    if horizontal_ticks:
        for value in _ticks(frame.horizontal, 6):
            x, _ = frame.at(value, frame.vertical.low)
            marks.append(path([(x, frame.bottom), (x, frame.bottom + 4)], "axis"))
            marks.append(
                letters(
                    x,
                    frame.bottom + 16,
                    frame.horizontal.shown(value),
                    "middle",
                    "tick",
                )
            )
        marks.append(
            letters(
                (frame.left + frame.right) / 2,
                frame.bottom + 35,
                frame.horizontal.title,
                "middle",
                "axis-title",
            )
        )
    marks.append(
        path([(frame.left, frame.bottom), (frame.right, frame.bottom)], "axis")
    )
    return element("g", None, *marks)


def _ticks(axis: Axis, wanted: int) -> list[float]:
    if axis.high <= axis.low:
        return [axis.low]
    if axis.logarithmic:
        first = math.ceil(math.log10(axis.low) - 1e-9)
        last = math.floor(math.log10(axis.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]
    rough = (axis.high - axis.low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(axis.low / step - 1e-9)
    last = math.floor(axis.high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]
