"""The tables of one run: methods, speed, stages, classes, layers, settings, verdicts.

A table has no rows if the record holds nothing for it, and is then left out.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fuprune import results
from fuprune.audit.evidence import AuditReport, Evidence
from fuprune.report import formats, judgement, roles
from fuprune.report.judgement import interval_text, test_title, value_text
from fuprune.report.roles import Topic
from fuprune.report.table_forms import Cell, Column, Table, cell, in_words
from fuprune.results import CutRow, MethodRow, PhaseClock, RunRecord, StageRow

# What every method reached and spent: column, value of a row, how it is written.
_COSTS = (
    (Column("U-set", group="Accuracy"), lambda row: row.u_accuracy, formats.percent),
    (Column("R-set", group="Accuracy"), lambda row: row.r_accuracy, formats.percent),
    (Column("Rounds"), lambda row: row.rounds, formats.number),
    (Column("own work", group="Time"), lambda row: row.times.own, formats.seconds),
    (Column("training", group="Time"), lambda row: row.times.training, formats.seconds),
    (Column("Images"), lambda row: row.images, formats.count),
    (Column("Uploaded"), lambda row: row.upload_bytes, formats.size),
)
COST_COLUMNS = tuple(column for column, _, _ in _COSTS)
# What a point of the privacy curve says, and its title in tables and legends.
PRIVACY_FIELDS = {
    "r_accuracy": "R-set accuracy",
    "u_accuracy": "U-set accuracy",
    "overlap": "Same channels cut",
    "fine_tuned_r_accuracy": "R-set, fine-tuned",
    "fine_tuned_u_accuracy": "U-set, fine-tuned",
}
# The titles of `results.COSTS`, and how each is written.
_SPENT = {
    "rounds": formats.number,
    "time": formats.seconds,
    "images": formats.count,
    "upload": formats.size,
}


def methods_table(topic: Topic) -> Table:
    """Every method and seed: what it reached, and all that it spent."""
    record, tested = topic.record, topic.tested
    order = list(dict.fromkeys(row.method for row in record.methods))
    retrained = results.mean(row.images for row in results.rows_of(record, "retrain"))
    rows = [
        (
            model_cell(row.name, tested),
            cell(roles.role(row.method, tested)),
            *cost_cells([row]),
            cell(_share(row, retrained), formats.times),
            cell(_remark(row)),
        )
        for row in sorted(record.methods, key=lambda row: order.index(row.method))
    ]
    remark = Column("Remark", numeric=False, words=True)
    share = Column("Images of a retraining's")
    columns = (*in_words("Method", "Role"), *COST_COLUMNS, share, remark)
    if not any(map(_remark, record.methods)):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(
        "methods",
        "Every method, and all that it spent",
        columns,
        rows,
        f"{_sets(record)} Time is the "
        "method's own work (capture, scoring, surgery, noise) and the federated "
        "rounds that it ran, evaluation included. Images: forward and backward passes "
        "by all clients in these rounds and in those of FedEraser and SISA, without "
        "other passes of a method over data, which its own work covers. Uploaded: by "
        "one client that takes part in everything.",
    )


def units_table(clocks: Mapping[str, PhaseClock]) -> Table:
    """Where the time of a run went: every unit that finished, and all of them."""
    entries: list[tuple[str, float, float | None]] = [
        (name, clock.unit, clock.programs)
        for name, clock in clocks.items()
        if clock.unit is not None
    ]
    if len(entries) > 1:
        parts = [programs for _, _, programs in entries]
        programs = None if None in parts else sum(results.known(parts))
        entries.append(("all of them", sum(unit for _, unit, _ in entries), programs))
    times = (Column("all of it", group="Time"), Column("programs", group="Time"))
    return Table(
        "units",
        "Where the time went",
        (*in_words("Unit"), *times),
        [
            (cell(name), *(cell(time, formats.seconds) for time in seconds))
            for name, *seconds in entries
        ],
        "Each unit in its last start, in seconds of the clock. Programs: tracing, "
        "compiling or loading what JAX runs, which a second run finds in the "
        "compilation cache. Loading the data and opening the devices come before.",
    )


def _share(row: MethodRow, retrained: float | None) -> float | None:
    """The clients' work as a share of retraining's."""
    return row.images / retrained if retrained and not row.error else None


def _sets(record: RunRecord) -> str:
    """What U-set and R-set are, which depends on the kind of request."""
    u_set, r_set = roles.u_images(record), roles.r_images(record, every=True)
    if record.request.kind != "classes":
        u_set += ", where retraining's accuracy is the one to have"
    return f"U-set: {u_set}; R-set: {r_set}."


def cost_cells(rows: Sequence[MethodRow]) -> list[Cell]:
    """What seeds of a method reached and spent, in the order of `COST_COLUMNS`."""
    return [
        mean_cell(map(value, rows), written, spread=written is formats.percent)
        for _, value, written in _COSTS
    ]


def mean_cell(
    values: Iterable[float | None],
    written: Callable[[float], str] = formats.number,
    *,
    spread: bool = True,
) -> Cell:
    """The mean of what is known, `86.4%`; for several with `spread`, `86.4 ± 0.3%`."""
    known = results.known(values)
    if not known:
        return cell(None)
    mean = sum(known) / len(known) if len(known) > 1 else known[0]
    if len(known) == 1 or not spread:
        return cell(mean, written)
    text, deviation = written(mean), statistics.stdev(known)
    unit = text[-1] if text[-1] in "%\N{MULTIPLICATION SIGN}" else ""
    width = written(deviation) if unit == "%" else formats.number(deviation, 2)
    both = f"{text.removesuffix(unit)} \N{PLUS-MINUS SIGN} {width.removesuffix(unit)}"
    return cell(mean, f"{both}{unit}")


def _remark(row: MethodRow) -> str:
    warning = roles.warning(row.method)
    return f"did not finish: {row.error}" if row.error else formats.capital(warning)


def speed_table(topic: Topic, target: str) -> Table:
    """When each method came to one of `results.TARGETS`, and how much sooner."""
    record, tested = topic.record, topic.tested
    rows, accuracy = [], None
    retrained = results.reached(results.rows_of(record, roles.RETRAIN), target)
    for method in dict.fromkeys(row.method for row in record.methods):
        found = results.reached(results.rows_of(record, method), target)
        if found is not None:
            accuracy = found.accuracy
            # Retraining is not compared with itself.
            base = None if method == roles.RETRAIN else retrained
            named = cell(method, roles.method_words, highlight=method == tested)
            ratios = [cell(r, formats.times) for r in results.speedups(found, base)]
            rows.append((named, *reached_cells(found), *ratios))
    return Table(
        f"speed_{target}",
        f"Speed to {roles.reworded(record, results.TARGETS[target])}: "
        f"{formats.percent(accuracy)} on the R-set of the "
        f"{record.chosen_on or 'test'} split",
        (
            *in_words("Method"),
            *cost_columns("Spent until then"),
            *cost_columns("Times less than retraining"),
        ),
        rows,
        "Mean over seeds, on one evaluation grid that starts at round 0. Time is own "
        "work and training together. Learning-rate schedules end with each method's "
        "budget, so a shorter budget alone brings the crossing forward: retrain short "
        "is the control for that.",
    )


def cost_columns(group: str) -> list[Column]:
    """The columns of `results.COSTS`, under one heading."""
    return [Column(title, group=group) for title in _SPENT]


def reached_cells(found: results.Reached | None) -> list[Cell]:
    """Rounds, time, images and bytes until a target; seeds that were late are said."""
    costs = zip(results.COSTS, _SPENT.values(), strict=True)
    made = [cell(getattr(found, cost, None), written) for cost, written in costs]
    if found is not None and found.rounds is None:
        made[0] = cell(None, "not reached")
    elif found is not None and found.late:
        late = f"{made[0].text} ({found.late} of {found.seeds} not reached)"
        made[0] = made[0]._replace(text=late)
    return made


def paper_table(topic: Topic) -> Table:
    """The table of the paper's form: raw, after-pruned, fine-tuned, re-trained."""
    record = topic.record
    cuts = [
        (row, stages)
        for row in record.methods
        if (stages := results.pruned_stages(record, row.name))
    ]
    retrained = next(iter(results.rows_of(record, roles.RETRAIN)), None)
    longest = max((len(stages) for _, stages in cuts), default=0)
    headings = [f"After cut {n + 1}" for n in range(longest)]
    headings = headings if longest > 1 else ["After-pruned"]
    rows = []
    for final, stages in cuts:
        padding = [None] * (longest - len(stages))
        models = [results.raw_stage(record), *stages, *padding, final, retrained]
        cells = accuracy_cells([[model] for model in models])
        rows.append((model_cell(final.name, topic.tested), *cells))
    return Table(
        "paper_form",
        "In the form of the paper's Tables 2 and 3",
        [
            *in_words("Method"),
            *accuracy_columns("Raw model", *headings, "Fine-tuned", "Re-trained"),
        ],
        rows,
        "Re-trained is the run's own retraining, first seed.",
    )


def accuracy_columns(*groups: str) -> list[Column]:
    """Columns of U-set and R-set accuracy, for each of several models."""
    return [
        Column(title, group=group) for group in groups for title in ("U-set", "R-set")
    ]


def accuracy_cells(
    models: Iterable[Sequence[StageRow | MethodRow | None]],
) -> list[Cell]:
    """The cells of `accuracy_columns`: means over the seeds of each model."""
    return [
        mean_cell([getattr(row, field, None) for row in seeds], exact_percent)
        for seeds in models
        for field in ("u_accuracy", "r_accuracy")
    ]


def exact_percent(value: float) -> str:
    """A percentage with the digits of the paper's tables."""
    return formats.percent(value, 2)


def class_table(record: RunRecord) -> Table:
    """The accuracy of each class in each stage."""
    stages = [stage for stage in record.stages if stage.per_class]
    by_class = zip(*(stage.per_class for stage in stages), strict=False)
    rows = [
        (
            cell(results.class_label(record, n), highlight=n in record.classes),
            *(cell(value, formats.percent) for value in values),
        )
        for n, values in enumerate(by_class)
    ]
    return Table(
        "classes",
        "Accuracy of each class, stage by stage",
        [*in_words("Class"), *(Column(roles.stage_title(stage)) for stage in stages)],
        rows,
        "Forgotten classes are tinted." if record.classes else "On the test images.",
    )


def layer_tables(topic: Topic) -> list[Table]:
    """Every layer's width, parameters and cost before and after each cut."""
    return [
        _layer_table("layers" if n == 1 else f"layers_{n}", title, cut)
        for n, (title, cut) in enumerate(roles.cuts_to_show(topic), 1)
    ]


def _layer_table(name: str, cut_title: str, cut: CutRow) -> Table:
    sizes = ("channels", "parameters", "flops")
    titles = ("Channels", "Parameters", "FLOPs per image")
    moments = ("before", "after")
    fields = [f"{size}_{when}" for size in sizes for when in moments]
    columns = [Column(when, group=title) for title in titles for when in moments]
    rows = [
        (
            cell(row.layer, highlight=row.layer == "total"),
            *(cell(getattr(row, field), formats.number) for field in fields),
            cell(row.spared),
        )
        for row in cut.layers
    ]
    return Table(
        name,
        f"Every layer before and after the cut ({cut_title})",
        (*in_words("Layer"), *columns, Column("Spared")),
        rows,
        "Spared channels were due to go but kept so that the layer is not emptied.",
    )


def privacy_curve_table(record: RunRecord) -> Table:
    """Accuracy against epsilon."""
    rows = [
        (
            cell(point.epsilon),
            *(cell(getattr(point, field), formats.percent) for field in PRIVACY_FIELDS),
        )
        for point in record.privacy_curve
    ]
    columns = (Column("Epsilon"), *map(Column, PRIVACY_FIELDS.values()))
    return Table("privacy_curve", "Accuracy against epsilon", columns, rows)


def key_value_table(name: str, title: str, values: Mapping[str, Any]) -> Table:
    """Lists nested values, one dotted key per row; None if there are none."""
    columns = (*in_words("Key"), Column("Value", numeric=False, words=True))
    rows = [(cell(key), _value_cell(value)) for key, value in _flat(values)]
    return Table(name, title, columns, rows)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value_cell(value: Any) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return cell(value, "{:g}".format if isinstance(value, float) else None)
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value)) or "(none)"
    return cell(formats.shorten("(none)" if value == {} else str(value), 300))


def tally_table(audit: AuditReport, tested: str | None) -> Table:
    """The headline's verdict on every audited model, and the count of all tests."""
    rows = [
        (
            model_cell(name, tested),
            cell(roles.described(name, tested)),
            cell("", verdict=judgement.headline(audit, name).verdict),
            *(cell(amount) for amount in judgement.counts(audit, name)),
        )
        for name in _judged_models(audit, tested)
    ]
    role = Column("Role", numeric=False, words=True)
    return Table(
        "tally",
        "Verdicts on every model",
        (*in_words("Model"), role, *in_words("Headline"), *count_columns("All tests")),
        rows if audit.tests else [],
        "The raw model was trained on what is to be forgotten and should fail: where "
        "it does not, the test has no power here and cannot tell.",
    )


def count_columns(group: str) -> list[Column]:
    """The columns of `judgement.counts`, under one heading."""
    return [Column(title, group=group) for title in judgement.COUNTED.values()]


def _judged_models(audit: AuditReport, tested: str | None) -> list[str]:
    # The untrained net is a yardstick of the probe, and stands in that table.
    models = roles.audited_models(audit, tested)
    return [name for name in models if name != roles.RANDOM]


def model_cell(name: str, tested: str | None) -> Cell:
    """A model's name, tinted if it is the method under test."""
    return cell(name, formats.in_words, highlight=roles.family(name) == tested)


def verdict_table(audit: AuditReport, tested: str | None) -> Table:
    """The verdict on every model in every test, those that could see first."""
    names = _judged_models(audit, tested)
    # A phone shows two columns: the test and the method it is about.
    first, others = names[:1], names[1:]
    rows = [
        (
            cell(test.name, test_title(test)),
            *(_judged(test, name) for name in first),
            cell(interval_text(test)),
            cell(judgement.difference_text(test)),
            *(_judged(test, name) for name in others),
        )
        for test in judgement.ordered(audit)
    ]
    return Table(
        "verdicts",
        "What was tested, and what could be seen",
        (
            *in_words("Test"),
            *(Column(formats.in_words(name)) for name in first),
            Column("Where retrained models lie"),
            Column("Smallest visible difference"),
            *(Column(formats.in_words(name)) for name in others),
        ),
        rows if names else [],
        "Tests that tell the raw model from retraining come first. A model fails when "
        "it lies where a retrained model hardly would; otherwise it is not told apart.",
    )


def _judged(test: Evidence, name: str) -> Cell:
    if name not in test.values:
        return cell(None)
    value = test.values[name]
    return cell(value, value_text(test, value), verdict=test.verdicts[name])
