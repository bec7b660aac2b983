"""The tables of one run: methods, stages, classes, layers, settings.

Each function returns a `Table`, or `None` when the run holds nothing for it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fuprune.report import formats, palette
from fuprune.report.run_files import Cut, Method, Run, Stage, class_label
from fuprune.report.tables import Cell, Column, Table, cell
from fuprune.report.verdict import main_method, raw_stage, retrain_rows

# Rows of a plan that are no layer of channels.
UNCUT_ROWS = ("total", "head", "hidden")


def methods_table(run: Run, *, errors: bool = True) -> Table | None:
    """Compares every way to forget: what it reached and what it cost.

    Args:
      run: The run.
      errors: Say in a last column why a method stopped.

    Returns:
      The table, seeds of one method next to each other.
    """
    if not run.methods:
        return None
    main = main_method(run)
    families = list(dict.fromkeys(palette.family(row.method) for row in run.methods))
    rows = []
    for row in sorted(
        run.methods, key=lambda row: families.index(palette.family(row.method))
    ):
        reached = row.rounds_to_target
        rows.append(
            (
                cell(
                    row.method,
                    formats.method_name(row.method),
                    "highlight" if row.method == main else "",
                ),
                role(row.method, main),
                cell(row.u_accuracy, formats.percent(row.u_accuracy)),
                cell(row.r_accuracy, formats.percent(row.r_accuracy)),
                cell(reached, _reached_text(run, row)),
                cell(row.rounds, formats.number(row.rounds)),
                cell(row.seconds, formats.seconds(row.seconds)),
                cell(row.upload_bytes, formats.size(row.upload_bytes)),
                cell(row.speedup, formats.times(row.speedup)),
                cell(row.error or ""),
            )
        )
    columns = (
        Column("Method", numeric=False),
        Column("Role", numeric=False),
        Column("U-set accuracy"),
        Column("R-set accuracy"),
        Column("Rounds to target"),
        Column("Rounds run"),
        Column("Time"),
        Column("Uploaded"),
        Column("Speed-up"),
        Column("Error", numeric=False, words=True),
    )
    if not errors or not any(row.error for row in run.methods):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    note = "U-set: test images of the forgotten classes; R-set: of all others."
    if run.target_accuracy is not None:
        note += f" Target: {formats.percent(run.target_accuracy)} on the R-set."
    return Table("methods", "Every method, compared", columns, tuple(rows), note)


def _reached_text(run: Run, row: Method) -> str:
    if row.error:
        return "stopped"
    if row.rounds_to_target is not None or run.target_accuracy is None:
        return formats.number(row.rounds_to_target)
    return "not reached" if row.rounds else "no rounds"


def role(name: str, main: str | None) -> Cell:
    """Says what a method stands for in the comparison."""
    if main is not None and palette.family(name) == palette.family(main):
        return cell("under test")
    if palette.is_retrain(name):
        return cell("gold standard")
    return cell("control" if palette.is_control(name) else "baseline")


def paper_table(run: Run) -> Table | None:
    """The table of the paper's form: raw, after-pruned, fine-tuned, re-trained."""
    cuts = {
        row.method: pruned_stages(run, row.method)
        for row in run.methods
        if pruned_stages(run, row.method)
    }
    if not cuts:
        return None
    raw, main = raw_stage(run), main_method(run)
    retrained = next(iter(retrain_rows(run)), None)
    longest = max(len(stages) for stages in cuts.values())
    headings = (
        ["After-pruned"]
        if longest == 1
        else [f"After {_ordinal(position)} class" for position in range(longest)]
    )
    columns = [Column("Method", numeric=False)]
    for group in ("Raw model", *headings, "Fine-tuned", "Re-trained"):
        columns += [Column("U-set", group=group), Column("R-set", group=group)]
    columns.append(Column("Speed-up"))
    rows = []
    for name, stages in cuts.items():
        final = next(row for row in run.methods if row.method == name)
        row = [
            cell(name, formats.method_name(name), "highlight" if name == main else "")
        ]
        padded = [*stages, *[None] * (longest - len(stages))]
        for stage in (raw, *padded, final, retrained):
            row += _accuracy_pair(stage)
        row.append(cell(final.speedup, formats.times(final.speedup)))
        rows.append(tuple(row))
    return Table(
        "paper_form",
        "In the form of the paper's Tables 2 and 3",
        tuple(columns),
        tuple(rows),
        "Re-trained is the run's own retraining without the class, first seed.",
    )


def pruned_stages(run: Run, method: str) -> list[Stage]:
    """Finds the models of a method between its cuts, in order."""
    return [
        stage
        for stage in run.stages
        if stage.method == method and stage.stage.startswith("pruned")
    ]


def final_stage(run: Run, method: str) -> Stage | None:
    """Finds the last model of a method."""
    return next(
        (
            stage
            for stage in reversed(run.stages)
            if stage.method == method
            and stage.stage != palette.RAW
            and not stage.stage.startswith("pruned")
        ),
        None,
    )


def _ordinal(position: int) -> str:
    names = ("first", "second", "third", "fourth", "fifth")
    return names[position] if position < len(names) else f"{position + 1}th"


def _accuracy_pair(stage: Any) -> list[Cell]:
    if stage is None:
        return [cell(None), cell(None)]
    return [
        cell(value, formats.percent(value, 2))
        for value in (stage.u_accuracy, stage.r_accuracy)
    ]


def class_table(run: Run) -> Table | None:
    """Gives the accuracy of each class in each stage."""
    stages = [stage for stage in run.stages if stage.per_class]
    if not stages:
        return None
    columns = [Column("Class", numeric=False)]
    columns += [Column(stage_title(stage)) for stage in stages]
    rows = []
    for index in range(max(len(stage.per_class) for stage in stages)):
        values = [
            stage.per_class[index] if index < len(stage.per_class) else None
            for stage in stages
        ]
        rows.append(
            (
                cell(
                    class_label(run, index),
                    kind="highlight" if index in run.classes else "",
                ),
                *(cell(value, formats.percent(value)) for value in values),
            )
        )
    return Table(
        "classes",
        "Accuracy of each class, stage by stage",
        tuple(columns),
        tuple(rows),
        "Forgotten classes are tinted.",
    )


def stage_title(stage: Stage) -> str:
    """Names a stage: `raw`, `class pruning, pruned`, `retrain`."""
    if stage.stage == palette.RAW:
        return palette.RAW
    method = formats.method_name(stage.method)
    step = formats.method_name(stage.stage)
    ends = ("final", "fine_tuned", palette.family(stage.method))
    if stage.stage in ends or not method:
        return method or step
    return f"{method}, {step}"


def shown_cuts(run: Run) -> tuple[str, tuple[Cut, ...]]:
    """Picks whose cuts to show: the method under test's, else the first method's.

    Returns:
      Name of the method and its cuts, one for each class; none if nothing was cut.
    """
    main = main_method(run)
    method = main if main in run.cuts else next(iter(run.cuts), "")
    return method or "", run.cuts.get(method or "", ())


def cut_title(run: Run, cut: Cut) -> str:
    """Says which class a cut was for, where there is more than one."""
    if cut.class_id is None or len(shown_cuts(run)[1]) < 2:
        return ""
    return f", for class {class_label(run, cut.class_id)}"


def forward_order(run: Run, layers: Iterable[str]) -> list[str]:
    """Sorts layer names from input to output, as far as a plan of the run says.

    Objects in JSON may come back in any order; a plan is a list and keeps it.
    """
    plan = next((cut.plan for cut in shown_cuts(run)[1] if cut.plan), ())
    places = {row.layer: place for place, row in enumerate(plan)}
    return sorted(layers, key=lambda layer: places.get(layer, len(places)))


def layer_tables(run: Run) -> list[Table]:
    """Gives every layer's width, parameters and cost before and after each cut."""
    method, cuts = shown_cuts(run)
    return [
        _layer_table(run, method, cut, "layers" if i == 0 else f"layers_{i + 1}")
        for i, cut in enumerate(cuts)
        if cut.plan
    ]


def _layer_table(run: Run, method: str, cut: Cut, name: str) -> Table:
    columns = [Column("Layer", numeric=False)]
    for group in ("Channels", "Parameters", "FLOPs per image"):
        columns += [Column("before", group=group), Column("after", group=group)]
    columns.append(Column("Spared"))
    return Table(
        name,
        f"Every layer before and after the cut ({formats.method_name(method)}"
        f"{cut_title(run, cut)})",
        tuple(columns),
        tuple(
            (
                cell(row.layer, kind="highlight" if row.layer == "total" else ""),
                *(
                    cell(value, formats.number(value))
                    for value in (
                        row.channels_before,
                        row.channels_after,
                        row.parameters_before,
                        row.parameters_after,
                        row.flops_before,
                        row.flops_after,
                    )
                ),
                cell(row.spared),
            )
            for row in cut.plan
        ),
        "Spared channels were due to go but kept so that the layer is not emptied.",
    )


def privacy_table(run: Run) -> Table | None:
    """Gives the privacy accountant's numbers."""
    return key_value_table("privacy", "The privacy accountant's numbers", run.privacy)


def privacy_curve_table(run: Run) -> Table | None:
    """Gives accuracy against epsilon."""
    if not run.privacy_curve:
        return None
    return Table(
        "privacy_curve",
        "Accuracy against epsilon",
        (
            Column("Epsilon"),
            Column("R-set accuracy"),
            Column("U-set accuracy"),
            Column("Same channels cut"),
            Column("R-set, fine-tuned"),
            Column("U-set, fine-tuned"),
        ),
        tuple(
            (
                cell(point.epsilon, formats.number(point.epsilon)),
                cell(point.r_accuracy, formats.percent(point.r_accuracy)),
                cell(point.u_accuracy, formats.percent(point.u_accuracy)),
                cell(point.overlap, formats.percent(point.overlap)),
                cell(point.tuned_r_accuracy, formats.percent(point.tuned_r_accuracy)),
                cell(point.tuned_u_accuracy, formats.percent(point.tuned_u_accuracy)),
            )
            for point in run.privacy_curve
        ),
    )


def time_table(run: Run) -> Table | None:
    """Gives the seconds of each phase."""
    if not run.phase_seconds:
        return None
    rows = [
        (cell(phase), cell(seconds, formats.seconds(seconds)))
        for phase, seconds in run.phase_seconds.items()
    ]
    total = sum(run.phase_seconds.values())
    rows.append((cell("all"), cell(total, formats.seconds(total))))
    return Table(
        "times",
        "Time of each phase",
        (Column("Phase", numeric=False), Column("Time")),
        tuple(rows),
        "Rounds only; compilation of the first round is part of it.",
    )


def settings_table(run: Run) -> Table | None:
    """Lists the whole config, key by key."""
    return key_value_table("settings", "Every setting", run.config)


def versions_table(run: Run) -> Table | None:
    """Lists the versions of what the run was made with."""
    return key_value_table("versions", "Versions", run.versions)


def key_value_table(name: str, title: str, values: Mapping[str, Any]) -> Table | None:
    """Lists nested values, one dotted key per row.

    Args:
      name: File name of the table.
      title: Its heading.
      values: What to list.

    Returns:
      The table, or `None` if there is nothing to list.
    """
    if not values:
        return None
    return Table(
        name,
        title,
        (Column("Key", numeric=False), Column("Value", numeric=False, words=True)),
        tuple((cell(key), _setting_cell(value)) for key, value in _flatten(values)),
    )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _setting_cell(value: Any) -> Cell:
    if isinstance(value, (list, tuple)):
        return cell(formats.shorten(", ".join(map(str, value)) or "(none)", 300))
    if isinstance(value, (bool, type(None), dict)):
        return cell(str(value) if value != {} else "(none)")
    if isinstance(value, float):
        return cell(value, f"{value:g}")
    return cell(value if isinstance(value, int) else formats.shorten(str(value), 300))
