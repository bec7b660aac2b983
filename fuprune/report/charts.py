"""Small charts as inline SVG.

They take their colours from the page's style sheet, so one drawing serves light, dark
and paper. Every chart is about a phone's width in its own units, so its lettering stays
readable when the page scales it, and carries a description for those who cannot see it.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fuprune.report import formats
from fuprune.report.markup import Markup, element

WIDTH = 420.0
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


class Bar(NamedTuple):
    """One horizontal bar."""

    value: float | None
    style: str
    shown: str  # written at the right; may be empty
    title: str


def svg(width: float, height: float, label: str, *children, style: str = "") -> Markup:
    """Wraps drawing commands in an image with a text alternative."""
    return element(
        "svg",
        {
            "viewBox": f"0 0 {_short(width)} {_short(height)}",
            "role": "img",
            "aria-label": label,
            "class": f"chart {style}".strip(),
            "preserveAspectRatio": "xMidYMid meet",
        },
        *children,
    )


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
        marks.append(_path([frame.at(step, step) for step in steps], "guide"))
    if guide is not None and vertical.low <= guide <= vertical.high:
        left, y = frame.at(horizontal.low, guide)
        marks.append(_path([(left, y), (frame.right, y)], "guide"))
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
        corners = " ".join(f"{_short(x)},{_short(y)}" for x, y in upper + lower[::-1])
        marks.append(
            element("polygon", {"points": corners, "class": f"band {line.style}"})
        )
    title = element("title", None, line.label)
    if len(points) > 1:
        marks.append(_path(points, f"line {line.style}", title))
    if points:
        x, y = points[-1]
        marks.append(
            element(
                "circle",
                {
                    "cx": _short(x),
                    "cy": _short(y),
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
            _text(
                left - 8,
                y + row_height / 2 + 3,
                _fit(name, label_width - 10),
                "end",
                "strong" if strong else "tick",
            )
        )
        top = y + (row_height - len(bars) * (bar_height + 2)) / 2
        for bar in bars:
            marks.append(_rect(left, top, room, bar_height, "track"))
            if bar.value is not None and high > 0:
                length = room * min(max(bar.value / high, 0.0), 1.0)
                marks.append(
                    _rect(
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
                    _text(
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
                _rect(
                    x - step / 2,
                    frame.top,
                    step,
                    frame.bottom - frame.top,
                    "outline",
                    element("title", None, name),
                )
            )
            marks.append(_text(x, height - 8, _fit(name, 60), "middle", "strong"))
        for model, style, values in groups:
            value = values[position] if position < len(values) else None
            if value is None:
                continue
            _, y = frame.at(0, value)
            marks.append(
                element(
                    "circle",
                    {
                        "cx": _short(x),
                        "cy": _short(y),
                        "r": 2.4,
                        "class": f"dot {style}",
                    },
                    element(
                        "title", None, f"{name}, {model}: {formats.percent(value)}"
                    ),
                )
            )
    return svg(width, height, label, *marks, style="wide")


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
    marks = [_path([(left - 8, middle), (right + 8, middle)], "axis")]
    if interval is not None and all(map(math.isfinite, interval)):
        start, end = at(interval[0]), at(interval[1])
        if end - start < 4:
            start, end = start - 2, end + 2
        marks.append(
            element(
                "rect",
                {
                    "x": _short(start),
                    "y": _short(middle - 11),
                    "width": _short(end - start),
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
            marks.append(_path([(x, middle - 8), (x, middle + 8)], "tickmark"))
    # The candidate is listed first and must not disappear under a control.
    for (name, style, value), level in reversed([*zip(dots, levels, strict=True)]):
        marks.append(
            element(
                "circle",
                {
                    "cx": _short(at(value)),
                    "cy": _short(middle + 10 * level),
                    "r": 5.5 if style == "main" else 4.5,
                    "class": f"dot {style}",
                },
                element("title", None, f"{name}: {shown(value)}"),
            )
        )
    marks.append(_text(left - 6, height - 8, shown(low), "start", "small"))
    if high > low:
        marks.append(_text(right + 6, height - 8, shown(high), "end", "small"))
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


def heat_rows(
    rows: Sequence[tuple[str, Sequence[float], Sequence[bool]]], label: str
) -> Markup:
    """Draws one row of shaded cells per layer, with some cells marked as cut.

    Args:
      rows: Layer name, its values (first cell first) and which cells are marked.
      label: Text alternative.

    Returns:
      A wide drawing that the page lets scroll.
    """
    width, left, cell_height = 860.0, 150.0, 11.0
    widest = max((len(values) for _, values, _ in rows), default=1) or 1
    # Never wider than a person finds comfortable, or three channels become three bars.
    step = min((width - left - 50) / widest, 16.0)
    highest = max((max(values, default=0) for _, values, _ in rows), default=0) or 1
    marks = []
    y = 4.0
    for name, values, marked in rows:
        marks.append(_text(left - 8, y + cell_height - 2, name, "end", "tick"))
        levels: dict[int, list[str]] = {}
        for position, value in enumerate(values):
            level = min(8, int(9 * math.sqrt(max(value, 0) / highest)))
            cell = (
                f"M{_short(left + position * step)} {_short(y)}h{_short(step * 0.92)}"
            )
            levels.setdefault(level, []).append(
                f"{cell}v{_short(cell_height)}h-{_short(step * 0.92)}z"
            )
        for level in sorted(levels):
            marks.append(
                element("path", {"d": "".join(levels[level]), "class": f"heat{level}"})
            )
        cut = [position for position, flag in enumerate(marked) if flag]
        crosses = "".join(
            f"M{_short(left + position * step)} {_short(y + cell_height + 2)}"
            f"h{_short(step * 0.92)}"
            for position in cut
        )
        if crosses:
            marks.append(element("path", {"d": crosses, "class": "cutmark"}))
        summary = f"\N{MINUS SIGN}{len(cut)}" if cut else ""
        marks.append(
            _text(
                left + len(values) * step + 6, y + cell_height - 2, summary, style="cut"
            )
        )
        y += cell_height + 6
    return svg(width, y + 2, label, *marks, style="wide")


def matrix(
    values: Sequence[Sequence[float]],
    names: Sequence[str],
    marked: Sequence[int],
    label: str,
) -> Markup:
    """Draws a confusion matrix whose rows are shares in [0, 1].

    Args:
      values: [U, U] rows of true classes, columns of answers.
      names: Class names; written at the edge when there are few.
      marked: Forgotten classes, whose rows and columns are outlined.
      label: Text alternative.

    Returns:
      The drawing.
    """
    size = len(values)
    few = size <= 12
    slanted = few and max((len(name) for name in names[:size]), default=0) > 3
    left, top = (62.0, 8.0) if few else (22.0, 8.0)
    step = (WIDTH - left - 6) / size
    bottom = top + step * size
    marks = []
    levels: dict[int, list[str]] = {}
    numbers = []
    for row, shares in enumerate(values):
        for column, share in enumerate(shares):
            level = min(8, int(9 * max(share, 0.0)))
            x, y = left + column * step, top + row * step
            gap = 1 if few else 0
            side = _short(step - gap)
            levels.setdefault(level, []).append(
                f"M{_short(x)} {_short(y)}h{side}v{side}h-{side}z"
            )
            if few and share >= 0.005:
                style = "on" if level > 4 else "off"
                numbers.append(
                    _text(
                        x + step / 2,
                        y + step / 2 + 3.5,
                        f"{100 * share:.0f}",
                        "middle",
                        f"cell {style}",
                    )
                )
    for level in sorted(levels):
        marks.append(
            element("path", {"d": "".join(levels[level]), "class": f"heat{level}"})
        )
    marks.extend(numbers)
    for index in marked:
        if 0 <= index < size:
            side = step * size
            marks.append(_rect(left, top + index * step, side, step, "outline"))
            marks.append(_rect(left + index * step, top, step, side, "outline"))
    if few:
        for index, name in enumerate(names[:size]):
            strong = "strong" if index in marked else "tick"
            y = top + (index + 0.5) * step + 3.5
            marks.append(_text(left - 6, y, _fit(name, left - 8), "end", strong))
            x = left + (index + 0.5) * step
            if slanted:
                turn = f"rotate(-42 {_short(x)} {_short(bottom + 12)})"
                marks.append(
                    element(
                        "text",
                        {
                            "x": _short(x + 3),
                            "y": _short(bottom + 13),
                            "text-anchor": "end",
                            "transform": turn,
                            "class": strong,
                        },
                        _fit(name, left),
                    )
                )
            else:
                marks.append(_text(x, bottom + 14, name, "middle", strong))
    else:
        marks.append(
            _text(left, bottom + 14, "answer, class 0 first", "start", "axis-title")
        )
        marks.append(
            element(
                "text",
                {
                    "x": -(top + step * size / 2),
                    "y": 14,
                    "transform": "rotate(-90)",
                    "text-anchor": "middle",
                    "class": "axis-title",
                },
                "true class",
            )
        )
    return svg(WIDTH, bottom + (48 if slanted else 22), label, *marks, style="square")


def swatch(style: str, filled: bool = False) -> Markup:
    """Draws the sample of a line or a fill that a legend shows."""
    sample = (
        _rect(1, 2, 18, 8, f"fill {style}")
        if filled
        else _path([(0, 6), (20, 6)], style if style == "guide" else f"line {style}")
    )
    return element(
        "svg",
        {
            "viewBox": "0 0 20 12",
            "width": 20,
            "height": 12,
            "aria-hidden": "true",
            "class": "swatch",
        },
        sample,
    )


def dot_swatch(style: str) -> Markup:
    """Draws the sample of a dot, or of the retrained range, that a legend shows."""
    sample = (
        element(
            "rect",
            {"x": 1, "y": 1, "width": 18, "height": 10, "rx": 2, "class": "range"},
        )
        if style == "range"
        else element("circle", {"cx": 10, "cy": 6, "r": 4.5, "class": f"dot {style}"})
    )
    return element(
        "svg",
        {
            "viewBox": "0 0 20 12",
            "width": 20,
            "height": 12,
            "aria-hidden": "true",
            "class": "swatch",
        },
        sample,
    )


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
        marks.append(_path([(frame.left, y), (frame.right, y)], "grid"))
        marks.append(
            _text(frame.left - 6, y + 3.5, frame.vertical.shown(value), "end", "tick")
        )
    if horizontal_ticks:
        for value in _ticks(frame.horizontal, 6):
            x, _ = frame.at(value, frame.vertical.low)
            marks.append(_path([(x, frame.bottom), (x, frame.bottom + 4)], "axis"))
            marks.append(
                _text(
                    x,
                    frame.bottom + 16,
                    frame.horizontal.shown(value),
                    "middle",
                    "tick",
                )
            )
        marks.append(
            _text(
                (frame.left + frame.right) / 2,
                frame.bottom + 35,
                frame.horizontal.title,
                "middle",
                "axis-title",
            )
        )
    marks.append(
        _path([(frame.left, frame.bottom), (frame.right, frame.bottom)], "axis")
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


def _path(
    points: Sequence[tuple[float, float]], style: str, *children: Markup
) -> Markup:
    steps = " ".join(f"{_short(x)} {_short(y)}" for x, y in points)
    return element("path", {"d": f"M{steps}", "class": style}, *children)


def _rect(
    x: float, y: float, width: float, height: float, style: str, *children: Markup
) -> Markup:
    return element(
        "rect",
        {
            "x": _short(x),
            "y": _short(y),
            "width": _short(width),
            "height": _short(height),
            "rx": 1.5,
            "class": style,
        },
        *children,
    )


def _text(
    x: float, y: float, shown: str, anchor: str = "start", style: str = ""
) -> Markup:
    return element(
        "text",
        {"x": _short(x), "y": _short(y), "text-anchor": anchor, "class": style or None},
        shown,
    )


def _fit(name: str, room: float) -> str:
    """Shortens a name to about the room it has at the charts' letter size."""
    return formats.shorten(name, max(1, int(room / 5.6)))


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"
