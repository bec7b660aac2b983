"""Several runs beside each other and beside the paper's numbers (`paper.csv`).

Runs of one experiment, in parts or with other seeds, are put together. A row of the
paper is shown where some run repeats it.
"""

import csv
import dataclasses
import functools
import importlib.resources
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fuprune import results
from fuprune.audit import reading
from fuprune.errors import InputError
from fuprune.report import figures, formats, page, roles, tables
from fuprune.report.figures import Drawing
from fuprune.report.formats import percent
from fuprune.report.roles import RETRAIN, Subject
from fuprune.report.tables import Cell, Column, Table, cell, mean_cell, words
from fuprune.results import MethodRow, Run, RunRecord, StageRow, setting


class Group(NamedTuple):
    """Runs of one experiment, as one."""

    title: str  # differs between the groups of a report
    runs: tuple[Run, ...]
    subject: Subject  # of the first run that has results, with the methods of all

    @property
    def record(self) -> RunRecord:
        """The record that describes the group."""
        return self.subject.record


def join(workdirs: Sequence[str | Path], folder: str | Path) -> Path:
    """Writes one report over several runs.

    Args:
      workdirs: directories of runs. Seeds and parts of one experiment are put together.
      folder: where `report.html`, `report.md`, tables and figures go.

    Returns:
      The path of `report.html`.

    Raises:
      InputError: a directory is not a run, is given twice, or none is given.
    """
    if not workdirs:
        raise InputError("no run was given; name at least one run's directory.")
    places = [Path(workdir).resolve() for workdir in workdirs]
    for place in places:
        if places.count(place) > 1:
            raise InputError(f"{str(place)!r} is given twice; give each run once.")
    runs = [results.read_run(workdir, reading.read) for workdir in workdirs]
    groups = group_runs(runs)
    drawn = [one for n, group in enumerate(groups, 1) if (one := _recovery(n, group))]
    compared, of_paper, listed = (
        comparison_table(groups),
        paper_tables(groups),
        runs_table(groups),
    )
    title = "Runs side by side"
    html = page.render(
        "compare.html",
        title=title,
        facts=[("runs", len(runs)), ("experiments", len(groups))],
        comparison=compared,
        figures=[page._framed(one) for one in drawn],
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
    titles = _titles(described)
    groups = []
    for title, first, members in zip(titles, described, found.values(), strict=True):
        rows = [row for _, row in _models(members)]
        tested = roles.tested_among(row.method for row in rows)
        subject = roles.subject_of(first)
        audited = next((run.audit for run in members if run.audit), None)
        subject = subject._replace(tested=tested or subject.tested, audit=audited)
        groups.append(Group(title, tuple(members), subject))
    return groups


def _titles(runs: Sequence[Run]) -> list[str]:
    """A title per group; equal ones get the settings that tell them apart."""
    titles = [roles.title(run.record).removeprefix("Forgetting ") for run in runs]
    flat = [dict(tables.flat(run.record.provenance.config)) for run in runs]
    for title in {one for one in titles if titles.count(one) > 1}:
        places = [n for n, one in enumerate(titles) if one == title]
        for key in _telling_keys([flat[n] for n in places]):
            if len({titles[n] for n in places}) < len(places):
                for n in places:
                    titles[n] += f", {key}={flat[n].get(key)}"
    return [
        f"{title}, {run.name}" if titles.count(title) > 1 else title
        for title, run in zip(titles, runs, strict=True)
    ]


def _telling_keys(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The two settings of training and cutting that differ most."""
    sections = ("prune", "fine_tune", "train", "partition", "model", "privacy")
    values = {
        key: len({str(config.get(key)) for config in configs})
        for key in dict.fromkeys(key for config in configs for key in config)
        if key.split(".")[0] in sections
    }
    differing = [key for key in values if values[key] > 1]
    return sorted(differing, key=lambda key: -values[key])[:2]


def _models(runs: Sequence[Run]) -> list[tuple[Run, MethodRow]]:
    """Every finished model, with its run.

    Parts of an experiment that share the seed made the same model by the same name: it
    counts once.
    """
    found: dict[tuple, tuple[Run, MethodRow]] = {}
    for run in runs:
        seed = str(setting(run.record, "seed") or 0)
        for row in run.record.methods:
            if row.error is None:
                found.setdefault((seed, row.name), (run, row))
    return list(found.values())


def method_rows(group: Group, method: str) -> list[MethodRow]:
    """Every result of a method: over runs, and over seeds inside a run."""
    return [row for _, row in _models(group.runs) if row.method == method]


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
    rows = []
    for group in groups:
        retrained = method_rows(group, RETRAIN)
        base = results.reached(retrained, "retrained")
        for method in dict.fromkeys(row.method for _, row in _models(group.runs)):
            found = method_rows(group, method)
            forgot = _has_forgotten(group, method)
            ratio = results.speedups(results.reached(found, "retrained"), base)[2]
            judged = verdict(group, method)
            rows.append(
                [
                    cell(group.title),
                    cell(method, tables.method_words),
                    cell(len(found)),
                    tables.gone_cell(forgot),
                    *tables.measured_cells(group.record, found),
                    cell(
                        ratio if forgot and method != RETRAIN else None, formats.speedup
                    ),
                    tables.verdict_cell(judged),
                ]
            )
    return tables.without_empty_columns(
        Table(
            "comparison",
            "Every method of every experiment",
            [
                *words("Experiment", "Method"),
                Column("Seeds"),
                *words("Forgot"),
                *(one.column for one in tables.COLUMNS),
                Column("Speed-up over retraining, images"),
                *words("Audit"),
            ],
            rows,
            "Mean \N{PLUS-MINUS SIGN} standard deviation over seeds, also those of "
            "several runs. Speed-up: to retraining's own accuracy, of what forgot.",
        )
    )


def _has_forgotten(group: Group, method: str) -> bool | None:
    """As `Subject.has_forgotten`, with the rows of all runs."""
    rows = [row for _, row in _models(group.runs)]
    whole = dataclasses.replace(group.record, methods=rows)
    return group.subject._replace(record=whole).has_forgotten(method)


def _recovery(number: int, group: Group) -> Drawing | None:
    """Accuracy by round of one group: the paper's Figure 3."""
    curves: dict[str, dict[tuple, list[tuple[float, float]]]] = {}
    for run in group.runs:
        seed = str(setting(run.record, "seed") or 0)
        for unit, points in figures.accuracy_by_images(run.curves).items():
            line = [(float(number), accuracy) for _, accuracy, number in points]
            models = curves.setdefault(roles.family(unit), {})
            # Of what two parts both trained, one may have been stopped on the way.
            models[seed, unit] = max(models.get((seed, unit), []), line, key=len)
    return figures.recovery_figure(
        f"recovery_{number}",
        group.title,
        "Accuracy on what remains by round; shaded is a standard deviation over seeds.",
        {method: [*found.values()] for method, found in curves.items()},
        group.subject.tested,
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
    found = {words: roles.setting_in_use(record, key) for key, words in parts.items()}
    return ", ".join(words.format(value) for words, value in found.items() if value)


# The paper.


class PaperTable(NamedTuple):
    """One table of the paper."""

    number: str  # in the first column of paper.csv
    title: str
    columns: dict[str, str]  # of paper.csv -> heading
    fits: Callable[[Group], bool]  # whether an experiment is of its kind
    note: str = ""


_ACCURACIES = {
    f"{model}_{letter}": f"{heading} {letter.upper()}"
    for model, heading in (
        *(("raw", "raw"), ("cut", "first cut"), ("last_cut", "cut")),
        *(("tuned", "fine-tuned"), ("retrained", "retrained")),
    )
    for letter in "ur"
}
_ONE_CUT = {k: v for k, v in _ACCURACIES.items() if not k.startswith("cut")}


def _trains(group: Group, algorithm: str) -> bool:
    return setting(group.record, "train.algorithm") == algorithm


def _forgets_last(group: Group) -> bool:
    number = len(group.record.class_names)
    return group.record.classes == [number - 1]


TABLES = (
    PaperTable(
        "1",
        "Table 1: bias probability q (FedAvg, last class)",
        {"rounds": "rounds", "tuned_u": "U-set", "tuned_r": "R-set"},
        lambda group: _trains(group, "fed_avg") and _forgets_last(group),
        "Ours: rounds until retraining's own accuracy.",
    ),
    PaperTable(
        "2",
        "Table 2: information erased (FedSGD, last class)",
        _ONE_CUT,
        lambda group: not _trains(group, "fed_avg") and _forgets_last(group),
        "The paper's 11.11% and the like after the cut are a constant answer's.",
    ),
    PaperTable(
        "3 and appendix",
        "Table 3 and appendix: several classes",
        _ACCURACIES | {"speedup": "speed-up"},
        lambda group: len(group.record.classes) > 1,
        "Ours: speed-up in rounds, until retraining's own accuracy.",
    ),
    PaperTable(
        "4",
        "Table 4: membership attack, difference from retraining",
        {"attack": "difference"},
        lambda group: True,
    ),
    PaperTable(
        "5",
        "Table 5: class-wise accuracy, distance from retraining",
        {"class_difference": "greatest difference", "class_kl": "KL divergence"},
        lambda group: True,
    ),
    PaperTable(
        "figure 3",
        "Figure 3: speed-up over retraining",
        {"speedup": "speed-up", "speedup_to": "to"},
        _forgets_last,
        "The paper gives ranges over its models.",
    ),
)
_WRITTEN = {
    "rounds": formats.number,
    "speedup": formats.times,
    "speedup_to": formats.times,
}
_WRITTEN |= {"class_kl": formats.number}


@functools.cache
def paper_rows() -> list[dict[str, str]]:
    """The numbers that the paper printed, as paper.csv has them."""
    text = importlib.resources.files("fuprune.report").joinpath("paper.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def paper_tables(groups: Sequence[Group]) -> list[Table]:
    """The tables of the paper that runs repeat rows of, ours under the paper's."""
    made = []
    for table in TABLES:
        rows = []
        for printed in paper_rows():
            if printed["table"] != table.number:
                continue
            ours = [g for g in groups if table.fits(g) and _repeats(g, printed)]
            found = [(g, _numbers(g, printed["method"], table.columns)) for g in ours]
            found = [(g, numbers) for g, numbers in found if any(numbers.values())]
            if not found:
                continue
            rows.append(_paper_row(table, printed))
            rows += [_our_row(table, printed["method"], *one) for one in found]
        name = f"paper_{table.number.replace(' ', '_')}"
        columns = [*words("Experiment", "Method"), *map(Column, table.columns.values())]
        made.append(Table(name, table.title, columns, rows, table.note))
    return [tables.without_empty_columns(one) for one in made if one.rows]


def _paper_row(table: PaperTable, printed: dict[str, str]) -> list[Cell]:
    named = f"paper: {printed['model']} on {printed['dataset']}"
    named += f", class {printed['classes'].replace(' ', '+')}"
    named += f", q {printed['q']}" if printed["q"] else ""
    numbers = (
        cell(float(printed[name]), _writer(name)) if printed[name] else cell(None)
        for name in table.columns
    )
    return [cell(named), cell(printed["method"], formats.in_words), *numbers]


def _our_row(table: PaperTable, method: str, group: Group, numbers) -> list[Cell]:
    cells = (mean_cell(numbers[name], _writer(name)) for name in table.columns)
    return [cell(group.title), cell(method, formats.in_words), *cells]


def _writer(name: str) -> Callable[[float], str]:
    return _WRITTEN.get(name, functools.partial(percent, digits=2))


def _repeats(group: Group, printed: dict[str, str]) -> bool:
    """Whether an experiment repeats a row of the paper."""
    record = group.record
    model = results.model_name(record)
    same_model = model == printed["model"]
    if printed["table"] == "figure 3":
        same_model = model.startswith(printed["model"])
    classes = sorted(map(int, printed["classes"].split()))
    if not same_model or record.dataset != printed["dataset"]:
        return False
    if record.request.kind != "classes" or sorted(record.classes) != classes:
        return False
    bias = roles.setting_in_use(record, "partition.bias")
    even = 1 / max(len(record.class_names), 1)
    wanted = float(printed["q"]) if printed["q"] else even
    return abs((bias if isinstance(bias, int | float) else even) - wanted) < 5e-3


def _numbers(
    group: Group, method: str, columns: dict[str, str]
) -> dict[str, list[float | None]]:
    """Ours for the columns of paper.csv, a value per seed; empty without any."""
    found = method_rows(group, method)
    if not found:
        return dict.fromkeys(columns, [])
    numbers: dict[str, list[float | None]] = {}
    models: dict[str, Sequence[StageRow | MethodRow]] = {
        "raw": raw_stages(group),
        "cut": _cuts(group, method, 0),
        "last_cut": _cuts(group, method, -1),
        "tuned": found,
        "retrained": method_rows(group, RETRAIN),
    }
    for name, rows in models.items():
        for letter in "ur":
            numbers[f"{name}_{letter}"] = [
                getattr(row, f"{letter}_accuracy") for row in rows
            ]
    reached = results.reached(found, "retrained")
    base = results.reached(models["retrained"], "retrained")  # type: ignore[arg-type]
    numbers["rounds"] = [reached.rounds if reached and not reached.late else None]
    numbers["speedup"] = results.speedups(reached, base)[:1]
    measures = {
        "attack": "shadow_success_rate",
        "class_difference": "class_accuracy_difference",
        "class_kl": "class_accuracy_kl",
    }
    for column, name in measures.items():
        numbers[column] = _from_audits(group, method, name, column == "attack")
    return {name: results.known(numbers.get(name, [])) for name in columns}  # type: ignore


def _cuts(group: Group, method: str, position: int) -> list[StageRow]:
    """The models after one cut (0 is the first class's, -1 the last's), per seed."""
    return [
        stages[position]
        for run, row in _models(group.runs)
        if row.method == method
        and (stages := results.pruned_stages(run.record, row.name))
    ]


def _from_audits(group: Group, method: str, name: str, difference: bool):
    """A method's values in the audits, or their difference from retraining."""
    found = []
    for run in group.runs:
        row = run.audit.row(name) if run.audit is not None else None
        if row is None or method not in row.models:
            continue
        retrained = results.known(row.retrained)
        for value in results.known(row.models[method].values):
            # An attacker who gives every model the same answer has not attacked.
            if difference and (not retrained or {*retrained} == {value}):
                continue
            mean = results.mean(retrained) or 0.0
            found.append(abs(value - mean) if difference else value)
    return found
