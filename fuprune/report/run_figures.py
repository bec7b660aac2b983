"""The figures of one run: curves, bars, confusion, TF-IDF heat maps, feature maps.

Each function returns the framed drawing, or `None` when the run holds nothing for it.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fuprune.report import (
    bars,
    cells,
    charts,
    formats,
    page,
    palette,
    run_tables,
)
from fuprune.report.audit_tables import audited_models
from fuprune.report.markup import Markup
from fuprune.report.run_files import Cut, Run, Stage, class_label, class_name
from fuprune.report.run_tables import (
    UNCUT_ROWS,
    final_stage,
    pruned_stages,
    stage_title,
)
from fuprune.report.verdict import main_method, raw_stage

FEW_CLASSES = 20
_MOST_MATRIX_CLASSES = 200


def run_styles(run: Run) -> dict[str, str]:
    """Assigns the colours of a run's models, the same on the whole page."""
    names = [row.method for row in run.methods]
    if run.audit is not None:
        names += audited_models(run.audit)
    names += [name for name, _ in unlearning_curves(run)]
    return palette.styles([palette.RAW, *names])


def unlearning_curves(run: Run) -> list[tuple[str, list[tuple[float, float]]]]:
    """Collects R-set accuracy against rounds for every method that logged it.

    Returns:
      Name of the method and its (round, accuracy) points in order of round; a round
      logged twice, as after a restart, counts once.
    """
    curves: dict[str, dict[int, float]] = {}
    for row in run.metrics:
        if row.phase.startswith("unlearn/") and "r_accuracy" in row.values:
            name = row.phase.removeprefix("unlearn/")
            curves.setdefault(name, {})[row.round_number] = row.values["r_accuracy"]
    for name, points in curves.items():
        # Fine-tuning logs from its first round on; where it started is a stage.
        cuts = pruned_stages(run, name)
        if cuts and cuts[-1].r_accuracy is not None:
            points.setdefault(0, cuts[-1].r_accuracy)
    return [
        (name, sorted((float(key), value) for key, value in points.items()))
        for name, points in curves.items()
    ]


def recovery_figure(run: Run, styles: Mapping[str, str]) -> Markup | None:
    """Figure 3: R-set accuracy against rounds of fine-tuning and of retraining."""
    curves = unlearning_curves(run)
    if not curves:
        return None
    return recovery_chart(
        [
            charts.Series(
                formats.method_name(name),
                styles[name],
                tuple(points),
                family=formats.method_name(palette.family(name)),
            )
            for name, points in curves
        ],
        run.target_accuracy,
        "Accuracy on the remaining classes, round by round",
        "Rounds of fine-tuning after the cut or change; for retraining, rounds from "
        "scratch. The paper's Figure 3.",
    )


def recovery_chart(
    series: Sequence[charts.Series], target: float | None, title: str, caption: str
) -> Markup:
    """Frames accuracy-against-rounds lines, the method under test on top."""
    values = [value for line in series for _, value in line.points]
    last = max(x for line in series for x, _ in line.points)
    low = max(0.0, math.floor(10 * min(values)) / 10)
    high = min(1.0, math.ceil(10 * max([*values, target or 0.0]) + 1e-9) / 10)
    ends = [f"{line.label} {formats.percent(line.points[-1][1])}" for line in series]
    label = (
        f"Lines of R-set accuracy over up to {formats.number(last)} rounds. "
        f"At the end: {formats.listing(ends, 20)}."
    )
    return page.figure(
        charts.line_chart(
            charts.on_top(series),
            charts.Axis("rounds", 0, max(last, 1)),
            charts.Axis("R-set accuracy", low, high, lambda v: formats.percent(v, 0)),
            label,
            guide=target,
        ),
        title,
        caption,
        legend=page.line_legend(
            series, f"target {formats.percent(target)}" if target else ""
        ),
    )


def rounds_figure(run: Run, styles: Mapping[str, str]) -> Markup | None:
    """Bars of rounds to the target for every method that trained."""
    rows = [row for row in run.methods if row.error is None and row.rounds]
    longest = max((row.rounds_to_target or row.rounds or 0 for row in rows), default=0)
    if run.target_accuracy is None or not longest:
        return None
    families: dict[str, list[bars.Bar]] = {}
    for row in rows:
        reached = row.rounds_to_target
        words = (
            f"{formats.number(reached)} rounds"
            if reached is not None
            else f"not reached in {formats.number(row.rounds)} rounds"
        )
        families.setdefault(formats.method_name(palette.family(row.method)), []).append(
            bars.Bar(
                reached,
                styles.get(row.method, "raw"),
                formats.number(reached) if reached is not None else "never",
                f"{formats.method_name(row.method)}: {words}",
            )
        )
    described = [bar.title for row in families.values() for bar in row]
    return page.figure(
        bars.bar_rows(
            list(families.items()),
            f"Bars of rounds to target. {formats.listing(described, 20)}.",
            high=longest,
            label_width=126,
            bar_height=max(11.0, min(26.0, 210.0 / len(rows) - 8)),
        ),
        f"Rounds until {formats.percent(run.target_accuracy)} on the remaining classes",
        "Shorter is faster. The same data order, learning rate and target for every "
        "method; methods that train no round are left out.",
    )


def class_bars(run: Run, styles: Mapping[str, str]) -> Markup | None:
    """Accuracy of each class before, after, and for retraining."""
    main = main_method(run)
    stages = [raw_stage(run), _final(run, main), _final(run, palette.RETRAIN)]
    kept = [stage for stage in stages if stage is not None and stage.per_class]
    if not kept:
        return None
    names = [
        class_label(run, index)
        for index in range(max(len(stage.per_class) for stage in kept))
    ]
    emphasised = [index in run.classes for index in range(len(names))]
    groups = []
    for stage in kept:
        style = "raw" if stage.stage == palette.RAW else styles.get(stage.method, "o0")
        groups.append((stage_title(stage), style, stage.per_class))
    worst = [
        f"{names[index]}: "
        + ", ".join(
            f"{title} {formats.percent(values[index])}"
            for title, _, values in groups
            if index < len(values)
        )
        for index in run.classes
        if 0 <= index < len(names)
    ]
    label = (
        f"Accuracy of {len(names)} classes for "
        f"{formats.listing([group[0] for group in groups])}. "
        f"Forgotten: {'; '.join(worst)}."
    )
    if len(names) > FEW_CLASSES:
        drawing = charts.column_dots(names, groups, label, emphasised=emphasised)
    else:
        rows = []
        for index, name in enumerate(names):
            drawn = []
            for title, style, values in groups:
                value = values[index] if index < len(values) else None
                described = f"{name}, {title}: {formats.percent(value)}"
                drawn.append(
                    bars.Bar(value, style, formats.percent(value, 0), described)
                )
            rows.append((name, drawn))
        drawing = bars.bar_rows(
            rows, label, high=1.0, emphasised=emphasised, bar_height=15
        )
    return page.figure(
        drawing,
        "Accuracy of each class, before and after",
        "The forgotten classes are in bold or outlined; the others should stay.",
        legend=page.fill_legend([(title, style) for title, style, _ in groups]),
        sideways=len(names) > FEW_CLASSES,
    )


def _final(run: Run, method: str | None) -> Stage | None:
    if method is None:
        return None
    if method == palette.RETRAIN:
        names = dict.fromkeys(stage.method for stage in run.stages)
        method = next((name for name in names if palette.is_retrain(name)), method)
    return final_stage(run, method)


def confusion_figures(run: Run) -> Markup | None:
    """Confusion matrices of the raw, cut, final and retrained model."""
    main = main_method(run)
    stages = [raw_stage(run), *(pruned_stages(run, main) if main else [])]
    stages += [_final(run, main), _final(run, palette.RETRAIN)]
    drawn = []
    for stage in stages:
        if stage is None or stage.confusion is None:
            continue
        size = len(stage.confusion)
        if size > _MOST_MATRIX_CLASSES:
            continue
        totals = stage.confusion.sum(axis=1, keepdims=True)
        shares = stage.confusion / np.maximum(totals, 1)
        names = [class_name(run, index) for index in range(size)]
        label = (
            f"Confusion matrix of {stage_title(stage)}: "
            f"R-set accuracy {formats.percent(stage.r_accuracy)}, "
            f"U-set accuracy {formats.percent(stage.u_accuracy)}. "
            + " ".join(_answers(run, shares, index) for index in run.classes)
        )
        drawn.append(
            page.figure(
                cells.matrix(shares.tolist(), names, run.classes, label),
                stage_title(stage),
            )
        )
    return page.grid(drawn)


def _answers(run: Run, shares: np.ndarray, index: int) -> str:
    if not 0 <= index < len(shares):
        return ""
    order = np.argsort(-shares[index], kind="stable")[:3]
    named = [
        f"{class_label(run, int(answer))} {formats.percent(shares[index, answer], 0)}"
        for answer in order
        if shares[index, answer] > 0
    ]
    return f"Images of {class_label(run, index)} are answered {formats.listing(named)}."


def score_figures(run: Run) -> list[Markup]:
    """Heat maps of TF-IDF scores per layer, one for each class that was cut."""
    method, cuts = run_tables.shown_cuts(run)
    return [_score_figure(run, method, cut) for cut in cuts if any(cut.scores.values())]


def _score_figure(run: Run, method: str, cut: Cut) -> Markup:
    rows = []
    for layer in run_tables.forward_order(run, cut.scores):
        scores = cut.scores[layer]
        order = sorted(range(len(scores)), key=lambda channel: -scores[channel])
        # After another cut the channels that are left keep their first numbers.
        ids = cut.channels.get(layer, ())
        ids = ids if len(ids) == len(scores) else range(len(scores))
        gone = set(cut.removed.get(layer, ()))
        rows.append(
            (
                layer,
                [scores[channel] for channel in order],
                [ids[channel] in gone for channel in order],
            )
        )
    total = sum(len(values) for _, values, _ in rows)
    gone = sum(sum(marked) for _, _, marked in rows)
    most = max(rows, key=lambda row: sum(row[2]))
    label = (
        f"TF-IDF scores of {total} channels in {len(rows)} layers; {gone} were cut, "
        f"most of them ({sum(most[2])}) in {most[0]}."
    )
    return page.figure(
        cells.heat_rows(rows, label),
        f"TF-IDF of every channel, by layer ({formats.method_name(method)}"
        f"{run_tables.cut_title(run, cut)})",
        "One cell is one channel, the most discriminative of each layer at the left; "
        "stronger colour is a higher score, on one scale for all layers. A red line "
        "under a cell marks a channel that was cut, and the red number counts them.",
        sideways=True,
    )


def width_figures(run: Run) -> list[Markup]:
    """Bars of channels per layer before and after, for each class that was cut."""
    drawn = [_width_figure(run, cut) for cut in run_tables.shown_cuts(run)[1]]
    return [figure for figure in drawn if figure is not None]


def _width_figure(run: Run, cut: Cut) -> Markup | None:
    layers = [
        row for row in cut.plan if row.layer not in UNCUT_ROWS and row.channels_before
    ]
    if not layers:
        return None
    rows = [
        (
            row.layer,
            [
                bars.Bar(
                    row.channels_before,
                    "before",
                    "",
                    f"{row.layer} before: {row.channels_before} channels",
                ),
                bars.Bar(
                    row.channels_after,
                    "main",
                    str(row.channels_before)
                    if row.channels_after == row.channels_before
                    else f"{row.channels_before} \N{RIGHTWARDS ARROW} "
                    f"{row.channels_after}",
                    f"{row.layer} after: {row.channels_after} channels",
                ),
            ],
        )
        for row in layers
    ]
    before = sum(row.channels_before for row in layers)
    after = sum(row.channels_after for row in layers)
    return page.figure(
        bars.bar_rows(
            rows,
            f"Channels of {len(layers)} layers: {before} before, {after} after.",
            high=max(row.channels_before for row in layers),
            label_width=126,
            value_width=66,
            bar_height=6,
        ),
        f"Width of each layer{run_tables.cut_title(run, cut)}",
        f"{before:,} channels before, {after:,} after "
        f"({formats.percent(1 - after / before)} gone).",
        legend=page.fill_legend([("before", "before"), ("after", "main")]),
    )


def privacy_figure(run: Run) -> Markup | None:
    """Accuracy and agreement of the cut against epsilon."""
    points = sorted(run.privacy_curve, key=lambda point: point.epsilon)
    if len(points) < 2:
        return None
    series = [
        charts.Series(
            title,
            style,
            tuple(
                (point.epsilon, getattr(point, field))
                for point in points
                if getattr(point, field) is not None
            ),
        )
        for title, style, field in (
            ("R-set accuracy", "main", "r_accuracy"),
            ("U-set accuracy", "o0", "u_accuracy"),
            ("same channels cut", "o1", "overlap"),
            ("R-set, fine-tuned", "o2", "tuned_r_accuracy"),
            ("U-set, fine-tuned", "o3", "tuned_u_accuracy"),
        )
    ]
    series = [line for line in series if line.points]
    low, high = points[0].epsilon, points[-1].epsilon
    if not series or high <= low:
        return None
    spread = high / low > 20
    return page.figure(
        charts.line_chart(
            series,
            charts.Axis("epsilon", low, high, "{:g}".format, logarithmic=spread),
            charts.Axis("", 0, 1, lambda value: formats.percent(value, 0)),
            "Lines against epsilon: "
            + "; ".join(
                f"{line.label} from {formats.percent(line.points[0][1])} at "
                f"{formats.number(line.points[0][0])} to "
                f"{formats.percent(line.points[-1][1])} at "
                f"{formats.number(line.points[-1][0])}"
                for line in series
            ),
        ),
        "What privacy costs",
        "Stronger privacy (smaller epsilon) adds more noise to the class statistics "
        "that leave a client.",
        legend=page.line_legend(series),
    )
