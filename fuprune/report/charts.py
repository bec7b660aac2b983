"""The charts of a report: lines, bars, strips, columns of dots, heat maps, matrices."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from fuprune.report import formats
from fuprune.report.marks import (
    WIDTH,
    Axis,
    Frame,
    axes,
    fitted,
    letters,
    mark,
    path,
    shade_level,
    shaded,
    short,
    svg,
)
from fuprune.report.markup import Child, Markup

Points: TypeAlias = Sequence[tuple[float, float]]  # of a line, (across, up)

_MOST_POINTS = 400


class Series(NamedTuple):
    """One line of a chart."""

    label: str
    style: str  # CSS class that sets colour and dash
    points: Points
    spread: Sequence[float] = ()  # standard deviation at each point, if known
    family: str = ""  # one name in the legend for several seeds; the label if empty


def mean_curve(curves: Sequence[Points]) -> tuple[Points, list[float]]:
    """The mean of lines and, of several, the standard deviation, point by point.

    Only where every line has a point: a mean over those that went on would jump where
    one of them stops.
    """
    found: dict[float, list[float]] = {}
    for x, y in itertools.chain.from_iterable(curves):
        found.setdefault(x, []).append(y)
    kept = sorted(x for x in found if len(found[x]) == len(curves))
    means = [(x, sum(found[x]) / len(curves)) for x in kept]
    return means, [statistics.stdev(found[x]) for x in kept if len(curves) > 1]


class Dot(NamedTuple):
    """One model on a strip."""

    name: str
    style: str
    value: float


def line_chart(
    series: Sequence[Series],
    horizontal: Axis,
    vertical: Axis,
    label: str,
    guide: tuple[float, float] | None = None,
) -> Markup:
    """Draws lines over two axes, the method under test and retraining on top.

    `guide` is the height of a dotted line, such as a target, at its left and right end.
    """
    frame = Frame(48, 14, WIDTH - 12, 244, horizontal, vertical)
    marks: list[Child] = [axes(frame)]
    if guide is not None:
        ends = zip((horizontal.low, horizontal.high), guide, strict=True)
        marks.append(path([frame.at(*end) for end in ends], "guide"))
    order = {"main": 2, "gold": 1}
    for line in sorted(series, key=lambda one: order.get(one.style, 0)):
        marks.append(_line(frame, line))
    return svg(WIDTH, 290, label, *marks)


def _line(frame: Frame, line: Series) -> Child:
    stride = max(1, math.ceil(len(line.points) / _MOST_POINTS))
    # Counted from the end so that the last point, the result, is always drawn.
    kept = sorted(range(len(line.points) - 1, -1, -stride))
    points = [frame.at(*line.points[position]) for position in kept]
    marks = []
    if line.spread and len(points) > 1:
        edges = [
            [
                frame.at(line.points[p][0], line.points[p][1] + sign * line.spread[p])
                for p in kept
            ]
            for sign in (1, -1)
        ]
        outline = edges[0] + edges[1][::-1]
        corners = " ".join(f"{short(x)},{short(y)}" for x, y in outline)
        marks.append(mark("polygon", f"band {line.style}", points=corners))
    if len(points) > 1:
        marks.append(path(points, f"line {line.style}", line.label))
    if points:
        across, up = line.points[-1]
        written = f"{frame.vertical.written(up)} at {frame.horizontal.written(across)}"
        (x, y), hint = points[-1], f"{line.label}: {written}"
        marks.append(mark("circle", f"dot {line.style}", hint, cx=x, cy=y, r=3))
    return marks


def bar_rows(
    names: Sequence[str],
    groups: Sequence[tuple[str, str, Sequence[float | None]]],
    marked: Sequence[int],
    label: str,
) -> Markup:
    """Draws horizontal bars in a row per name, and in each row one for every group.

    A group has a title, a style and a share for each name. Marked rows are strong.
    """
    marks: list[Child] = []
    label_width, value_width = 96, 46
    y, room = 4.0, WIDTH - label_width - value_width
    # Tall enough to fill the room beside the strips.
    bar_height = min(max(540 / (len(names) * len(groups)), 7.0), 22.0)
    height = max(len(groups) * (bar_height + 2), 13)
    for index, name in enumerate(names):
        style = "strong" if index in marked else "tick"
        middle, text = y + height / 2 + 3, fitted(name, label_width - 10)
        marks.append(letters(label_width - 8, middle, text, "end", style))
        top = y + (height - len(groups) * (bar_height + 2)) / 2
        for title, style, shares in groups:
            share = shares[index]
            box: dict = {"x": label_width, "y": top, "height": bar_height, "rx": 1.5}
            marks.append(mark("rect", "track", width=room, **box))
            if share is not None:
                length = max(room * min(max(share, 0.0), 1.0), 1.5)
                hint = f"{name}, {title}: {formats.percent(share)}"
                marks.append(mark("rect", f"fill {style}", hint, width=length, **box))
            x, baseline = WIDTH - value_width + 6, top + bar_height / 2 + 3.5
            written = formats.whole_percent(share)
            marks.append(letters(x, baseline, written, "start", "small"))
            top += bar_height + 2
        y += height + 6
    return svg(WIDTH, y + 2, label, *marks)


def strip(
    interval: Sequence[float | None] | None,
    dots: Sequence[Dot],
    retrained: Sequence[float],
    label: str,
    *,
    range_hint: str = "",
    written: Callable[[float], str] = formats.number,
    logarithmic: bool = False,
) -> Markup | None:
    """Draws models on one line against the interval of retrained models.

    The model under test comes first in `dots`. A side of the interval that is None is
    open and reaches to the end of the line; `range_hint` says so in words.
    `logarithmic` spreads small values apart if they span more than a factor of 50.
    """
    bounds = [bound for bound in interval or () if bound is not None]
    everything = [*(dot.value for dot in dots), *retrained, *bounds]
    if not everything:
        return None
    low, high = min(everything), max(everything)
    scale = math.log if logarithmic and low > 0 and high / low > 50 else float
    left, right = 14.0, WIDTH - 14

    def at(value: float) -> float:
        span = scale(high) - scale(low) or 1.0
        return left + (right - left) * (scale(value) - scale(low)) / span

    levels = _levels([at(dot.value) for dot in dots])
    middle = 20.0 + 10 * max(0, -min(levels, default=0))
    height = middle + 32 + 10 * max(0, max(levels, default=0))
    marks: list[Child] = [path([(left - 8, middle), (right + 8, middle)], "axis")]
    if interval is not None:
        first = low if interval[0] is None else interval[0]
        last = high if interval[1] is None else interval[1]
        pad = 2.0 if at(last) - at(first) < 4 else 0.0
        width = at(last) - at(first) + 2 * pad
        box = {"x": at(first) - pad, "width": width, "y": middle - 11}
        marks.append(mark("rect", "range", range_hint, height=22, rx=3, **box))
    for value in retrained:
        ends = [(at(value), middle - 8), (at(value), middle + 8)]
        marks.append(path(ends, "tickmark"))
    # The method under test comes first and must not disappear under a control.
    for dot, level in reversed([*zip(dots, levels, strict=True)]):
        place = {"cx": at(dot.value), "cy": middle + 10.0 * level}
        radius = 5.5 if dot.style == "main" else 4.5
        hint = f"{dot.name}: {written(dot.value)}"
        marks.append(mark("circle", f"dot {dot.style}", hint, r=radius, **place))
    marks.append(letters(left - 6, height - 8, written(low), "start", "small"))
    if high > low:
        marks.append(letters(right + 6, height - 8, written(high), "end", "small"))
    return svg(WIDTH, height, label, *marks, style="strip")


def _levels(places: Sequence[float]) -> list[int]:
    """Moves dots that would cover each other up or down, the first staying put."""
    levels: list[int] = []
    for place in places:
        pairs = zip(levels, places, strict=False)
        taken = {level for level, other in pairs if abs(other - place) < 9.5}
        free = (level for level in (0, -1, 1, -2, 2, -3, 3, -4) if level not in taken)
        levels.append(next(free, 4))
    return levels


def heat_rows(
    rows: Sequence[tuple[str, Sequence[float], Sequence[bool]]], label: str
) -> Markup:
    """Draws a row per layer: its name, shaded cells, and which of them were cut."""
    width, left, height = 860.0, 150.0, 11.0
    widest = max((len(values) for _, values, _ in rows), default=1) or 1
    # Never wider than a person finds comfortable, or three channels become three bars.
    step = min((width - left - 50) / widest, 16.0)
    highest = max((max(values, default=0) for _, values, _ in rows), default=0) or 1
    marks: list[Child] = []
    y = 4.0
    for name, values, marked in rows:
        marks.append(letters(left - 8, y + height - 2, name, "end", "tick"))
        shares = [math.sqrt(max(value, 0) / highest) for value in values]
        places = [(left + position * step, y) for position in range(len(values))]
        marks.append(shaded(places, shares, step * 0.92, height))
        cut = [x for (x, _), flag in zip(places, marked, strict=True) if flag]
        under = "".join(
            f"M{short(x)} {short(y + height + 2)}h{short(step * 0.92)}" for x in cut
        )
        if cut:
            amount = f"\N{MINUS SIGN}{len(cut)} of {len(values)}"
            x = left + len(values) * step + 6
            marks.append(mark("path", "cutmark", d=under))
            marks.append(letters(x, y + height - 2, amount, style="cut"))
        y += height + 6
    return svg(width, y + 2, label, *marks, style="wide")


def matrix(
    shares: np.ndarray, names: Sequence[str], marked: Sequence[int], label: str
) -> Markup:
    """Draws a confusion matrix, [U, U] shares with a row per true class.

    Names are written at the edge when there are few, and the rows and columns of marked
    classes are outlined.
    """
    size = len(shares)
    few = size <= 12
    slanted = few and max(map(len, names), default=0) > 3
    left, top = (62.0 if few else 22.0), 8.0
    step = (WIDTH - left - 6) / size
    side, bottom = step * size, top + step * size
    where = [
        (left + c * step, top + r * step) for r in range(size) for c in range(size)
    ]
    flat = [float(share) for share in shares.ravel()]
    gap = 1.0 if few else 0.0
    marks: list[Child] = [shaded(where, flat, step - gap, step - gap)]
    for (x, y), share in zip(where, flat, strict=True) if few else ():
        if share >= 0.005:
            style = "cell on" if shade_level(share) > 4 else "cell off"
            place = x + step / 2, y + step / 2 + 3.5
            marks.append(letters(*place, f"{100 * share:.0f}", "middle", style))
    for index in marked:
        row, column = top + index * step, left + index * step
        marks.append(mark("rect", "outline", x=left, y=row, width=side, height=step))
        marks.append(mark("rect", "outline", x=column, y=top, width=step, height=side))
    for index, name in enumerate(names) if few else ():
        style, middle = "strong" if index in marked else "tick", (index + 0.5) * step
        text = fitted(name, left - 8)
        marks.append(letters(left - 6, top + middle + 3.5, text, "end", style))
        anchor, turn = ("end", -42) if slanted else ("middle", 0)
        x, y = left + middle + 3 * slanted, bottom + 13
        marks.append(letters(x, y, text, anchor, style, turn))
    if not few:
        marks.append(
            letters(left, bottom + 14, "answer, class 0 first", "start", "tick")
        )
        marks.append(letters(14, top + side / 2, "true class", "middle", "tick", -90))
    return svg(WIDTH, bottom + (48 if slanted else 22), label, *marks, style="square")
