"""The figures of an audit: where models lie against retraining, and curves.

Each function returns the framed drawing, or None when the audit holds nothing for it.
The curves are in the audit's `detail`, whose keys `audit.evidence` describes.
"""

import math
from collections.abc import Mapping, Sequence

from fuprune import results
from fuprune.audit.evidence import AuditReport, Evidence, RelearnRun
from fuprune.report import charts, formats, judgement, marks, page, roles
from fuprune.report.figures import model_line
from fuprune.report.judgement import interval_text, test_title, value_text
from fuprune.report.markup import Markup
from fuprune.report.roles import Styles, Topic
from fuprune.report.table_forms import chip


def strip_figure(topic: Topic, test: Evidence) -> Markup:
    """Where each model lies against retraining."""
    judged = topic.judged
    names = sorted(test.values, key=lambda name: name != judged)
    dots = [
        charts.Dot(formats.in_words(name), topic.styles[name], value)
        for name in names
        if (value := test.values[name]) is not None
    ]
    described = [
        f"{formats.in_words(name)} {value_text(test, test.values[name])} "
        f"({test.verdicts[name]})"
        for name in names
    ]
    caption = f"Retrained: {interval_text(test)}."
    verdict = None
    if judged in test.values:
        value = value_text(test, test.values[judged])
        caption = f"{formats.capital(formats.in_words(judged))}: {value}. {caption}"
        verdict = chip(test.verdicts[judged])
    least = judgement.difference_text(test)
    if least != formats.MISSING:
        caption += f" Smallest visible difference: {least}."
    for note in test.notes:
        said = roles.reworded(topic.record, note).strip().rstrip(".")
        caption += f" {formats.capital(said)}."
    return page.figure(
        charts.strip(
            test.interval,
            dots,
            results.known(test.retrained),
            f"{test_title(test)}. Retrained interval: {interval_text(test)}. "
            f"{formats.listing(described, 30)}.",
            range_hint=f"retrained: {interval_text(test)}",
            written=lambda value: value_text(test, value),
            logarithmic=test.unit in ("nats", "distance"),
        ),
        test_title(test),
        caption,
        question=roles.reworded(topic.record, test.question),
        verdict=verdict,
    )


def strip_legend(topic: Topic, tests: Sequence[Evidence]) -> Markup:
    """Explains the dots of the strips of some tests."""
    named = {name for test in tests for name in test.values}
    models = roles.audited_models(topic.audit, topic.tested) if topic.audit else []
    entries = [
        (formats.in_words(name), "dot", topic.styles[name])
        for name in models
        if name in named
    ]
    return page.legend([("where retrained models lie", "range", ""), *entries])


def roc_figures(audit: AuditReport, styles: Styles) -> Markup | None:
    """ROC curves of every attack, with logarithmic axes."""
    attacks = audit.detail.get("roc", {}).items()
    return page.grid([_roc(name, curves, styles) for name, curves in attacks if curves])


def _roc(attack: str, curves: Mapping, styles: Styles) -> Markup:
    series = [
        model_line(
            name, stairs(_points(curve, "false_positives", "true_positives")), styles
        )
        for name, curve in curves.items()
    ]
    # Below one false alarm among the non-members there is nothing to be seen.
    rates = [x for line in series for x, _ in line.points if x > 0]
    decade = 10.0 ** math.floor(math.log10(min(rates, default=1e-3)))
    least = min(max(decade, 1e-4), 0.1)
    title = formats.in_words(attack)
    return page.line_figure(
        series,
        marks.Axis("false alarms", least, 1, _rate, logarithmic=True),
        marks.Axis("found", least, 1, _rate, logarithmic=True),
        f"ROC curves of the attack {title} on {len(series)} models.",
        formats.capital(title),
        "Training images found (upwards) against false alarms, both on a logarithmic "
        "scale: the lower left shows what a careful attacker learns.",
        (least, 1),
        "guessing",
    )


def _rate(value: float) -> str:
    return f"{100 * value:g}%"


def _points(curve: Mapping, across: str, up: str) -> charts.Points:
    return list(zip(curve[across], curve[up], strict=True))


def stairs(points: charts.Points) -> charts.Points:
    """Keeps the height until the next false alarm: nothing lies between two points."""
    steps = list(points[:1])
    for (_, before), (across, up) in zip(points, points[1:], strict=False):
        steps += [(across, before), (across, up)]
    return steps


def relearn_figures(audit: AuditReport, styles: Styles) -> list[Markup]:
    """Accuracy on forgotten test images while a model is taught them again.

    The first figure is each model's mean over everything that was tried; one more per
    choice of images follows, with the mean over the learning rates and amounts.
    """
    detail = audit.detail.get("relearn", {})
    level = detail.get("level")
    drawn = []
    if detail.get("curves"):
        curves = {name: [curve] for name, curve in detail["curves"].items()}
        caption = "mean over all settings"
        drawn.append(_relearn_chart(curves, level, styles, "Relearning", caption))
    kinds: dict[tuple[str, int], list[RelearnRun]] = {}
    for run in detail.get("runs", []):
        kinds.setdefault((run["images"], run["images_per_class"]), []).append(run)
    for (images, amount), runs in kinds.items() if len(kinds) > 1 else ():
        curves: dict[str, list[Mapping]] = {}
        for run in runs:
            curves.setdefault(run["model"], []).append(run)
        title = f"With {_IMAGES.get(images, images)}, {amount} per class"
        rates = list(dict.fromkeys(f"{run['learning_rate']:g}" for run in runs))
        noun = "learning rates" if len(rates) > 1 else "learning rate"
        caption = f"{noun} {formats.listing(rates)}"
        drawn.append(_relearn_chart(curves, level, styles, title, caption))
    return drawn


_IMAGES = {
    "all": "images of all classes",
    "forgotten": "forgotten images only",
    "retained": "retained images only",
}


def _relearn_chart(
    curves: Mapping[str, Sequence[Mapping]],
    level: float | None,
    styles: Styles,
    title: str,
    condition: str,
) -> Markup:
    """Draws each model's mean over its curves."""
    series = []
    for name, found in curves.items():
        lines = [_points(curve, "steps", "accuracy") for curve in found]
        means, _ = charts.mean_curve(lines)
        if means:
            series.append(model_line(name, means, styles))
    last = max((x for line in series for x, _ in line.points), default=0)
    ends = [
        f"{line.label} {formats.percent(line.points[-1][1])} "
        f"at step {formats.number(line.points[-1][0])}"
        for line in series
    ]
    return page.line_figure(
        series,
        marks.Axis("training steps", 0, max(last, 1)),
        marks.Axis("accuracy", 0, 1, formats.whole_percent),
        f"Lines of accuracy while relearning: {formats.listing(ends, 30)}.",
        title,
        f"Accuracy on forgotten test images ({condition}). A line above the retrained "
        "ones shows faster relearning than theirs.",
        (level, level) if level else None,
        "counts as back",
    )


def probe_figures(audit: AuditReport, styles: Styles) -> list[Markup]:
    """How well fresh classifiers find forgotten images by depth, a figure for each."""
    detail = audit.detail.get("probe", {})
    layers = detail.get("layers", [])
    return [
        _depth_chart(
            {
                name: list(enumerate(areas[classifier]))
                for name, areas in detail["areas"].items()
                if classifier in areas
            },
            layers,
            styles,
            "AUC",
            f"Recognised inside, by depth: {_CLASSIFIERS.get(classifier, classifier)}",
            "How well a fresh classifier tells forgotten images from others by the "
            "features at each depth; 0.5 is guessing. Above the retrained lines, "
            "something was kept; below them, more was erased than retraining erases, "
            "which is a trace, too.",
        )
        for classifier in detail.get("classifiers", [])
    ]


_CLASSIFIERS = {
    "linear": "linear probe",
    "neighbours": "nearest neighbours",
    "network": "small network",
}


def cka_figure(topic: Topic, audit: AuditReport) -> Markup | None:
    """Likeness of each layer to retraining, along the depth of the network."""
    found = audit.detail.get("cka", {})
    layers = list(dict.fromkeys(layer for table in found.values() for layer in table))
    if not layers:
        return None
    # Audits of earlier versions have them in order of their names, cuts by depth.
    cuts = [cut for of_unit in topic.record.cuts.values() for cut in of_unit]
    depth = {row.layer: n for cut in cuts for n, row in enumerate(cut.layers)}
    layers.sort(key=lambda layer: depth.get(layer, len(depth)))
    points = {
        name: [(float(layers.index(layer)), value) for layer, value in table.items()]
        for name, table in found.items()
    }
    return _depth_chart(
        points,
        layers,
        topic.styles,
        "linear CKA",
        "Likeness to retraining, layer by layer",
        "Linear CKA of the activations on forgotten images; 1 is alike. The retrained "
        "lines show how alike two retrained models are.",
    )


def _depth_chart(
    points: Mapping[str, charts.Points],
    layers: Sequence[str],
    styles: Styles,
    unit: str,
    title: str,
    caption: str,
) -> Markup:
    series = [model_line(name, sorted(line), styles) for name, line in points.items()]
    low = min((value for line in series for _, value in line.points), default=0.0)
    ends = [f"{s.label} {s.points[-1][1]:.2f}" for s in series if s.points]
    # A number per layer: its name, which is long, is in the caption's first and last.
    where = f"{layers[0]} (0) to {layers[-1]} ({len(layers) - 1})" if layers else ""
    return page.line_figure(
        series,
        marks.Axis(f"layer: {where}", 0, max(len(layers) - 1, 1)),
        marks.Axis(unit, max(0.0, math.floor(10 * low) / 10), 1.0, "{:.2g}".format),
        f"Lines of {unit} by layer. At the last: {formats.listing(ends, 30)}.",
        title,
        caption,
    )
