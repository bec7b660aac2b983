"""What charts are made of, as inline SVG: axes, lines, letters, shades, images.

Colours come from the page's style sheet, so one drawing serves light, dark and paper.
A chart is about a phone's width in its own units, so its lettering stays readable when
the page scales it, and carries a description for those who cannot see it.
"""

import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from fuprune.report import formats
from fuprune.report.markup import Child, Markup, element

WIDTH = 420.0  # of every chart that fits a phone
# A perceptually even scale from dark blue to yellow that stays readable in grey print.
_SCALE = np.array(
    [(68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81)]
    + [(253, 231, 37)],
    dtype=np.float64,
)

_SHADES = (0.05, 0.14, 0.24, 0.34, 0.45, 0.58, 0.72, 0.86, 1.0)


class Axis(NamedTuple):
    """One axis: what it measures and how its numbers are written."""

    title: str
    low: float
    high: float
    written: Callable[[float], str] = formats.number
    logarithmic: bool = False


def svg(width: float, height: float, label: str, *marks: Child, style: str = ""):
    """Wraps marks in an image with a text alternative."""
    return element(
        "svg",
        {
            "viewBox": f"0 0 {short(width)} {short(height)}",
            "role": "img",
            "aria-label": label,
            "class": f"chart {style}".strip(),
            "preserveAspectRatio": "xMidYMid meet",
        },
        *marks,
    )


def mark(tag: str, style: str, hint: str = "", **attributes: object) -> Markup:
    """One SVG element; `hint` is shown when the pointer rests on it."""
    written: dict[str, object] = {
        key: short(value) if isinstance(value, float) else value
        for key, value in attributes.items()
    }
    title = element("title", None, hint) if hint else None
    return element(tag, written | {"class": style}, title)


def path(points: Sequence[tuple[float, float]], style: str, hint: str = "") -> Markup:
    """A line through points."""
    steps = " ".join(f"{short(x)} {short(y)}" for x, y in points)
    return mark("path", style, hint, d=f"M{steps}")


def letters(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    style: str = "",
    turn: float = 0,
) -> Markup:
    """Text at a point, turned by some degrees around it."""
    turned = f"rotate({short(turn)} {short(x)} {short(y)})" if turn else None
    where = {"x": short(x), "y": short(y), "text-anchor": anchor}
    return element("text", where | {"class": style or None, "transform": turned}, text)


def swatch(kind: str, style: str = "") -> Markup:
    """The sample that a legend shows of a "line", a "fill", a "dot" or a "range"."""
    samples = {
        "line": lambda: path([(0, 6), (20, 6)], f"line {style}"),
        "guide": lambda: path([(0, 6), (20, 6)], "guide"),
        "fill": lambda: mark("rect", f"fill {style}", x=1, y=2, width=18, height=8),
        "dot": lambda: mark("circle", f"dot {style}", cx=10, cy=6, r=4.5),
        "range": lambda: mark("rect", "range", x=1, y=1, width=18, height=10, rx=2),
    }
    size = {"viewBox": "0 0 20 12", "width": 20, "height": 12, "class": "swatch"}
    return element("svg", size | {"aria-hidden": "true"}, samples[kind]())


def photograph(image: np.ndarray) -> str:
    """Encodes an image, [H, W, 1 or 3] uint8, as a `data:image/png` address."""
    return _data_uri(np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image)


def heat_map(activations: np.ndarray, highest: float) -> str:
    """Encodes a feature map, [h, w], as a `data:image/png` address.

    It is dark at zero and below, and brightest at `highest`.
    """
    shares = np.nan_to_num(activations, nan=0.0, posinf=0.0, neginf=0.0)
    shares = np.clip(shares / highest if highest > 0 else shares * 0, 0, 1)
    places = np.linspace(0, 1, len(_SCALE))
    colours = np.stack([np.interp(shares, places, tone) for tone in _SCALE.T], axis=-1)
    return _data_uri(np.round(colours).astype(np.uint8))


def _data_uri(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.save(buffer, format="PNG", optimize=False, compress_level=9)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


class Frame(NamedTuple):
    """The room of a chart between its axes, and where a point lies in it."""

    left: float
    top: float
    right: float
    bottom: float
    horizontal: Axis
    vertical: Axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies in the drawing."""
        across, up = _share(self.horizontal, x), _share(self.vertical, y)
        return (
            self.left + (self.right - self.left) * across,
            self.bottom - (self.bottom - self.top) * up,
        )


def _share(axis: Axis, value: float) -> float:
    """Where a value lies between the ends of its axis, in [0, 1]."""
    low, high = axis.low, axis.high
    if axis.logarithmic:
        low, high, value = math.log(low), math.log(high), math.log(max(value, low))
    share = (value - low) / (high - low) if high > low else 0.5
    return min(max(share, 0.0), 1.0)


def axes(frame: Frame) -> Markup:
    """Both axes of a chart, with their numbers and a grid."""
    left, right, bottom = frame.left, frame.right, frame.bottom
    marks = [path([(left, bottom), (right, bottom)], "axis")]
    for value in _ticks(frame.vertical, 5):
        _, y = frame.at(frame.horizontal.low, value)
        marks.append(path([(left, y), (right, y)], "grid"))
        written = frame.vertical.written(value)
        marks.append(letters(left - 6, y + 3.5, written, "end", "tick"))
    for value in _ticks(frame.horizontal, 6):
        x, _ = frame.at(value, frame.vertical.low)
        marks.append(path([(x, bottom), (x, bottom + 4)], "axis"))
        written = frame.horizontal.written(value)
        marks.append(letters(x, bottom + 16, written, "middle", "tick"))
    title, middle = frame.horizontal.title, (left + right) / 2
    marks.append(letters(middle, bottom + 35, title, "middle", "axis-title"))
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


def shaded(
    places: Sequence[tuple[float, float]],
    shares: Sequence[float],
    width: float,
    height: float,
) -> Markup:
    """Cells whose colour grows with their share; one path for all of one shade."""
    across, down = short(width), short(height)
    shades: dict[int, list[str]] = {}
    for (x, y), share in zip(places, shares, strict=True):
        cell = f"M{short(x)} {short(y)}h{across}v{down}h-{across}z"
        shades.setdefault(shade_level(share), []).append(cell)
    paths = [
        mark("path", "heat", **{"fill-opacity": _SHADES[n], "d": "".join(shades[n])})
        for n in sorted(shades)
    ]
    return element("g", None, *paths)


def shade_level(share: float) -> int:
    """Which of nine shades a share has."""
    return min(8, int(9 * max(share, 0.0)))


def fitted(name: str, room: float) -> str:
    """Shortens a name to about the room it has at the charts' letter size."""
    return formats.shorten(name, max(1, int(room / 5.6)))


def short(value: float) -> str:
    """Writes a coordinate with no more digits than are seen."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"
