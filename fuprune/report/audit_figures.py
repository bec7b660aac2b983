"""The figures of an audit: where models lie against retraining, and ROC curves.

Each function returns the framed drawing, or `None` when the audit holds nothing for it.
The audit's free-form `detail` is read with the same distrust as any other file.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fuprune.audit.evidence import AuditReport, Evidence
from fuprune.report import bars, charts, formats, page, palette
from fuprune.report.audit_tables import audited_models
from fuprune.report.markup import Markup
from fuprune.report.run_files import Run, mapping, number, sequence
from fuprune.report.run_tables import forward_order
from fuprune.report.tables import chip
from fuprune.report.verdict import interval_text, main_method, shown, test_title


def strip_figures(
    run: Run, kinds: Sequence[str], styles: Mapping[str, str]
) -> list[Markup]:
    """Where each model lies against retraining, one line per test."""
    if run.audit is None:
        return []
    main = main_method(run)
    tests = [test for test in run.audit.tests if test.kind in kinds]
    return [_strip(test, main, styles) for test in tests]


def _strip(test: Evidence, main: str | None, styles: Mapping[str, str]) -> Markup:
    names = sorted(test.values, key=lambda name: name != main)
    dots = [
        (formats.method_name(name), styles.get(name, "o0"), test.values[name])
        for name in names
        if test.values[name] is not None
    ]
    retrained = [value for value in test.retrained if value is not None]
    described = [
        f"{formats.method_name(name)} {shown(test, test.values[name])} "
        f"({test.verdicts[name]})"
        for name in names
    ]
    values = [value for _, _, value in dots] + retrained
    low, high = test.interval or (None, None)
    # An open side reaches to the end of the line.
    ends = (
        None
        if test.interval is None
        else (
            low if low is not None else min([*values, high if high is not None else 0]),
            high if high is not None else max([*values, low if low is not None else 0]),
        )
    )
    label = (
        f"{test_title(test)}. Retrained interval: {interval_text(test)}. "
        f"{formats.listing(described, 30)}."
    )
    caption = f"Retrained: {interval_text(test)}."
    if main in test.values:
        caption = (
            f"{formats.method_name(main)}: {shown(test, test.values[main])}. {caption}"
        )
        caption = caption[:1].upper() + caption[1:]
    notes = [note for note in test.notes if isinstance(note, str)]
    if notes:
        caption += " " + " ".join(_sentence(note) for note in notes)
    return page.figure(
        bars.interval_strip(
            ends,
            dots,
            retrained,
            label,
            shown=lambda value: shown(test, value),
            logarithmic=test.unit in ("nats", "distance"),
        ),
        test_title(test),
        caption,
        question=formats.shorten(test.question, 300),
        verdict=chip(test.verdicts[main]) if main in test.verdicts else None,
    )


def _sentence(note: str) -> str:
    note = formats.shorten(note, 300).strip()
    return note[:1].upper() + note[1:] + ("" if note.endswith(".") else ".")


def strip_legend(
    run: Run, kinds: Sequence[str], styles: Mapping[str, str]
) -> Markup | None:
    """Explains the dots of the strips of some kinds of test."""
    if run.audit is None:
        return None
    tests = [test for test in run.audit.tests if test.kind in kinds]
    entries = [
        (formats.method_name(name), styles.get(name, "o0"))
        for name in audited_models(run.audit)
        if any(name in test.values for test in tests)
    ]
    return page.dot_legend([("where retrained models lie", "range"), *entries])


def roc_figures(run: Run, styles: Mapping[str, str]) -> Markup | None:
    """ROC curves of every attack, with a logarithmic false-positive axis."""
    if run.audit is None:
        return None
    attacks = mapping(run.audit.detail.get("roc"))
    return page.grid(
        [_roc(name, mapping(curves), styles) for name, curves in attacks.items()]
    )


def _roc(
    attack: str, curves: Mapping[str, Any], styles: Mapping[str, str]
) -> Markup | None:
    series = []
    for name, curve in curves.items():
        points = _points(curve, "false_positives", "true_positives")
        if points:
            series.append(_series(name, _stairs(points), styles))
    if not series:
        return None
    # Below one false alarm among the non-members there is nothing to be seen.
    rates = [x for line in series for x, _ in line.points if x > 0]
    least = min(
        max(10.0 ** math.floor(math.log10(min(rates, default=1e-3))), 1e-4), 0.1
    )
    areas = [f"{line.label} {_area(line.points):.2f}" for line in series]
    title = formats.method_name(attack)
    return page.figure(
        charts.line_chart(
            charts.on_top(series),
            charts.Axis("false alarms", least, 1, _rate, logarithmic=True),
            charts.Axis("found", least, 1, _rate, logarithmic=True),
            f"ROC curves of the attack {title}. Areas: {formats.listing(areas, 30)}.",
            diagonal=True,
        ),
        title[:1].upper() + title[1:],
        "Training images found (upwards) against false alarms, both on a logarithmic "
        "scale: the lower left shows what a careful attacker learns.",
        legend=page.line_legend(series, "guessing"),
    )


def _series(
    name: str, points: Sequence[tuple[float, float]], styles: Mapping[str, str]
) -> charts.Series:
    return charts.Series(
        formats.method_name(name),
        "gold" if palette.is_retrain(name) else styles.get(name, "o0"),
        tuple(points),
        family=formats.method_name(palette.family(name)),
    )


def _rate(value: float) -> str:
    return f"{100 * value:g}%"


def _points(curve: Any, across: str, up: str) -> tuple[tuple[float, float], ...]:
    columns = [
        [number(value) for value in sequence(mapping(curve).get(key))]
        for key in (across, up)
    ]
    if len(columns[0]) != len(columns[1]):
        return ()
    return tuple(
        (x, y) for x, y in zip(*columns, strict=True) if x is not None and y is not None
    )


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keeps the height until the next false alarm: nothing lies between two points."""
    steps = list(points[:1])
    for (_, before), (across, up) in zip(points, points[1:], strict=False):
        steps += [(across, before), (across, up)]
    return steps


def _area(points: Sequence[tuple[float, float]]) -> float:
    return sum(
        (right[0] - left[0]) * (right[1] + left[1]) / 2
        for left, right in zip(points, points[1:], strict=False)
    )


def relearn_figure(run: Run, styles: Mapping[str, str]) -> Markup | None:
    """Accuracy on the forgotten class while it is taught again."""
    if run.audit is None:
        return None
    detail = mapping(run.audit.detail.get("relearn"))
    series = []
    for name, curve in mapping(detail.get("curves")).items():
        points = _points(curve, "steps", "accuracy")
        if points:
            series.append(_series(name, points, styles))
    if not series:
        return None
    last = max(x for line in series for x, _ in line.points)
    ends = [
        f"{line.label} {formats.percent(line.points[-1][1])} "
        f"at step {formats.number(line.points[-1][0])}"
        for line in series
    ]
    return page.figure(
        charts.line_chart(
            charts.on_top(series),
            charts.Axis("training steps", 0, max(last, 1)),
            charts.Axis("accuracy", 0, 1, lambda value: formats.percent(value, 0)),
            "Lines of accuracy on the forgotten class while it is taught again: "
            f"{formats.listing(ends, 30)}.",
            guide=number(detail.get("level")),
        ),
        "The class, taught again",
        "Accuracy on test images of the forgotten class. A line left of the retrained "
        "ones comes back faster than it should.",
        legend=page.line_legend(series, "counts as back"),
    )


def cka_figure(run: Run, styles: Mapping[str, str]) -> Markup | None:
    """Likeness of each layer to retraining, along the depth of the network."""
    if run.audit is None:
        return None
    tables = mapping(run.audit.detail.get("cka"))
    layers = forward_order(
        run, dict.fromkeys(key for table in tables.values() for key in mapping(table))
    )
    series = []
    for name, table in tables.items():
        points = tuple(
            (float(position), value)
            for position, value in (
                (position, number(mapping(table).get(layer)))
                for position, layer in enumerate(layers)
            )
            if value is not None
        )
        if points:
            series.append(_series(name, points, styles))
    if not series:
        return None
    low = min(value for line in series for _, value in line.points)
    means = [
        f"{line.label} {sum(v for _, v in line.points) / len(line.points):.2f}"
        for line in series
    ]
    return page.figure(
        charts.line_chart(
            charts.on_top(series),
            charts.Axis("layer, first to last", 0, max(len(layers) - 1, 1)),
            charts.Axis(
                "linear CKA", max(0.0, math.floor(10 * low) / 10), 1.0, "{:g}".format
            ),
            "Lines of linear CKA to retrained models by layer. Means: "
            f"{formats.listing(means, 30)}.",
        ),
        "Likeness to retraining, layer by layer",
        "Linear CKA of the activations on forgotten images; 1 is alike. The retrained "
        "lines show how alike two retrained models are.",
        legend=page.line_legend(series),
    )


def shadow_sentence(audit: AuditReport) -> str:
    """Says how good the shadow models behind an attack were."""
    rows = [mapping(row) for row in sequence(audit.detail.get("shadow_models"))]
    inside = [number(row.get("member_accuracy")) for row in rows]
    outside = [number(row.get("non_member_accuracy")) for row in rows]
    known = [(a, b) for a, b in zip(inside, outside, strict=True) if None not in (a, b)]
    if not known:
        return ""
    means = [sum(column) / len(known) for column in zip(*known, strict=True)]
    return (
        f"The {formats.plural(len(known), 'shadow model')} reached "
        f"{formats.percent(means[0])} on their own training images and "
        f"{formats.percent(means[1])} on others; the wider that gap, the more an "
        "attacker can learn."
    )
