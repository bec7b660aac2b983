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
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from fuprune import results
from fuprune.audit import record as audits
from fuprune.audit.record import Row
from fuprune.report import formats, roles, tables
from fuprune.report.formats import percent
from fuprune.report.roles import RAW, RETRAIN, Subject
from fuprune.report.tables import Cell, Column, Table
from fuprune.results import CurveRow, CutRow, StageRow

WIDTH = 5.2  # inches
FEW_CLASSES = 20
# Replaced in the SVG: the page's own ink and paper.
_INK, _PAPER = "#0a0b0c", "#fdfefe"
_MAIN, _GOLD, _RAW = "#d9480f", "#2f7ed8", "#868c96"
_OTHERS = ("#2b9a66", "#9a5fd1", "#b07d0a", "#c2417c", "#2b8f9a", "#8a6a4f")
_STYLE: dict[str, Any] = {
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
    "grid.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.6,
    **dict.fromkeys(
        (
            "text.color",
            "axes.labelcolor",
            "axes.edgecolor",
            "xtick.color",
            "ytick.color",
        ),
        _INK,
    ),
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
        return _svg(self)


def _svg(drawing: Drawing) -> str:
    stream = io.StringIO()
    empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # A name may have letters that the font lacks; it shows boxes for them.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        drawing.figure.savefig(
            stream, format="svg", metadata=empty, bbox_inches="tight", transparent=True
        )
    text = "<svg" + stream.getvalue().split("<svg", 1)[1]
    width = float(re.search(r'width="([\d.]+)pt"', text)[1])  # type: ignore[index]
    # A page that holds several figures needs names that differ.
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{drawing.name}-", text)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = text.replace(_INK, "currentColor").replace(_PAPER, "var(--paper, #fff)")
    label = re.sub(r'[<>&"]', " ", f"{drawing.title}. {drawing.caption}")
    style = f'style="max-width: {width * 4 / 3:.0f}px"'
    return text.replace("<svg", f'<svg role="img" aria-label="{label}" {style}', 1)


def pdf(drawing: Drawing) -> bytes:
    """The figure as a PDF."""
    stream = io.BytesIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        drawing.figure.savefig(
            stream, format="pdf", bbox_inches="tight", metadata={"CreationDate": None}
        )
    return stream.getvalue()


def _axes(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _styled(function):
    @functools.wraps(function)
    def draw(*arguments, **options) -> Drawing | None:
        with matplotlib.rc_context(_STYLE):
            return function(*arguments, **options)

    return draw


def colour(subject_methods: Sequence[str], tested: str | None, name: str) -> str:
    """The colour of a method or audited model, the same in all figures of a run."""
    fixed = {RAW: _RAW, RETRAIN: _GOLD, "retrained": _GOLD, tested: _MAIN}
    if name in fixed:
        return fixed[name]
    others = [method for method in subject_methods if method not in fixed]
    place = others.index(name) if name in others else len(others)
    return _OTHERS[place % len(_OTHERS)]


def _data(drawing_name: str, title: str, columns: Sequence[str], rows) -> Table:
    made = [[Cell(str(value), value) for value in row] for row in rows]
    return Table(drawing_name, title, [Column(name) for name in columns], made)


# Gone from the answers?


def compared_stages(subject: Subject) -> list[tuple[str, StageRow]]:
    """The raw, cut, final and retrained model, as far as they are there, named."""
    record, tested = subject.record, subject.tested
    unit = next((row.name for row in subject.rows(tested)), None)
    pruned = results.pruned_stages(record, unit)[-1:]
    final = roles.final_stage(record, tested)
    named = [
        ("before", subject.raw),
        *(("cut, not yet fine-tuned", stage) for stage in pruned),
        ("after", final),
        ("retrained without it", roles.final_stage(record, RETRAIN)),
    ]
    return [(name, stage) for name, stage in named if stage is not None]


_MARKERS = {
    "before": ("o", _RAW, _RAW),
    "cut, not yet fine-tuned": ("d", _PAPER, _MAIN),
    "after": ("D", _MAIN, _MAIN),
    "retrained without it": ("|", _GOLD, _GOLD),
}


@_styled
def class_figure(subject: Subject) -> Drawing | None:
    """Accuracy of each class before, after, and for retraining."""
    record = subject.record
    stages = [(n, stage) for n, stage in compared_stages(subject) if stage.per_class]
    if not stages:
        return None
    number = len(stages[0][1].per_class)
    labels = [results.class_label(record, index) for index in range(number)]
    if number <= FEW_CLASSES:
        # The forgotten classes come first, where a reader begins.
        order = sorted(range(number), key=lambda index: index not in record.classes)
        figure, axes = _axes(0.9 + 0.27 * number)
        _draw_classes(axes, stages, order, record.classes, labels)
    else:
        figure, axes = _axes(3.4)
        before = stages[0][1].per_class
        order = sorted(range(number), key=lambda index: before[index] or 0.0)
        for name, stage in stages:
            marker, face, edge = _MARKERS[name]
            heights = [_or_nan(stage.per_class[index]) for index in order]
            axes.plot(
                heights,
                marker,
                markersize=4,
                markerfacecolor=face,
                markeredgecolor=edge,
                label=name,
            )
        for index in record.classes:
            axes.axvline(order.index(index), color=_MAIN, alpha=0.25, linewidth=4)
        axes.set_xlabel("classes, the hardest first; the forgotten one is marked")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_ylim(-0.03, 1.03)
    _legend_below(figure, axes, 2)
    rows = [
        (labels[index], *(stage.per_class[index] for _, stage in stages))
        for index in range(number)
    ]
    kept = "The others should stay." if record.classes else "All should stay."
    return Drawing(
        "class_accuracy",
        "Accuracy of each class",
        f"On test images. {kept}",
        figure,
        _data("class_accuracy", "Accuracy", ["class", *(n for n, _ in stages)], rows),
    )


def _draw_classes(axes: Axes, stages, order, forgotten, labels) -> None:
    """One row per class, with a mark per model."""
    for place, index in enumerate(order):
        values = [stage.per_class[index] for _, stage in stages]
        known = results.known(values)
        axes.plot(
            [min(known, default=0), max(known, default=0)],
            [place] * 2,
            color=_INK,
            alpha=0.2,
            linewidth=1,
        )
        if index in forgotten:
            axes.axhspan(place - 0.5, place + 0.5, color=_MAIN, alpha=0.12, linewidth=0)
    for name, stage in stages:
        marker, face, edge = _MARKERS[name]
        across = [_or_nan(stage.per_class[index]) for index in order]
        axes.plot(
            across,
            range(len(order)),
            marker,
            markerfacecolor=face,
            markeredgecolor=edge,
            markeredgewidth=2.4 if marker == "|" else 1.2,
            markersize=11 if marker == "|" else 6,
            label=name,
            clip_on=False,
        )
    named = [f"{labels[i]}  ✕" if i in forgotten else labels[i] for i in order]
    axes.set_yticks(range(len(order)), named)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", visible=False)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        [*unique.values()], [*unique], loc="outside lower center", ncols=columns
    )


@_styled
def answer_figure(subject: Subject) -> Drawing | None:
    """What images of the forgotten classes are answered, before and after."""
    record = subject.record
    rows = []
    for name, stage in compared_stages(subject):
        if not stage.confusion or not record.classes:
            continue
        counts = np.asarray(stage.confusion, float)[record.classes].sum(axis=0)
        rows.append((name, counts / max(counts.sum(), 1)))
    if not rows:
        return None
    shares = np.array([share for _, share in rows])
    # What is answered most stands first; the rest is one part.
    most = [int(i) for i in np.argsort(-shares.max(axis=0), kind="stable")[:6]]
    order = [*record.classes, *(i for i in most if i not in record.classes)]
    figure, axes = _axes(0.75 + 0.42 * len(rows))
    left = np.zeros(len(rows))
    greys = np.linspace(0.55, 0.14, max(len(order) - len(record.classes), 1))
    others = iter(greys)
    for index in order:
        is_forgotten = index in record.classes
        axes.barh(
            range(len(rows)),
            shares[:, index],
            left=left,
            height=0.62,
            color=_MAIN if is_forgotten else _INK,
            alpha=1.0 if is_forgotten else float(next(others)),
            edgecolor=_PAPER,
            linewidth=0.8,
        )
        for place, share in enumerate(shares[:, index]):
            name = results.class_name(record, index)
            if share * WIDTH * 10 > len(name) + 1:
                middle = left[place] + share / 2
                ink = _PAPER if is_forgotten else _INK
                axes.text(
                    middle,
                    place,
                    name,
                    ha="center",
                    va="center",
                    color=ink,
                    fontsize=8.5,
                )
        left = left + shares[:, index]
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(visible=False)
    title = f"What images of {roles.forgotten(record)} are answered"
    header = ["model", *(results.class_name(record, i) for i in range(shares.shape[1]))]
    return Drawing(
        "answers",
        title,
        "Shares of the test images; the forgotten class is coloured.",
        figure,
        _data("answers", title, header, [(name, *map(float, s)) for name, s in rows]),
    )


@_styled
def picture_figure(subject: Subject) -> Drawing | None:
    """Test images of the forgotten class, with the answers before and after."""
    shown, record = subject.run.pictures, subject.record
    if shown is None or not len(shown.images):
        return None
    number = min(len(shown.images), 12)
    figure = Figure(figsize=(WIDTH, 1.15 * math.ceil(number / 6)), layout="constrained")
    rows = []
    for place in range(number):
        axes = figure.add_subplot(math.ceil(number / 6), 6, place + 1)
        _photograph(axes, shown.images[place])
        before, after = (int(a[place]) for a in (shown.before, shown.after))
        names = [results.class_name(record, answer)[:10] for answer in (before, after)]
        still = after in record.classes
        axes.set_title(names[0], fontsize=7.5, pad=2, alpha=0.75)
        axes.set_xlabel(
            names[1],
            fontsize=8,
            labelpad=2,
            color=_MAIN if still else _INK,
            fontweight="bold",
        )
        rows.append((int(shown.labels[place]), before, after))
    return Drawing(
        "pictures",
        "Twelve test images and their answers",
        "Above: the answer before; below, in bold: the answer after.",
        figure,
        _data("pictures", "Answers", ["label", "before", "after"], rows),
    )


def _photograph(axes: Axes, image: np.ndarray) -> None:
    grey = image.shape[-1] == 1
    axes.imshow(
        image[..., 0] if grey else image,
        cmap="gray" if grey else None,
        interpolation="nearest",
    )
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


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
def price_figure(subject: Subject) -> Drawing | None:
    """Accuracy on what remains against images trained on: the paper's Figure 3."""
    record = subject.record
    own = {row.name: int(row.notes.get("images", 0)) for row in record.methods}
    curves = accuracy_by_images(subject.run.curves, own)
    if not any(points[-1][0] for points in curves.values()):
        return None
    figure, axes = _axes(3.7)
    draw_price(axes, subject, curves)
    _legend_below(figure, axes, 2)
    rows = [(unit, *point) for unit, points in curves.items() for point in points]
    return Drawing(
        "price",
        "Accuracy on what remains, by images trained on",
        "By all clients together, on a logarithmic scale; on the "
        f"{record.chosen_on or 'test'} split. Dotted: did not forget.",
        figure,
        _data("price", "Accuracy", ["unit", "images", "r_accuracy", "round"], rows),
    )


def main_figure(subject: Subject, only: Sequence[str]) -> Figure:
    """Price and effect side by side, with the method under test and `only` others."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(2 * WIDTH, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        curves = accuracy_by_images(subject.run.curves)
        shown = (*only, subject.tested or "")
        draw_price(left, subject, curves, shown)
        left.legend(loc="lower right")
        stages = [(n, s) for n, s in compared_stages(subject) if s.per_class]
        classes = subject.record.classes
        order = sorted(
            range(len(stages[0][1].per_class)), key=lambda i: i not in classes
        )
        labels = [results.class_name(subject.record, i) for i in order]
        by_class = dict(zip(order, labels, strict=True))
        _draw_classes(right, stages, order, classes, by_class)
        right.set_xlabel("accuracy of each class")
        right.legend(loc="lower center", bbox_to_anchor=(0.45, -0.3), ncols=2)
        return figure


def draw_price(axes: Axes, subject: Subject, curves, only: Sequence[str] = ()) -> None:
    """Draws the lines of every method; of retraining all seeds."""
    record = subject.record
    least = min(x for points in curves.values() for x, *_ in points if x > 0)
    for row in record.methods:
        points = curves.get(row.name)
        if points is None or (only and row.method not in only):
            continue
        forgot = subject.has_forgotten(row.method) is not False
        first = row.seed == 0
        axes.plot(
            [x for x, *_ in points],
            [y for _, y, _ in points],
            color=colour(subject.methods, subject.tested, row.method),
            linestyle="-" if forgot else ":",
            marker="o" if len(points) == 1 else "",
            linewidth=2.2 if row.method == subject.tested else 1.5,
            alpha=1.0 if first else 0.45,
            label=formats.in_words(row.method) if first else None,
            zorder=3 if row.method == subject.tested else 2,
        )
    target = results.reached(subject.rows(RETRAIN), "retrained")
    if target is not None:
        axes.axhline(
            target.accuracy,
            color=_GOLD,
            linewidth=1,
            linestyle="--",
            label="retraining's own accuracy",
        )
    axes.set_xscale("symlog", linthresh=least, linscale=0.35)
    axes.set_xlim(-0.15 * least, None)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short_count(x)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("images trained on")
    axes.set_ylabel("accuracy on what remains")


def _short_count(value: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


# The audit.


@_styled
def audit_figure(subject: Subject) -> Drawing | None:
    """Where every model lies beside retrained ones, a row per measure."""
    audit = subject.audit
    rows = [row for row in audit.headline() if row.models] if audit else []
    if audit is None or not rows:
        return None
    models = tables.judged_models(audit, subject.tested)
    height = 0.62 * len(rows) + 0.7
    figure = Figure(figsize=(WIDTH + 1.6, height), layout="constrained")
    for place, row in enumerate(rows):
        axes = figure.add_subplot(len(rows), 1, place + 1)
        _strip(axes, row, models, subject)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend([*unique.values()], [*unique], loc="outside lower center", ncols=4)
    written = [
        (row.name, name, value)
        for row in rows
        for name, values in (
            ("retrained", row.retrained),
            *((model, judged.values) for model, judged in row.models.items()),
        )
        for value in values
    ]
    return Drawing(
        "audit",
        "Where every model lies beside retrained ones",
        "Blue dots are retrained models; the band is the interval in which a model "
        "counts as no different.",
        figure,
        _data("audit_values", "Values", ["measure", "model", "value"], written),
    )


_SHAPES = ("^", "v", "s", "P", "X", "*")


def _strip(axes: Axes, row: Row, models: Sequence[str], subject: Subject) -> None:
    known = results.known(row.retrained)
    judged = row.models.get(models[0]) if models else None
    if known and judged and judged.difference is not None:
        mean = sum(known) / len(known)
        # The half width of the interval is the least difference that would show.
        half = ((judged.high or 0.0) - (judged.low or 0.0)) / 2
        axes.axvspan(mean - half, mean + half, color=_GOLD, alpha=0.16, linewidth=0)
    axes.plot(
        known,
        [0] * len(known),
        "o",
        color=_GOLD,
        markersize=5,
        alpha=0.75,
        label="retrained",
        clip_on=False,
    )
    shapes = itertools.cycle(_SHAPES)
    for model in models:
        own = model == subject.tested
        shape = "D" if own else "o" if model == RAW else next(shapes)
        values = results.known(row.models[model].values if model in row.models else [])
        axes.plot(
            values,
            [0] * len(values),
            shape,
            markersize=8 if own else 6.5,
            markerfacecolor=colour(models, subject.tested, model),
            markeredgecolor=_PAPER,
            markeredgewidth=0.7,
            label=formats.in_words(model),
            clip_on=False,
            zorder=4 if own else 3,
        )
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.margins(x=0.03)
    axes.spines["left"].set_visible(False)
    if row.unit == "fraction":
        axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.tick_params(labelsize=8)
    axes.set_ylabel(
        _wrapped(tables.measure_words(row.name)), rotation=0, ha="right", va="center"
    )
    if models and (verdict := row.verdict(models[0])):
        colours = {audits.DIFFERENT: "#d3372b", audits.EQUIVALENT: "#23915a"}
        axes.text(
            1.02,
            0,
            _wrapped(verdict, 12),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=8.5,
            color=colours.get(verdict, _INK),
            fontweight="bold" if verdict in colours else "normal",
        )


def _wrapped(text: str, width: int = 16) -> str:
    lines: list[str] = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


@_styled
def relearn_figure(subject: Subject) -> Drawing | None:
    """Accuracy on forgotten images while each model is taught them again."""
    curves = subject.audit.curves if subject.audit else {}
    if not curves:
        return None
    figure, axes = _axes(3.0)
    for name, curve in curves.items():
        axes.plot(
            curve.steps,
            curve.accuracy,
            label=formats.in_words(name),
            color=colour([*curves], subject.tested, name),
            linewidth=2.4 if name in ("retrained", subject.tested) else 1.4,
        )
    axes.set_xlabel("training steps with forgotten images")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _legend_below(figure, axes, 3)
    rows = [
        (name, step, accuracy)
        for name, curve in curves.items()
        for step, accuracy in zip(curve.steps, curve.accuracy, strict=True)
    ]
    return Drawing(
        "relearning",
        "How fast the forgotten is learnt again",
        "Accuracy on forgotten test images. Faster than retrained models is a trace.",
        figure,
        _data("relearning", "Accuracy", ["model", "step", "accuracy"], rows),
    )


# What was cut?


def cuts_to_show(subject: Subject) -> tuple[str, list[CutRow]]:
    """The unit whose cuts are shown, the method under test if it cut, and its cuts."""
    units = subject.record.cuts
    unit = min(units, key=lambda name: roles.family(name) != subject.tested, default="")
    return unit, units.get(unit, [])


@_styled
def score_figure(subject: Subject) -> Drawing | None:
    """The score of every channel, by layer, with those that were cut marked."""
    unit, cuts = cuts_to_show(subject)
    cut = next((cut for cut in cuts if any(cut.scores.values())), None)
    if cut is None:
        return None
    # A JSON object may come back in any order; the layers of a cut are a list.
    places = {row.layer: place for place, row in enumerate(cut.layers)}
    layers = sorted(cut.scores, key=lambda name: places.get(name, len(places)))
    widest = max(len(cut.scores[layer]) for layer in layers)
    shares = np.full((len(layers), widest), np.nan)
    gone_at, rows = [], []
    for place, layer in enumerate(layers):
        ids = cut.channels.get(layer, range(len(cut.scores[layer])))
        pairs = sorted(zip(cut.scores[layer], ids, strict=True), reverse=True)
        removed = set(cut.removed.get(layer, ()))
        for column, (score, channel) in enumerate(pairs):
            # The rank within the layer: scores of layers differ by their widths.
            shares[place, column] = score
            rows.append((layer, channel, score, channel in removed))
            if channel in removed:
                gone_at.append((column, place))
    figure, axes = _axes(0.8 + 0.2 * len(layers))
    high = np.nanquantile(shares, 0.98) or 1.0
    low = float(np.nanmin(shares))
    axes.imshow(
        shares,
        cmap="YlGnBu",
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
    )
    if gone_at:
        size = max(1.5, min(5.0, 200 / widest))
        axes.plot(
            *zip(*gone_at, strict=True),
            "x",
            color="#d3372b",
            markersize=size,
            markeredgewidth=1.2,
            label="cut",
        )
        _legend_below(figure, axes, 1)
    axes.set_yticks(range(len(layers)), layers, fontsize=7.5)
    axes.set_xlabel("channels, the highest score first")
    axes.grid(visible=False)
    named = results.class_label(subject.record, cut.class_id)
    return Drawing(
        "scores",
        f"Score of each channel for class {named}",
        f"{len(gone_at)} of {len(rows)} channels were cut ({formats.in_words(unit)}). "
        "Darker is a higher score.",
        figure,
        _data("scores", "Scores", ["layer", "channel", "score", "cut"], rows),
    )


@_styled
def shape_figure(subject: Subject) -> Drawing | None:
    """Channels of each layer before and after all cuts."""
    _, cuts = cuts_to_show(subject)
    if not cuts:
        return None
    after = {row.layer: row.channels_after for row in cuts[-1].layers}
    rows = [
        (row.layer, row.channels_before, after.get(row.layer, row.channels_after))
        for row in cuts[0].layers
        if row.layer != "total"
    ]
    if not rows:
        return None
    figure, axes = _axes(0.8 + 0.2 * len(rows))
    places = range(len(rows))
    axes.barh(places, [row[1] for row in rows], color=_RAW, alpha=0.45, label="before")
    axes.barh(places, [row[2] for row in rows], color=_MAIN, height=0.5, label="after")
    axes.set_yticks(places, [row[0] for row in rows], fontsize=7.5)
    axes.invert_yaxis()
    axes.set_xlabel("channels")
    axes.grid(axis="y", visible=False)
    _legend_below(figure, axes, 2)
    total = next((row for row in cuts[-1].layers if row.layer == "total"), None)
    first = next((row for row in cuts[0].layers if row.layer == "total"), None)
    caption = ""
    if total is not None and first is not None and first.flops_before:
        parameters = total.parameters_after / max(first.parameters_before, 1)
        flops = total.flops_after / first.flops_before
        caption = (
            f"{percent(parameters)} of the parameters and {percent(flops)} of the "
        )
        caption += "FLOPs are left."
    header = ["layer", "channels_before", "channels_after"]
    return Drawing(
        "shape",
        "The slim network's shape",
        caption,
        figure,
        _data("shape", "Channels", header, rows),
    )


@_styled
def map_figure(subject: Subject) -> Drawing | None:
    """What the most and the least telling channel see: the paper's Figure 2."""
    maps, record = subject.run.feature_maps, subject.record
    if maps is None or not len(maps.images):
        return None
    number = min(len(maps.images), 6)
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    chosen, rows = record.feature_maps, []
    shown = (
        ("image", maps.images, ""),
        ("highest score", maps.maps_most, "most"),
        ("lowest score", maps.maps_least, "least"),
    )
    for down, (title, arrays, field) in enumerate(shown):
        highest = float(np.nan_to_num(arrays, posinf=0.0).max(initial=0.0)) or 1.0
        for place in range(number):
            axes = figure.add_subplot(3, number, down * number + place + 1)
            label = int(maps.labels[place])
            if not field:
                _photograph(axes, arrays[place])
                named = results.class_name(record, label)[:10]
                forgotten = label in record.classes
                axes.set_title(
                    named,
                    fontsize=8,
                    color=_MAIN if forgotten else _INK,
                    fontweight="bold" if forgotten else "normal",
                )
            else:
                axes.imshow(arrays[place], cmap="magma", vmin=0, vmax=highest)
                _bare(axes)
                rows.append((title, label, float(np.mean(arrays[place]))))
            if not place:
                axes.set_ylabel(
                    _wrapped(title, 8), rotation=0, ha="right", va="center", fontsize=8
                )
    where = f" of layer {chosen.layer}" if chosen else ""
    return Drawing(
        "feature_maps",
        f"What two channels{where} see",
        "Brighter is more active. The channel with the highest score should light up "
        "under the coloured name and stay dark under others.",
        figure,
        _data("feature_maps", "Mean activity", ["channel", "label", "mean"], rows),
    )


# Several runs.


@_styled
def recovery_figure(
    name: str,
    title: str,
    caption: str,
    curves: dict[str, list[list[tuple[float, float]]]],
    tested: str | None,
) -> Drawing | None:
    """Accuracy by round of several methods, each the mean over its models."""
    if not any(points[-1][0] for found in curves.values() for points in found):
        return None
    figure, axes = _axes(3.2)
    rows = []
    for method, found in curves.items():
        rounds, means, deviations = _mean_curve(found)
        hue = colour([*curves], tested, method)
        axes.plot(rounds, means, color=hue, label=formats.in_words(method))
        axes.fill_between(
            rounds,
            means - deviations,
            means + deviations,
            color=hue,
            alpha=0.15,
            linewidth=0,
        )
        rows += [
            (method, *map(float, row))
            for row in zip(rounds, means, deviations, strict=True)
        ]
    axes.set_xlabel("rounds")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _legend_below(figure, axes, 2)
    header = ["method", "round", "mean", "deviation"]
    return Drawing(name, title, caption, figure, _data(name, title, header, rows))


def _mean_curve(curves: Iterable[list[tuple[float, float]]]):
    """Rounds that all curves share, their mean and standard deviation there."""
    named = [dict(points) for points in curves]
    rounds = sorted(set.intersection(*(set(one) for one in named)))
    values = np.array([[one[number] for number in rounds] for one in named])
    deviations = values.std(axis=0, ddof=1) if len(named) > 1 else np.zeros(len(rounds))
    return np.array(rounds), values.mean(axis=0), deviations
