"""The figures of a run, drawn by matplotlib: one SVG in the page, a PDF and a CSV.

The same run gives the same bytes. Ink is written as `currentColor`, so that a page in
dark mode needs no second drawing. Each figure is about as wide as a phone or half a
page, and its letters stay readable on both.
"""

import dataclasses
import functools
import io
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from fuprune import results
from fuprune.audit import record as audits
from fuprune.audit.record import Row
from fuprune.report import formats, tables
from fuprune.report.formats import percent
from fuprune.report.subject import Subject
from fuprune.report.tables import Cell, Column, Table
from fuprune.results import RAW, RETRAIN, CurveRow, CutRow, StageRow

WIDTH = 5.2  # inches
MOST_CLASSES = 12  # rows of the figure of classes
# Replaced in the SVG: the page's own ink and paper.
_INK, _PAPER = "#0a0b0c", "#fdfefe"
_MAIN, _GOLD, _RAW = "#d9480f", "#2f7ed8", "#868c96"
_BAD, _GOOD = "#d3372b", "#23915a"
_OTHERS = ("#2b9a66", "#9a5fd1", "#b07d0a", "#c2417c", "#2b8f9a", "#8a6a4f")
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color")
_STYLE: Any = {
    "svg.hashsalt": "fuprune",
    "svg.fonttype": "path",
    "text.parse_math": False,  # names come from files
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.14,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.8,
    **dict.fromkeys((*_INKED, "ytick.color", "grid.color"), _INK),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its words and its numbers."""

    name: str  # of its files
    title: str
    caption: str
    figure: Figure
    data: Table

    @functools.cached_property
    def svg(self) -> str:
        """The figure as an SVG element of a page, its caption as description."""
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawn = _saved(self.figure, "svg", transparent=True, metadata=empty).decode()
        text = "<svg" + drawn.split("<svg", 1)[1]
        width = float(re.search(r'width="([\d.]+)pt"', text)[1])  # type: ignore[index]
        # A page that holds several figures needs names that differ.
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", text)
        text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
        text = text.replace(_INK, "currentColor").replace(_PAPER, "var(--paper, #fff)")
        label = re.sub(r'[<>&"]', " ", f"{self.title}. {self.caption}")
        style = f'style="max-width: {width * 4 / 3:.0f}px"'
        return text.replace("<svg", f'<svg role="img" aria-label="{label}" {style}', 1)

    @property
    def pdf(self) -> bytes:
        """The figure as a PDF."""
        return _saved(self.figure, "pdf", metadata={"CreationDate": None})


def _saved(figure: Figure, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # A name may have letters that the font lacks; it shows boxes for them.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(stream, format=kind, **options)
        figure.set_layout_engine("none")  # the next file has the same places
    return stream.getvalue()


def _styled(function):
    @functools.wraps(function)
    def draw(*arguments, **options):
        with matplotlib.rc_context(_STYLE):
            return function(*arguments, **options)

    return draw


def _axes(height: float, rows: int = 1, columns: int = 1, width: float = WIDTH):
    """A figure and its axes: one, or an array of them."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)


def colour(names: Sequence[str], tested: str | None, name: str) -> str:
    """The colour of a method or audited model, the same in all figures of a run."""
    fixed = {RAW: _RAW, RETRAIN: _GOLD, "retrained": _GOLD, tested: _MAIN}
    others = [method for method in names if method not in fixed]
    place = others.index(name) if name in others else len(others)
    return fixed.get(name) or _OTHERS[place % len(_OTHERS)]


def _drawing(name, title, caption, figure, header: Sequence[str], rows) -> Drawing:
    made = [[Cell(str(value), value) for value in row] for row in rows]
    data = Table(name, title, [Column(one) for one in header], made)
    return Drawing(name, title, caption, figure, data)


def _legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        [*unique.values()], [*unique], loc="outside lower center", ncols=columns
    )


def _in_percent(axis, decimals: int | None = None) -> None:
    axis.set_major_formatter(PercentFormatter(1, decimals=decimals))


# Gone from the answers?

_MARKERS = {
    "before": ("o", _RAW, _RAW),
    "cut, not yet fine-tuned": ("d", _PAPER, _MAIN),
    "after": ("D", _MAIN, _MAIN),
    "retrained without it": ("|", _GOLD, _GOLD),
}


def compared_stages(about: Subject) -> list[tuple[str, StageRow]]:
    """The raw, cut, final and retrained model, as far as they are there, named."""
    unit = next((row.name for row in about.rows(about.tested)), None)
    pruned = results.pruned_stages(about.record, unit)[-1:]
    stages = [
        about.raw,
        pruned[0] if pruned else None,
        about.final_stage(about.tested),
        about.final_stage(RETRAIN),
    ]
    named = zip(_MARKERS, stages, strict=True)
    return [(name, one) for name, one in named if one is not None and one.per_class]


@_styled
def class_figure(about: Subject) -> Drawing | None:
    """Accuracy of each class before, after, and for retraining."""
    stages, record = compared_stages(about), about.record
    if not stages:
        return None
    number = len(stages[0][1].per_class)
    figure, axes = _axes(0.9 + 0.27 * min(number, MOST_CLASSES))
    _draw_classes(axes, about, stages)
    _legend_below(figure, axes, 2)
    kept = "The others should stay." if record.classes else "All should stay."
    if number > MOST_CLASSES:
        kept += " The forgotten and those that changed most; the CSV has all."
    return _drawing(
        "class_accuracy",
        "Accuracy of each class",
        f"On test images. {kept}",
        figure,
        ["class", *(name for name, _ in stages)],
        [
            (
                results.class_label(record, n),
                *(stage.per_class[n] for _, stage in stages),
            )
            for n in range(number)
        ],
    )


def _draw_classes(axes: Axes, about: Subject, stages) -> None:
    """One row per class with a mark per model; the forgotten classes come first."""
    record = about.record
    table = np.array([stage.per_class for _, stage in stages], float)  # [models, U]
    change = np.nan_to_num(abs(table[-1] - table[0]))
    order = range(table.shape[1])
    if len(order) > MOST_CLASSES:
        order = sorted(order, key=lambda n: -change[n])
    order = sorted(order, key=lambda n: n not in record.classes)[:MOST_CLASSES]
    table = table[:, order]
    for place, index in enumerate(order):
        spread = [np.nanmin(table[:, place]), np.nanmax(table[:, place])]
        axes.plot(spread, [place] * 2, color=_INK, alpha=0.2, linewidth=1)
        if index in record.classes:
            axes.axhspan(place - 0.5, place + 0.5, color=_MAIN, alpha=0.12, linewidth=0)
    for (name, _), across in zip(stages, table, strict=True):
        marker, face, edge = _MARKERS[name]
        bar = marker == "|"
        axes.plot(
            across,
            range(len(order)),
            marker,
            markerfacecolor=face,
            markeredgecolor=edge,
            markeredgewidth=2.4 if bar else 1.2,
            markersize=11 if bar else 6,
            label=name,
            clip_on=False,
        )
    labels = [
        results.class_label(record, n) + ("  ✕" if n in record.classes else "")
        for n in order
    ]
    axes.set_yticks(range(len(order)), labels)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    _in_percent(axes.xaxis)
    axes.grid(axis="y", visible=False)


@_styled
def picture_figure(about: Subject) -> Drawing | None:
    """Test images of the forgotten class, with the answers before and after."""
    shown, record = about.run.pictures, about.record
    if shown is None or not len(shown.images):
        return None
    number = min(len(shown.images), 12)
    down = math.ceil(number / 6)
    figure, grid = _axes(1.15 * down, down, 6)
    rows = []
    for place, axes in enumerate(np.ravel(grid)):
        if place >= number:
            axes.set_visible(False)
            continue
        _photograph(axes, shown.images[place])
        answers = [int(given[place]) for given in (shown.before, shown.after)]
        before, after = (results.class_name(record, n)[:10] for n in answers)
        ink = _MAIN if answers[1] in record.classes else _INK
        axes.set_title(before, fontsize=7.5, pad=2, alpha=0.75)
        axes.set_xlabel(after, fontsize=8, labelpad=2, color=ink, fontweight="bold")
        rows.append((int(shown.labels[place]), *answers))
    return _drawing(
        "pictures",
        "Test images of what was forgotten, and their answers",
        "Above: the answer before; below, in bold: the answer after.",
        figure,
        ["label", "before", "after"],
        rows,
    )


def _photograph(axes: Axes, image: np.ndarray, **options: Any) -> None:
    if image.ndim == 3 and image.shape[-1] == 1:
        image, options = image[..., 0], dict(cmap="gray")
    axes.imshow(image, interpolation="nearest", **options)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


# At what price?


def accuracy_by_images(
    curves: Sequence[CurveRow], start: dict[str, int] | None = None
) -> dict[str, list[tuple[float, float, int]]]:
    """(images trained on so far, R-set accuracy, round) of every unit of unlearning.

    `start` has images of a unit's own work. A round logged twice counts once.
    """
    latest: dict[str, dict[int, CurveRow]] = {}
    for row in curves:
        if row.phase.startswith("unlearn/"):
            unit = row.phase.removeprefix("unlearn/")
            latest.setdefault(unit, {})[row.round_number] = row
    found = {}
    for unit, rows in latest.items():
        images, points = float((start or {}).get(unit, 0)), []
        for number, row in sorted(rows.items()):
            images += row.values.get("images", 0.0)
            # On the split that targets and stops were judged on, as the crossings are.
            accuracy = row.judged("r_accuracy")
            if accuracy is not None:
                points.append((images, accuracy, number))
        if points:
            found[unit] = points
    return found


@_styled
def price_figure(about: Subject) -> Drawing | None:
    """Accuracy on what remains against images trained on: the paper's Figure 3."""
    own = {row.name: int(row.notes.get("images", 0)) for row in about.record.methods}
    curves = accuracy_by_images(about.run.curves, own)
    if not any(points[-1][0] for points in curves.values()):
        return None
    figure, axes = _axes(3.7)
    _draw_price(axes, about, curves)
    _legend_below(figure, axes, 2)
    return _drawing(
        "price",
        "Accuracy on what remains, by images trained on",
        "By all clients together, on a logarithmic scale; on the "
        f"{about.record.chosen_on or 'test'} split. Dotted: did not forget.",
        figure,
        ["unit", "images", "r_accuracy", "round"],
        [(unit, *point) for unit, points in curves.items() for point in points],
    )


@_styled
def main_figure(about: Subject, only: Sequence[str]) -> Figure:
    """Price and effect side by side, with the method under test and `only` others."""
    figure, (left, right) = _axes(4.2, 1, 2, width=2 * WIDTH)
    curves = accuracy_by_images(about.run.curves)
    _draw_price(left, about, curves, (*only, about.tested or ""))
    left.legend(loc="lower right")
    _draw_classes(right, about, compared_stages(about))
    right.set_xlabel("accuracy of each class")
    right.legend(loc="lower center", bbox_to_anchor=(0.45, -0.3), ncols=2)
    return figure


def _draw_price(axes: Axes, about: Subject, curves, only: Sequence[str] = ()) -> None:
    """Draws the lines of every method; of retraining all seeds."""
    least = min(x for points in curves.values() for x, *_ in points if x > 0)
    for row in about.record.methods:
        points = curves.get(row.name)
        if points is None or (only and row.method not in only):
            continue
        own = row.method == about.tested
        axes.plot(
            *np.array(points)[:, :2].T,
            color=colour(about.methods, about.tested, row.method),
            linestyle=":" if about.has_forgotten(row.method) is False else "-",
            marker="o" if len(points) == 1 else "",
            linewidth=2.2 if own else 1.5,
            alpha=0.45 if row.seed else 1.0,
            label=None if row.seed else formats.in_words(row.method),
            zorder=3 if own else 2,
        )
    target = results.reached(about.rows(RETRAIN), "retrained")
    if target is not None:
        label = "retraining's own accuracy"
        axes.axhline(target.accuracy, color=_GOLD, lw=1, linestyle="--", label=label)
    axes.set_xscale("symlog", linthresh=least, linscale=0.35)
    axes.set_xlim(-0.15 * least, None)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.minorticks_off()
    _in_percent(axes.yaxis, 0)
    axes.set_xlabel("images trained on")
    axes.set_ylabel("accuracy on what remains")


# The audit.


@_styled
def audit_figure(about: Subject) -> Drawing | None:
    """Where every model lies beside retrained ones, a row per measure."""
    audit = about.audit
    rows = [row for row in audit.headline() if row.models] if audit else []
    if audit is None or not rows:
        return None
    models = tables.judged_models(audit, about.tested)
    height = 0.62 * len(rows) + 0.7
    figure, grid = _axes(height, len(rows), width=WIDTH + 0.7)
    strips = np.ravel(grid)
    for axes, row in zip(strips, rows, strict=True):
        _strip(axes, row, models, about.tested)
    _legend_below(figure, strips[0], 4)
    by_model = [
        {"retrained": row.retrained} | {m: j.values for m, j in row.models.items()}
        for row in rows
    ]
    return _drawing(
        "audit_values",
        "Where every model lies beside retrained ones",
        "Blue dots are retrained models; the band is the interval in which a model "
        "counts as no different.",
        figure,
        ["measure", "model", "value"],
        [
            (row.name, model, value)
            for row, found in zip(rows, by_model, strict=True)
            for model, values in found.items()
            for value in values
        ],
    )


def _strip(axes: Axes, row: Row, models: Sequence[str], tested: str | None) -> None:
    known = results.known(row.retrained)
    judged = row.models.get(models[0]) if models else None
    if known and judged and judged.difference is not None:
        mean = sum(known) / len(known)
        # The half width of the interval is the least difference that would show.
        half = ((judged.high or 0.0) - (judged.low or 0.0)) / 2
        axes.axvspan(mean - half, mean + half, color=_GOLD, alpha=0.16, linewidth=0)
    shapes = itertools.cycle("^vsPX*")
    drawn = [("retrained", known, "o", 5.0, 2)]
    for model in models:
        own = model == tested
        shape = "D" if own else "o" if model == RAW else next(shapes)
        values = results.known(row.models[model].values if model in row.models else [])
        drawn.append((model, values, shape, 8.0 if own else 6.5, 4 if own else 3))
    for model, values, shape, size, order in drawn:
        axes.plot(
            values,
            [0] * len(values),
            shape,
            markersize=size,
            markerfacecolor=colour(models, tested, model),
            markeredgecolor=_PAPER,
            markeredgewidth=0.7,
            label=formats.in_words(model),
            clip_on=False,
            zorder=order,
        )
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.margins(x=0.03)
    axes.spines["left"].set_visible(False)
    if row.unit == "fraction":
        _in_percent(axes.xaxis)
    axes.tick_params(labelsize=9)
    name = textwrap.fill(tables.measure_words(row.name), 16)
    axes.set_ylabel(name, rotation=0, ha="right", va="center")
    if models and (verdict := row.verdict(models[0])):
        ink = {audits.DIFFERENT: _BAD, audits.EQUIVALENT: _GOOD}.get(verdict)
        axes.text(
            1.02,
            0,
            textwrap.fill(verdict, 12),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=8.5,
            color=ink or _INK,
            fontweight="bold" if ink else "normal",
        )


# What was cut?


def cuts_to_show(about: Subject) -> tuple[str, list[CutRow]]:
    """The unit whose cuts are shown, the method under test if it cut, and its cuts."""
    units = about.record.cuts
    own = {row.name for row in about.record.methods if row.method == about.tested}
    unit = min(units, key=lambda name: name not in own, default="")
    return unit, units.get(unit, [])


@_styled
def score_figure(about: Subject) -> Drawing | None:
    """The score of every channel, by layer, with those that were cut marked."""
    unit, cuts = cuts_to_show(about)
    cut = next((cut for cut in cuts if any(cut.scores.values())), None)
    if cut is None:
        return None
    # A JSON object may come back in any order; the layers of a cut are a list.
    places = {row.layer: place for place, row in enumerate(cut.layers)}
    layers = sorted(cut.scores, key=lambda name: places.get(name, len(places)))
    widest = max(len(cut.scores[layer]) for layer in layers)
    shown = np.full((len(layers), widest), np.nan)
    gone_at, rows = [], []
    for place, layer in enumerate(layers):
        ids = cut.channels.get(layer, range(len(cut.scores[layer])))
        pairs = sorted(zip(cut.scores[layer], ids, strict=True), reverse=True)
        removed = set(cut.removed.get(layer, ()))
        shown[place, : len(pairs)] = [score for score, _ in pairs]
        rows += [
            (layer, channel, score, channel in removed) for score, channel in pairs
        ]
        gone_at += [(n, place) for n, (_, one) in enumerate(pairs) if one in removed]
    figure, axes = _axes(0.8 + 0.2 * len(layers))
    limits = dict(vmin=np.nanmin(shown), vmax=np.nanquantile(shown, 0.98) or 1.0)
    axes.imshow(shown, cmap="YlGnBu", aspect="auto", interpolation="nearest", **limits)
    if gone_at:
        size = max(1.5, min(5.0, 200 / widest))
        crosses = dict(color=_BAD, markersize=size, markeredgewidth=1.2, label="cut")
        axes.plot(*zip(*gone_at, strict=True), "x", **crosses)
        _legend_below(figure, axes, 1)
    axes.set_yticks(range(len(layers)), layers, fontsize=7.5)
    axes.set_xlabel("channels, the highest score first")
    axes.grid(visible=False)
    return _drawing(
        "scores",
        f"Score of each channel for class "
        f"{results.class_label(about.record, cut.class_id)}",
        f"{len(gone_at)} of {len(rows)} channels were cut ({formats.in_words(unit)}). "
        "Darker is a higher score.",
        figure,
        ["layer", "channel", "score", "cut"],
        rows,
    )


_SIZES = [
    f"{size}_{when}"
    for size in ("channels", "parameters", "flops")
    for when in ("before", "after")
]


@_styled
def shape_figure(about: Subject) -> Drawing | None:
    """Channels of each layer before and after all cuts; the CSV has all sizes."""
    _, cuts = cuts_to_show(about)
    last = {row.layer: row for row in cuts[-1].layers} if cuts else {}
    pairs = [(row, last.get(row.layer, row)) for row in cuts[0].layers] if cuts else []
    sizes = {
        first.layer: [
            getattr(final if name.endswith("after") else first, name) for name in _SIZES
        ]
        for first, final in pairs
    }
    rows = [(layer, *values) for layer, values in sizes.items()]
    *_, parameters, parameters_left, flops, flops_left = sizes.pop("total", [0] * 6)
    if not sizes or parameters_left == parameters:
        return None  # nothing left the network
    figure, axes = _axes(0.8 + 0.2 * len(sizes))
    places, (wide, slim, *_) = range(len(sizes)), zip(*sizes.values(), strict=True)
    axes.barh(places, wide, color=_RAW, alpha=0.45, label="before")
    axes.barh(places, slim, color=_MAIN, height=0.5, label="after")
    axes.set_yticks(places, [*sizes], fontsize=7.5)
    axes.invert_yaxis()
    axes.set_xlabel("channels")
    axes.grid(axis="y", visible=False)
    _legend_below(figure, axes, 2)
    caption = ""
    if flops:
        caption = f"{percent(parameters_left / max(parameters, 1))} of the parameters "
        caption += f"and {percent(flops_left / flops)} of the FLOPs are left."
    header = ["layer", *_SIZES]
    return _drawing("shape", "The slim network's shape", caption, figure, header, rows)


@_styled
def map_figure(about: Subject) -> Drawing | None:
    """What the most and the least telling channels see: the paper's Figure 2."""
    maps, record = about.run.feature_maps, about.record
    if maps is None or not len(maps.images):
        return None
    following = [] if maps.maps_next is None else maps.maps_next
    seen = {"highest score": maps.maps_most, "lowest score": maps.maps_least}
    if len(following) == 2:
        names = ("highest score", "second", "third", "lowest score")
        found = (maps.maps_most, *following, maps.maps_least)
        seen = dict(zip(names, found, strict=True))
    number, rows = min(len(maps.images), 6), []
    figure, grid = _axes(0.95 * (1 + len(seen)), 1 + len(seen), number)
    grid = np.reshape(grid, (-1, number))
    for place, axes in enumerate(grid[0]):
        _photograph(axes, maps.images[place])
        label = int(maps.labels[place])
        gone = label in record.classes
        style = dict(color=_MAIN, fontweight="bold") if gone else dict(color=_INK)
        named = results.class_name(record, label)[:10]
        axes.set_title(named, fontsize=8, **style)
    for down, (name, arrays) in enumerate(seen.items(), 1):
        highest = float(np.nan_to_num(arrays, posinf=0.0).max(initial=0.0)) or 1.0
        for place, axes in enumerate(grid[down]):
            _photograph(axes, arrays[place], cmap="magma", vmin=0, vmax=highest)
            rows.append((name, int(maps.labels[place]), float(np.mean(arrays[place]))))
    for axes, name in zip(grid[:, 0], ("image", *seen), strict=True):
        words = textwrap.fill(name, 8)
        axes.set_ylabel(words, rotation=0, ha="right", va="center", fontsize=8)
    where = f" of layer {record.feature_maps.layer}" if record.feature_maps else ""
    return _drawing(
        "feature_maps",
        f"What channels{where} see",
        "Brighter is more active. Channels with high scores should light up under the "
        "coloured name and stay dark under others.",
        figure,
        ["channel", "label", "mean"],
        rows,
    )


OF_A_RUN = (
    class_figure,
    picture_figure,
    price_figure,
    audit_figure,
    score_figure,
    shape_figure,
    map_figure,
)
