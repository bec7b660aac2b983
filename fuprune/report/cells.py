"""Charts of shaded cells: scores by layer, and confusion matrices."""

import math
from collections.abc import Sequence

from fuprune.report.drawing import WIDTH, fit, letters, rect, short, svg
from fuprune.report.markup import Markup, element


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
        marks.append(letters(left - 8, y + cell_height - 2, name, "end", "tick"))
        levels: dict[int, list[str]] = {}
        for position, value in enumerate(values):
            level = min(8, int(9 * math.sqrt(max(value, 0) / highest)))
            cell = f"M{short(left + position * step)} {short(y)}h{short(step * 0.92)}"
            levels.setdefault(level, []).append(
                f"{cell}v{short(cell_height)}h-{short(step * 0.92)}z"
            )
        for level in sorted(levels):
            marks.append(
                element("path", {"d": "".join(levels[level]), "class": f"heat{level}"})
            )
        cut = [position for position, flag in enumerate(marked) if flag]
        crosses = "".join(
            f"M{short(left + position * step)} {short(y + cell_height + 2)}"
            f"h{short(step * 0.92)}"
            for position in cut
        )
        if crosses:
            marks.append(element("path", {"d": crosses, "class": "cutmark"}))
        summary = f"\N{MINUS SIGN}{len(cut)}" if cut else ""
        marks.append(
            letters(
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
            side = short(step - gap)
            levels.setdefault(level, []).append(
                f"M{short(x)} {short(y)}h{side}v{side}h-{side}z"
            )
            if few and share >= 0.005:
                style = "on" if level > 4 else "off"
                numbers.append(
                    letters(
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
            marks.append(rect(left, top + index * step, side, step, "outline"))
            marks.append(rect(left + index * step, top, step, side, "outline"))
    if few:
        for index, name in enumerate(names[:size]):
            strong = "strong" if index in marked else "tick"
            y = top + (index + 0.5) * step + 3.5
            marks.append(letters(left - 6, y, fit(name, left - 8), "end", strong))
            x = left + (index + 0.5) * step
            if slanted:
                turn = f"rotate(-42 {short(x)} {short(bottom + 12)})"
                marks.append(
                    element(
                        "text",
                        {
                            "x": short(x + 3),
                            "y": short(bottom + 13),
                            "text-anchor": "end",
                            "transform": turn,
                            "class": strong,
                        },
                        fit(name, left),
                    )
                )
            else:
                marks.append(letters(x, bottom + 14, name, "middle", strong))
    else:
        marks.append(
            letters(left, bottom + 14, "answer, class 0 first", "start", "axis-title")
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
