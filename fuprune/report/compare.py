"""Several runs beside each other and beside the paper's numbers (`paper.csv`).

Runs of one experiment, in parts or with other seeds, are put together. A row of the
paper is shown where some run repeats it.
"""

import csv
import dataclasses
import functools
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fuprune import results
from fuprune.audit import reading
from fuprune.errors import InputError
from fuprune.report import figures, formats, page, subject, tables
from fuprune.report.formats import percent
from fuprune.report.subject import RETRAIN, Subject
from fuprune.report.tables import Column, Table, cell, mean_cell, words
from fuprune.results import MethodRow, Run, RunRecord, StageRow, setting


class Group(NamedTuple):
    """Runs of one experiment, as one."""

    title: str  # differs between the groups of a report
    runs: tuple[Run, ...]
    about: Subject  # the first run that has results, with the methods of all


def join(workdirs: Sequence[str | Path], folder: str | Path) -> Path:
    """Writes one report over several runs to a folder; the path of `report.html`."""
    if not workdirs:
        raise InputError("no run was given; name at least one run's directory.")
    places = [Path(workdir).resolve() for workdir in workdirs]
    for place in places:
        if places.count(place) > 1:
            raise InputError(f"{str(place)!r} is given twice; give each run once.")
    runs = [results.read_run(workdir, reading.read) for workdir in workdirs]
    groups = group_runs(runs)
    drawn = [
        dataclasses.replace(one, name=f"price_{number}", title=group.title)
        for number, group in enumerate(groups, 1)
        if (one := figures.price_figure(group.about)) is not None
    ]
    compared, listed = comparison_table(groups), runs_table(groups)
    of_paper, title = paper_tables(groups), "Runs side by side"
    html = page.render(
        "compare.html",
        title=title,
        facts=[("runs", len(runs)), ("experiments", len(groups))],
        comparison=compared,
        figures=[page.framed(one) for one in drawn],
        paper=of_paper,
        runs=listed,
        rebuild="python -m fuprune.report " + " ".join(run.name for run in runs),
    )
    made = [one for one in (compared, *of_paper, listed) if one.rows]
    return page.write_report(Path(folder), html, [f"# {title}"], made, drawn)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Puts runs together that are one experiment, with other seeds or other methods.

    The groups come in the order of their first run; a run without a config is alone.
    """
    found: dict[str, list[Run]] = {}
    for position, run in enumerate(runs):
        key = results.experiment_of(run.record) or str(position)
        found.setdefault(key, []).append(run)
    described = [
        next((run for run in one if run.record.class_names), one[0])
        for one in found.values()
    ]
    groups = []
    for title, first, members in zip(
        _titles(described), described, found.values(), strict=True
    ):
        audited = next((run.audit for run in members if run.audit), None)
        others = [run for run in members if run is not first]
        whole = subject.merged(first._replace(audit=audited), others)
        groups.append(Group(title, tuple(members), subject.subject_of(whole)))
    return groups


def _titles(runs: Sequence[Run]) -> list[str]:
    """A title per group; equal ones get the run's name behind."""
    titles = [subject.title(run.record).removeprefix("Forgetting ") for run in runs]
    return [
        f"{title}, {run.name}" if titles.count(title) > 1 else title
        for title, run in zip(titles, runs, strict=True)
    ]


def raw_stages(group: Group) -> list[StageRow]:
    """The models before forgetting, each once: those that are loaded are one."""
    found: dict[str, StageRow] = {}
    for run in group.runs:
        if (stage := results.raw_stage(run.record)) is not None:
            loaded = setting(run.record, "model.load")
            key = "loaded" if loaded else str(setting(run.record, "seed") or 0)
            found.setdefault(key, stage)
    return list(found.values())


def verdict(group: Group, method: str) -> str:
    """The audits' verdict on a method; all of them, if they differ."""
    audits = [run.audit for run in group.runs if run.audit is not None]
    found = dict.fromkeys(audit.verdict(method) for audit in audits)
    return "; ".join(word for word in found if word)


def comparison_table(groups: Sequence[Group]) -> Table:
    """Every method of every experiment: reached, spent, speed-up, verdict."""
    rows = [
        [
            cell(group.title),
            cell(method, tables.method_words),
            cell(len(found)),
            tables.gone_cell(group.about.has_forgotten(method)),
            *tables.measured_cells(group.about.record, found),
            tables.speed_cells(group.about, method)[0],
            tables.verdict_cell(verdict(group, method)),
        ]
        for group in groups
        for method in dict.fromkeys(row.method for row in group.about.record.methods)
        if (found := group.about.rows(method))
    ]
    columns = [
        *words("Experiment", "Method"),
        Column("Seeds"),
        *words("Forgot"),
        *(one.column for one in tables.COLUMNS),
        Column("Speed-up over retraining, images"),
        *words("Audit"),
    ]
    return tables.without_empty_columns(
        Table(
            "comparison",
            "Every method of every experiment",
            columns,
            rows,
            "Mean \N{PLUS-MINUS SIGN} standard deviation over seeds, also those of "
            "several runs. Speed-up: to retraining's own accuracy, of what forgot.",
        )
    )


def runs_table(groups: Sequence[Group]) -> Table:
    """Lists every run that went in."""
    rows = [
        [
            cell(run.name),
            cell(group.title),
            cell(str(setting(run.record, "seed") or 0)),
            cell(_scale(run.record)),
            cell(run.record.provenance.commit[:12]),
            cell(" ".join(run.notes)),
        ]
        for group in groups
        for run in group.runs
    ]
    names = ("Run", "Experiment", "Seed", "Scale", "Commit", "Notes")
    return Table("runs", "Every run that went in", words(*names), rows)


def _scale(record: RunRecord) -> str:
    parts = {
        "partition.clients": "{} clients",
        "train.cohort": "{} per round",
        "train.algorithm": "{}",
        "train.local_epochs": "local epochs: {}",
        "partition.bias": "q {}",
        "train.rounds": "{} rounds",
        "prune.rate": "rate {}",
        "prune.scope": "scope {}",
        "data.limit": "{} images per class",
    }
    found = {words: subject.setting_in_use(record, key) for key, words in parts.items()}
    return ", ".join(words.format(value) for words, value in found.items() if value)


# The paper.

# In the first column of paper.csv -> title and note.
TABLES = {
    "1": (
        "Table 1: bias probability q (FedAvg, last class)",
        "Ours: rounds until retraining's own accuracy.",
    ),
    "2": (
        "Table 2: information erased (FedSGD, last class)",
        "The paper's 11.11% and the like after the cut are a constant answer's.",
    ),
    "3 and appendix": (
        "Table 3 and appendix: several classes",
        "Ours: speed-up in rounds, until retraining's own accuracy.",
    ),
    "5": ("Table 5: class-wise accuracy, distance from retraining", ""),
    "figure 3": (
        "Figure 3: speed-up over retraining",
        "The paper gives ranges over its models.",
    ),
}
_TWO_DIGITS = functools.partial(percent, digits=2)
# A column of paper.csv -> its heading and how it is written.
_PRINTED = {
    "rounds": ("rounds", formats.number),
    **{
        f"{model}_{letter}": (f"{heading} {letter.upper()}", _TWO_DIGITS)
        for model, heading in (
            *(("raw", "raw"), ("cut", "first cut"), ("last_cut", "cut")),
            *(("tuned", "fine-tuned"), ("retrained", "retrained")),
        )
        for letter in "ur"
    },
    "speedup": ("speed-up", formats.times),
    "speedup_to": ("to", formats.times),
    "class_difference": ("greatest difference", _TWO_DIGITS),
    "class_kl": ("KL divergence", formats.number),
}
_MEASURES = {"class_difference": "class_accuracy_difference"}
_MEASURES |= {"class_kl": "class_accuracy_kl"}


@functools.cache
def paper_rows() -> list[dict[str, str]]:
    """The numbers that the paper printed, as paper.csv has them."""
    text = importlib.resources.files("fuprune.report").joinpath("paper.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def paper_tables(groups: Sequence[Group]) -> list[Table]:
    """The tables of the paper that runs repeat rows of, ours under the paper's."""
    made = []
    for number, (title, note) in TABLES.items():
        printed = [row for row in paper_rows() if row["table"] == number]
        names = [name for name in _PRINTED if any(row[name] for row in printed)]
        rows = []
        for row in printed:
            found = [
                (group.title, _numbers(group, row["method"]))
                for group in groups
                if _repeats(group, row) and group.about.rows(row["method"])
            ]
            found = [one for one in found if any(one[1].get(name) for name in names)]
            if found:
                paper = {name: [float(row[name])] for name in names if row[name]}
                rows += [
                    [cell(named), cell(row["method"], formats.in_words)]
                    + [mean_cell(of.get(n, []), _PRINTED[n][1]) for n in names]
                    for named, of in ((_named(row), paper), *found)
                ]
        columns = [Column(_PRINTED[name][0]) for name in names]
        columns = [*words("Experiment", "Method"), *columns]
        name = f"paper_{number.replace(' ', '_')}"
        made.append(Table(name, title, columns, rows, note))
    return [tables.without_empty_columns(one) for one in made if one.rows]


def _named(printed: dict[str, str]) -> str:
    named = f"paper: {printed['model']} on {printed['dataset']}"
    named += f", class {printed['classes'].replace(' ', '+')}"
    return named + (f", q {printed['q']}" if printed["q"] else "")


def _repeats(group: Group, printed: dict[str, str]) -> bool:
    """Whether an experiment repeats a row of the paper."""
    record = group.about.record
    model = results.model_name(record)
    if printed["table"] == "figure 3":  # of all depths of a network
        model = model.rstrip("0123456789")
    bias = subject.setting_in_use(record, "partition.bias")
    even = 1 / max(len(record.class_names), 1)
    wanted = float(printed["q"]) if printed["q"] else even
    algorithm = setting(record, "train.algorithm")
    return (
        (model, record.dataset) == (printed["model"], printed["dataset"])
        and record.request.kind == "classes"
        and sorted(record.classes) == sorted(map(int, printed["classes"].split()))
        and printed["algorithm"] in ("", algorithm)
        and abs((bias if isinstance(bias, int | float) else even) - wanted) < 5e-3
    )


def _numbers(group: Group, method: str) -> dict[str, list[float]]:
    """Ours for the columns of paper.csv, a value per seed."""
    found, retrained = (group.about.rows(name) for name in (method, RETRAIN))
    pruned = (results.pruned_stages(group.about.record, row.name) for row in found)
    cuts = [stages for stages in pruned if stages]
    models: dict[str, Sequence[StageRow | MethodRow]] = {
        "raw": raw_stages(group),
        "cut": [stages[0] for stages in cuts],
        "last_cut": [stages[-1] for stages in cuts],
        "tuned": found,
        "retrained": retrained,
    }
    numbers = {
        f"{name}_{letter}": [getattr(row, f"{letter}_accuracy") for row in rows]
        for name, rows in models.items()
        for letter in "ur"
    }
    reached, base = (results.reached(rows, "retrained") for rows in (found, retrained))
    numbers["rounds"] = [reached.rounds if reached and not reached.late else None]
    numbers["speedup"] = results.speedups(reached, base)[:1]
    audits = [run.audit for run in group.runs if run.audit is not None]
    for column, measure in _MEASURES.items():
        rows = [row for audit in audits if (row := audit.row(measure)) is not None]
        judged = [row.models[method] for row in rows if method in row.models]
        numbers[column] = [value for one in judged for value in one.values]
    return {name: results.known(values) for name, values in numbers.items()}
