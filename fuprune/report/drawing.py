"""The strokes that charts are made of, as inline SVG.

Colours come from the page's style sheet, so one drawing serves light, dark and paper.
A chart is about a phone's width in its own units, so its lettering stays readable when
the page scales it, and carries a description for those who cannot see it.
"""

from collections.abc import Sequence

from fuprune.report import formats
from fuprune.report.markup import Markup, element

WIDTH = 420.0  # of every chart that fits a phone


def svg(width: float, height: float, label: str, *children, style: str = "") -> Markup:
    """Wraps drawing commands in an image with a text alternative."""
    return element(
        "svg",
        {
            "viewBox": f"0 0 {short(width)} {short(height)}",
            "role": "img",
            "aria-label": label,
            "class": f"chart {style}".strip(),
            "preserveAspectRatio": "xMidYMid meet",
        },
        *children,
    )


def path(
    points: Sequence[tuple[float, float]], style: str, *children: Markup
) -> Markup:
    """Draws a line through points."""
    steps = " ".join(f"{short(x)} {short(y)}" for x, y in points)
    return element("path", {"d": f"M{steps}", "class": style}, *children)


def rect(
    x: float, y: float, width: float, height: float, style: str, *children: Markup
) -> Markup:
    """Draws a rectangle with slightly rounded corners."""
    return element(
        "rect",
        {
            "x": short(x),
            "y": short(y),
            "width": short(width),
            "height": short(height),
            "rx": 1.5,
            "class": style,
        },
        *children,
    )


def letters(
    x: float, y: float, shown: str, anchor: str = "start", style: str = ""
) -> Markup:
    """Writes text at a point."""
    return element(
        "text",
        {"x": short(x), "y": short(y), "text-anchor": anchor, "class": style or None},
        shown,
    )


def fit(name: str, room: float) -> str:
    """Shortens a name to about the room it has at the charts' letter size."""
    return formats.shorten(name, max(1, int(room / 5.6)))


def short(value: float) -> str:
    """Writes a coordinate with no more digits than are seen."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def swatch(style: str, filled: bool = False) -> Markup:
    """Draws the sample of a line or a fill that a legend shows."""
    sample = (
        rect(1, 2, 18, 8, f"fill {style}")
        if filled
        else path([(0, 6), (20, 6)], style if style == "guide" else f"line {style}")
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
