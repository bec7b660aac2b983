"""The figures of one run: curves, bars, confusion, TF-IDF heat maps, feature maps.

Each function returns the framed drawing, or None when there is nothing to draw.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fuprune import results
from fuprune.report import charts, formats, marks, page, roles, tables
from fuprune.report.markup import Markup, element
from fuprune.report.roles import Styles, Topic
from fuprune.results import CurveRow, CutRow, PictureArrays, RunRecord, StageRow

FEW_CLASSES = 20
_MOST_MATRIX_CLASSES = 200
_MOST_PICTURES = 10


def recovery_curves(curves: Sequence[CurveRow]) -> dict[str, list[tuple[float, float]]]:
    """R-set accuracy against rounds, for every unit of unlearning that logged it.

    Returns:
      Each unit's (round, accuracy) points in order of round; a round logged twice, as
      after a restart, counts once.
    """
    found: dict[str, dict[float, float]] = {}
    for row in curves:
        # On the split that targets and stops were judged on, as the crossings are.
        accuracy = row.judged("r_accuracy")
        if row.phase.startswith("unlearn/") and accuracy is not None:
            unit = row.phase.removeprefix("unlearn/")
            found.setdefault(unit, {})[row.round_number] = accuracy
    return {unit: sorted(points.items()) for unit, points in found.items()}


def recovery_figure(topic: Topic, curves: Sequence[CurveRow]) -> Markup | None:
    """Figure 3: R-set accuracy against rounds of fine-tuning and of retraining."""
    record, series = topic.record, []
    for unit, points in recovery_curves(curves).items():
        # Fine-tuning may log from its first round on; where it started is a stage.
        cuts = results.pruned_stages(record, unit)
        if points[0][0] > 0 and cuts and cuts[-1].r_accuracy is not None:
            points = [(0.0, cuts[-1].r_accuracy), *points]
        series.append(model_line(unit, points, topic.styles))
    target = results.reached(results.rows_of(record, roles.RETRAIN), "retrained")
    of_classes = record.request.kind == "classes"
    kept = "the remaining classes" if of_classes else "images that nobody trained on"
    return recovery_chart(
        series,
        target.accuracy if target else None,
        f"Accuracy on {kept}, round by round",
        "Rounds of fine-tuning after the cut or change; for retraining, rounds from "
        f"scratch; on the {record.chosen_on or 'test'} split. The paper's Figure 3.",
    )


def model_line(name: str, points: charts.Points, styles: Styles) -> charts.Series:
    """The line of one model, under one name with other seeds of its method."""
    style = "gold" if roles.is_retrained(name) else styles.get(name, "o0")
    kind = formats.in_words(roles.family(name))
    return charts.Series(formats.in_words(name), style, points, family=kind)


def recovery_chart(
    series: Sequence[charts.Series], target: float | None, title: str, caption: str
) -> Markup | None:
    """Frames accuracy-against-rounds lines; None if none of them goes anywhere."""
    last = max((x for line in series for x, _ in line.points), default=0)
    if not last:
        return None
    heights = results.known([target, *(y for line in series for _, y in line.points)])
    low = max(0.0, math.floor(10 * min(heights)) / 10)
    high = min(1.0, math.ceil(10 * max(heights) + 1e-9) / 10)
    ends = [f"{line.label} {formats.percent(line.points[-1][1])}" for line in series]
    return page.line_figure(
        series,
        marks.Axis("rounds", 0, max(last, 1)),
        marks.Axis("R-set accuracy", low, high, formats.whole_percent),
        f"Lines of R-set accuracy over up to {formats.number(last)} rounds. "
        f"At the end: {formats.listing(ends, 20)}.",
        title,
        caption,
        (target, target) if target else None,
        f"retraining's own {formats.percent(target)}",
    )


def class_figure(topic: Topic) -> Markup | None:
    """Accuracy of each class before, after, and for retraining."""
    record, styles = topic.record, topic.styles
    stages = [
        stage
        for stage in _compared_stages(topic)
        if stage.per_class and not roles.is_cut(stage)
    ]
    if not stages:
        return None
    names = [
        results.class_label(record, index) for index in range(len(stages[0].per_class))
    ]
    groups = [
        (roles.stage_title(stage), styles.get(stage.method, "raw"), stage.per_class)
        for stage in stages
    ]
    forgotten = [
        f"{names[index]}: "
        + ", ".join(f"{t} {formats.percent(values[index])}" for t, _, values in groups)
        for index in record.classes
    ]
    caption = f"Forgotten: {'; '.join(forgotten)}. The others should stay."
    if not record.classes:
        caption = "On test images: no class was to be forgotten, so all should stay."
    label = (
        f"Accuracy of {len(names)} classes for "
        f"{formats.listing([title for title, _, _ in groups])}. {caption}"
    )
    if len(names) > FEW_CLASSES:
        order = sorted(
            range(len(names)), key=lambda index: stages[0].per_class[index] or 0
        )
        series = [
            charts.Series(title, style, _in_order(values, order))
            for title, style, values in groups
        ]
        drawing = charts.line_chart(
            series,
            marks.Axis("classes, the raw model's worst first", 0, len(names) - 1),
            marks.Axis("accuracy", 0, 1, formats.whole_percent),
            label,
        )
    else:
        drawing = charts.bar_rows(names, groups, record.classes, label)
    return page.figure(
        drawing,
        "Accuracy of each class, before and after",
        caption,
        legend=page.legend([(title, "fill", style) for title, style, _ in groups]),
    )


def _in_order(values: Sequence[float | None], order: Sequence[int]) -> charts.Points:
    points = enumerate(values[index] for index in order)
    return [(n, value) for n, value in points if value is not None]


def _compared_stages(topic: Topic) -> list[StageRow]:
    """The raw, cut, final and retrained models, as far as they are there."""
    record, final = topic.record, roles.final_stage(topic.record, topic.tested)
    stages = [
        results.raw_stage(record),
        *results.pruned_stages(record, final.method if final else None),
        final,
        roles.final_stage(record, roles.RETRAIN),
    ]
    return [stage for stage in stages if stage is not None]


def confusion_figures(topic: Topic) -> Markup | None:
    """Confusion matrices of the raw, cut, final and retrained model."""
    record, drawn = topic.record, []
    for stage in _compared_stages(topic):
        if not 0 < len(stage.confusion) <= _MOST_MATRIX_CLASSES:
            continue
        counts = np.asarray(stage.confusion, dtype=np.float64)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        names = [results.class_name(record, index) for index in range(len(counts))]
        label = (
            f"Confusion matrix of {roles.stage_title(stage)}: "
            f"R-set accuracy {formats.percent(stage.r_accuracy)}, "
            f"U-set accuracy {formats.percent(stage.u_accuracy)}. "
            + " ".join(_answers(record, shares, index) for index in record.classes)
        )
        drawing = charts.matrix(shares, names, record.classes, label)
        drawn.append(page.figure(drawing, roles.stage_title(stage)))
    return page.grid(drawn)


def _answers(record: RunRecord, shares: np.ndarray, index: int) -> str:
    order = np.argsort(-shares[index], kind="stable")[:3]
    named = [
        f"{results.class_label(record, int(answer))} "
        f"{formats.whole_percent(shares[index, answer])}"
        for answer in order
        if shares[index, answer] > 0
    ]
    subject = results.class_label(record, index)
    return f"Images of {subject} are answered {formats.listing(named)}."


def score_figures(topic: Topic) -> list[Markup]:
    """Heat maps of TF-IDF scores per layer, one for each class that was cut."""
    cuts = roles.cuts_to_show(topic)
    return [_score_figure(*named) for named in cuts if any(named[1].scores.values())]


def _score_figure(title: str, cut: CutRow) -> Markup:
    # A JSON object may come back in any order; the layers of a cut are a list.
    places = {row.layer: place for place, row in enumerate(cut.layers)}
    rows = []
    for layer in sorted(cut.scores, key=lambda name: places.get(name, len(places))):
        scores, gone = cut.scores[layer], set(cut.removed.get(layer, ()))
        # After another cut the channels that are left keep their first numbers.
        ids = cut.channels.get(layer, range(len(scores)))
        ranked = sorted(zip(scores, ids, strict=True), key=lambda pair: -pair[0])
        removed = [channel in gone for _, channel in ranked]
        rows.append((layer, [score for score, _ in ranked], removed))
    total = sum(len(values) for _, values, _ in rows)
    gone = sum(sum(removed) for _, _, removed in rows)
    most = max(rows, key=lambda row: sum(row[2]))
    label = (
        f"TF-IDF scores of {total} channels in {len(rows)} layers; {gone} were cut, "
        f"most of them ({sum(most[2])}) in {most[0]}."
    )
    return page.figure(
        charts.heat_rows(rows, label),
        f"TF-IDF of every channel, by layer ({title})",
        "One cell is one channel, the most discriminative of each layer at the left; "
        "stronger colour is a higher score, on one scale for all layers. A red line "
        "under a cell marks a channel that was cut, and the red numbers count them.",
        sideways=True,
    )


def privacy_figure(record: RunRecord) -> Markup | None:
    """Accuracy and agreement of the cut against epsilon."""
    points = sorted(record.privacy_curve, key=lambda point: point.epsilon)
    if len(points) < 2 or points[0].epsilon <= 0:
        return None
    styles = ("main", "o0", "o1", "o2", "o3")
    series = []
    fields = tables.PRIVACY_FIELDS.items()
    for (field, title), style in zip(fields, styles, strict=True):
        values = [
            (point.epsilon, value)
            for point in points
            if (value := getattr(point, field)) is not None
        ]
        if values:
            series.append(charts.Series(title, style, values))
    low, high = points[0].epsilon, points[-1].epsilon
    ends = [
        f"{line.label} from {formats.percent(line.points[0][1])} to "
        f"{formats.percent(line.points[-1][1])}"
        for line in series
    ]
    return page.line_figure(
        series,
        marks.Axis("epsilon", low, high, "{:g}".format, high / low > 20),
        marks.Axis("", 0, 1, formats.whole_percent),
        f"Lines against epsilon from {low:g} to {high:g}: {'; '.join(ends)}.",
        "What privacy costs",
        "Stronger privacy (smaller epsilon) adds more noise to what leaves a client.",
    )


def feature_map_figure(record: RunRecord, maps: PictureArrays | None) -> Markup | None:
    """Figure 2: what the most and the least discriminative channel see."""
    if maps is None or not len(maps.images):
        return None
    labels = [int(label) for label in maps.labels[:_MOST_PICTURES]]
    names = [results.class_name(record, label) for label in labels]
    # The channels are chosen for the class that is cut first.
    red = dict.fromkeys(record.classes[:1], "forgotten")
    heads = [
        element("th", {"scope": "col", "class": red.get(label)}, name)
        for name, label in zip(names, labels, strict=True)
    ]
    rows: dict[str, Iterable[str]] = {"image": map(marks.photograph, maps.images)}
    chosen = record.feature_maps
    for title, seen in (("most", maps.maps_most), ("least", maps.maps_least)):
        highest = float(np.nan_to_num(seen, posinf=0.0).max(initial=0.0))
        channel = f", channel {getattr(chosen, title)}" if chosen else ""
        drawn = [marks.heat_map(one, highest) for one in seen[: len(names)]]
        rows[f"{title} discriminative{channel}"] = drawn
    table = element(
        "table",
        {"class": "maps"},
        element("thead", None, element("tr", None, element("td"), *heads)),
        element("tbody", None, *(_picture_row(*row, names) for row in rows.items())),
    )
    where = f" of layer {chosen.layer}" if chosen else ""
    return page.figure(
        table,
        f"What two channels{where} see in real images",
        "Brighter is more active, on one scale per row. The most discriminative "
        "channel should light up under the name in red and stay dark under others. "
        "The paper's Figure 2.",
        sideways=True,
    )


def _picture_row(title: str, pictures: Iterable[str], names: Sequence[str]) -> Markup:
    cells = [
        element("td", None, element("img", {"src": address, "alt": f"{title}: {name}"}))
        for address, name in zip(pictures, names, strict=False)
    ]
    return element("tr", None, element("th", {"scope": "row"}, title), *cells)
