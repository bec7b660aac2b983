"""The tables of a run, and one table in four forms: terminal, page, Markdown, CSV.

A cell has the text a person reads and, where it is a number, the full value that goes
into the CSV. A measured column of the methods is one row of `COLUMNS`.
"""

import csv
import io
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table
import rich.text

from fuprune import results
from fuprune.audit import record as audits
from fuprune.audit.record import Audit, Judged, Row
from fuprune.report import formats, subject
from fuprune.report.formats import percent
from fuprune.report.subject import RETRAIN, Subject
from fuprune.results import MethodRow, PhaseClock, RunRecord


class Cell(NamedTuple):
    """One value of a table."""

    text: str
    value: float | str | None  # for the CSV; None is unknown, empty there
    tone: str = ""  # of a coloured word: "good", "bad" or "unsure"


class Column(NamedTuple):
    """Heading of a column; neighbours with the same `group` share a heading above."""

    title: str
    numeric: bool = True
    group: str = ""

    @property
    def full_title(self) -> str:
        """The title where no heading stands above."""
        return f"{self.group} {self.title}".strip()


class Table(NamedTuple):
    """A titled table with a file name of its own."""

    name: str  # file name without its ending
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]  # without any, the table is left out of a report
    note: str = ""
    highlight: str = ""  # the first cell's text in rows that are tinted

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Headings above the columns, each with how many it spans; [] without any."""
        if not any(column.group for column in self.columns):
            return []
        grouped = itertools.groupby(self.columns, key=lambda column: column.group)
        return [(group, len(list(members))) for group, members in grouped]


def words(*titles: str) -> list[Column]:
    """Columns of text."""
    return [Column(title, numeric=False) for title in titles]


def cell(value: Any, text: str | Callable[..., str] = str, tone: str = "") -> Cell:
    """A cell of a raw value and the text that a person reads, or its writer."""
    if value is None:
        return Cell(text if isinstance(text, str) else formats.MISSING, None, tone)
    exact = value if isinstance(value, int | float) else str(value)
    return Cell(text(value) if callable(text) else text, exact, tone)


def to_text(table: Table) -> str:
    """A table for a terminal, in plain lines that are never broken."""
    drawn = rich.table.Table(title=table.title or None, title_justify="left")
    drawn.box, drawn.show_edge, drawn.pad_edge = rich.box.ASCII, False, False
    for column in table.columns:
        justify = "right" if column.numeric else "left"
        # As `Text`, because rich would take [..] in a name for markup.
        drawn.add_column(rich.text.Text(column.full_title), justify=justify)
    for row in table.rows:
        drawn.add_row(*(rich.text.Text(entry.text) for entry in row))
    stream = io.StringIO()
    rich.console.Console(file=stream, width=1000).print(drawn)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def to_markdown(table: Table, *, title: bool = True) -> str:
    """A table as GitHub-flavoured Markdown with its title and note."""
    lines = [f"## {markdown_text(table.title)}", ""] if title else []
    titles = (markdown_text(column.full_title) for column in table.columns)
    lines += [
        f"| {' | '.join(titles)} |",
        "|" + "|".join("---:" if c.numeric else "---" for c in table.columns) + "|",
    ]
    for row in table.rows:
        lines.append(f"| {' | '.join(markdown_text(entry.text) for entry in row)} |")
    if table.note:
        lines += ["", markdown_text(table.note)]
    return "\n".join(lines) + "\n"


def markdown_text(value: str) -> str:
    """Escapes text for a line of Markdown."""
    value = " ".join(value.split())
    for character in "\\`*_[]|":
        value = value.replace(character, "\\" + character)
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_csv(table: Table) -> str:
    """A table as CSV with unrounded numbers."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.full_title for column in table.columns])
    writer.writerows([entry.value for entry in row] for row in table.rows)
    return stream.getvalue()


# The methods of a run.


class Measured(NamedTuple):
    """A column of the methods: how one seed's value is read, and how it is written."""

    column: Column
    value: Callable[[RunRecord, MethodRow], float | None]
    written: Callable[[float], str]


def _size(field: str) -> Callable[[RunRecord, MethodRow], float | None]:
    def kept(record: RunRecord, row: MethodRow) -> float | None:
        """The share of a network's parameters or FLOPs that is left after all cuts."""
        totals = [
            layer
            for cut in record.cuts.get(row.name, ())
            for layer in cut.layers
            if layer.layer == "total"
        ]
        before = getattr(totals[0], f"{field}_before") if totals else 0
        return getattr(totals[-1], f"{field}_after") / before if before else None

    return kept


COLUMNS = (
    Measured(Column("U-set", group="Accuracy"), lambda _, r: r.u_accuracy, percent),
    Measured(Column("R-set", group="Accuracy"), lambda _, r: r.r_accuracy, percent),
    Measured(Column("Rounds"), lambda _, r: r.rounds, formats.number),
    Measured(Column("Images"), lambda _, r: r.images, formats.count),
    Measured(Column("Time"), lambda _, r: r.times.total, formats.seconds),
    Measured(Column("Own work"), lambda _, r: r.times.own, formats.seconds),
    Measured(Column("Uploaded"), lambda _, r: r.upload_bytes, formats.size),
    Measured(Column("Parameters"), _size("parameters"), percent),
    Measured(Column("FLOPs"), _size("flops"), percent),
)


def measured_cells(record: RunRecord, rows: Sequence[MethodRow]) -> list[Cell]:
    """The cells of `COLUMNS`: means over seeds, of accuracies with their deviation."""
    return [
        mean_cell(
            [one.value(record, row) for row in rows],
            one.written,
            spread=one.column.group == "Accuracy",
        )
        for one in COLUMNS
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
    text, deviation = written(mean), written(statistics.stdev(known))
    unit = text[-1] if text[-1] in "%\N{MULTIPLICATION SIGN}" else ""
    both = f"{text.removesuffix(unit)} \N{PLUS-MINUS SIGN} {deviation}"
    return cell(mean, both if unit else f"{text} \N{PLUS-MINUS SIGN} {deviation}")


TONES = {
    audits.DIFFERENT: "bad",
    audits.EQUIVALENT: "good",
    audits.NO_DIFFERENCE: "unsure",
    audits.NO_POWER: "unsure",
}


def verdict_cell(verdict: str) -> Cell:
    """A verdict of the audit as a coloured word."""
    return Cell(verdict or formats.MISSING, verdict or None, TONES.get(verdict, ""))


def gone_cell(forgot: bool | None) -> Cell:
    """Whether the answers forgot."""
    if forgot is None:
        return cell(None)
    return cell("yes" if forgot else "no", tone="good" if forgot else "bad")


def speed_cells(about: Subject, method: str) -> list[Cell]:
    """Speed-up to retraining's accuracy in images, time, rounds, of what forgot."""
    unknown = [cell(None)] * 2
    if method == RETRAIN:
        return [cell(None), *unknown]
    if about.has_forgotten(method) is False:
        return [cell(None, "did not forget"), *unknown]
    found, base = (
        results.reached(about.rows(m), "retrained") for m in (method, RETRAIN)
    )
    if found is not None and base is not None and found.late:
        return [cell(None, "not reached"), *unknown]
    rounds, time, images, _ = results.speedups(found, base)
    return [cell(ratio, formats.speedup) for ratio in (images, time, rounds)]


_SPEED = [
    Column(n, group="Speed-up over retraining") for n in ("images", "time", "rounds")
]


def methods_table(about: Subject) -> Table:
    """Every method: what it reached, spent and kept, and the audit's verdict."""
    rows = [
        [
            cell(method, method_words),
            cell(subject.role(method, about.tested)),
            gone_cell(about.has_forgotten(method)),
            *measured_cells(about.record, about.rows(method)),
            *speed_cells(about, method),
            verdict_cell(about.audit.verdict(method) if about.audit else ""),
        ]
        for method in about.methods
    ]
    request = about.record.request
    sets = (
        f"U-set: test images of {subject.forgotten(about.record)}; R-set: those of the "
        "other classes."
        if about.of_classes
        else f"U-set: {request.u_set}; R-set: {request.r_set}."
    )
    own = [one.column for one in COLUMNS]
    return without_empty_columns(
        Table(
            "methods",
            "Every method, and what it spent",
            [*words("Method", "Role", "Forgot"), *own, *_SPEED, *words("Audit")],
            rows,
            f"{sets} Mean \N{PLUS-MINUS SIGN} standard deviation over seeds. Images: "
            "forward and backward passes by all clients. Time: with the method's own "
            "work. Uploaded: by one client. Parameters, FLOPs: what a cut leaves. "
            "Speed-up: until retraining's own accuracy, for methods that forgot.",
            highlight=method_words(about.tested or ""),
        )
    )


def method_words(method: str) -> str:
    """A method's name in words, with what must stand beside its numbers."""
    named, warned = formats.in_words(method), subject.warning(method)
    return f"{named} ({warned})" if warned else named


def without_empty_columns(table: Table) -> Table:
    """Leaves out the columns in which no row says anything."""
    empty = (None, formats.MISSING)
    used = [
        any((entry.value, entry.text) != empty for entry in entries)
        for entries in zip(*table.rows, strict=True)
    ]
    return _columns(table, used)


def only(table: Table, titles: Sequence[str]) -> Table:
    """The columns of these titles, as far as the table has them."""
    return _columns(table, [one.full_title in titles for one in table.columns])


def _columns(table: Table, kept: Sequence[bool]) -> Table:
    rows = [[*itertools.compress(row, kept)] for row in table.rows]
    columns = [*itertools.compress(table.columns, kept)]
    return table._replace(columns=columns, rows=rows)


def seeds_table(about: Subject) -> Table:
    """Every method and seed, and why one that stopped did."""
    rows = [
        [
            cell(row.name, formats.in_words),
            *measured_cells(about.record, [row]),
            cell(row.error or ""),
        ]
        for row in about.record.methods
    ]
    columns = [*words("Unit"), *(one.column for one in COLUMNS), *words("Stopped")]
    return without_empty_columns(Table("seeds", "Every method and seed", columns, rows))


# The audit.


def audit_table(about: Subject, *, headline: bool) -> Table:
    """The headline: differences from retraining. Otherwise the rows that describe."""
    audit, rows = about.audit, []
    models = judged_models(audit, about.tested) if audit else []
    own, others = models[:1], models[1:]
    for row in audit.rows if audit else ():
        if row.headline == headline:
            judged = [cell for model in own for cell in difference_cells(row, model)]
            rows.append(
                [
                    cell(row.name, measure_words),
                    retrained_cell(row),
                    *(judged if headline else judged[:1]),
                    *(value_cell(row, model, headline) for model in others),
                ]
            )
    difference = [Column("Difference"), *words("Verdict")] if own and headline else []
    columns = [Column(formats.in_words(model)) for model in models]
    note = (
        f"Difference: mean minus retraining's mean, with its {confidence(audit)} "
        "interval. Equivalent: the whole interval lies within the margin."
    )
    return Table(
        "audit" if headline else "audit_further",
        "Differences from retraining" if headline else "Measures that describe",
        [
            *words("Measure"),
            Column("Retrained"),
            *columns[:1],
            *difference,
            *columns[1:],
        ],
        rows,
        note if headline else "",
    )


def confidence(audit: Audit | None) -> str:
    """The audit's confidence, `95%`."""
    return percent(audit.confidence, 0) if audit else ""


def judged_models(audit: Audit, tested: str | None) -> list[str]:
    """The models of an audit: under test, other candidates, controls, the raw model."""
    names = dict.fromkeys(
        [*audit.candidates, *(n for r in audit.rows for n in r.models)]
    )
    order = ["under test", "baseline", "gold standard", "control", "before forgetting"]
    kept = [name for name in names if name != "random_init"]
    return sorted(kept, key=lambda name: order.index(subject.role(name, tested)))


def difference_cells(row: Row, model: str) -> list[Cell]:
    """A model's value, its difference with the interval, and the verdict."""
    judged = row.models.get(model, Judged([]))
    return [
        cell(judged.mean, value_writer(row)),
        cell(judged.difference, lambda _: difference_text(row, judged)),
        verdict_cell(row.verdict(model)),
    ]


def difference_text(row: Row, judged: Judged) -> str:
    """Writes `+1.2 [−0.4, +2.8]`; of fractions in points."""
    scale, written = (100, "{:+.1f}") if row.unit == "fraction" else (1, "{:+.3g}")
    values = results.known((judged.difference, judged.low, judged.high))
    parts = [written.format(scale * value) for value in values]
    text = f"{parts[0]} [{', '.join(parts[1:])}]" if len(parts) == 3 else parts[0]
    return text.replace("-", "\N{MINUS SIGN}")


def value_writer(row: Row) -> Callable[[float], str]:
    """How the values of a row are written."""
    return percent if row.unit == "fraction" else formats.number


def value_cell(row: Row, model: str, judged: bool) -> Cell:
    """A model's value, coloured by its verdict."""
    found = row.models.get(model)
    tone = TONES.get(row.verdict(model), "") if judged else ""
    return cell(found.mean if found else None, value_writer(row), tone)


def retrained_cell(row: Row) -> Cell:
    """The range of the retrained models."""
    known = results.known(row.retrained)
    if not known:
        return cell(None)
    low, high = (value_writer(row)(end) for end in (min(known), max(known)))
    return cell(sum(known) / len(known), low if low == high else f"{low} to {high}")


def measure_words(name: str) -> str:
    """Names a measure in words: `U-set accuracy`."""
    return formats.capital(" ".join(_SPELLING.get(p, p) for p in name.split("_")))


_SPELLING = {"u": "U-set", "r": "R-set", "auc": "AUC", "tpr": "TPR", "kl": "KL"}
_SPELLING |= {"cka": "CKA", "jensen": "Jensen", "shannon": "Shannon"}


# What is folded away, and in files.


def stages_table(record: RunRecord) -> Table:
    """Every model on the way, and its accuracy on each class."""
    number = max((len(stage.per_class) for stage in record.stages), default=0)
    rows = [
        [
            cell(stage.method, formats.in_words),
            cell(stage.stage, formats.in_words),
            cell(stage.u_accuracy, percent),
            cell(stage.r_accuracy, percent),
            *(cell(value, percent) for value in stage.per_class or [None] * number),
        ]
        for stage in record.stages
    ]
    classes = [results.class_label(record, n) for n in range(number)]
    columns = [*words("Unit", "Stage"), *map(Column, ("U-set", "R-set", *classes))]
    return Table("stages", "Accuracy of every model on every class", columns, rows)


def units_table(clocks: Mapping[str, PhaseClock]) -> Table:
    """Where the time of a run went: every unit that finished."""
    rows = [
        [cell(name), cell(clock.unit, formats.seconds)]
        for name, clock in clocks.items()
        if clock.unit is not None
    ]
    columns = [*words("Unit"), Column("Time")]
    note = "Each unit in its last start."
    return Table("units", "Where the time went", columns, rows, note)


def key_value_table(name: str, title: str, values: Mapping[str, Any]) -> Table:
    """Nested values, one dotted key per row."""
    rows = [[cell(key), _value_cell(value)] for key, value in flat(values)]
    return Table(name, title, words("Key", "Value"), rows)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value_cell(value: Any) -> Cell:
    if isinstance(value, float):
        return cell(value, "{:g}".format)
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return cell("(none)" if value in ("", {}) else str(value)[:300])
