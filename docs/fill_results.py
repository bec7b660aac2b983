"""Writes the tables of the pages on results from the runs under results/.

A table stands between `<!-- name -->` and `<!-- end of name -->`; what is outside is
written by hand. A test fails when pages and runs differ.

    python docs/fill_results.py
"""

import json
import pathlib
import re
import tempfile

from fuprune import config as configuration
from fuprune.audit.evidence import AuditReport
from fuprune.report import judgement, roles
from fuprune.report.joined_report import join
from fuprune.results import read_curves, read_record, read_text
from fuprune.run.build import make_budget
from fuprune.unlearning.methods import METHODS

HERE = pathlib.Path(__file__).resolve().parent
PAGES = tuple(HERE / f"{n}.md" for n in ("results", "results_tables", "prize"))
RUNS = HERE.parent / "results"
# How the joined report titles what the page calls by these names.
JOINED = {
    "figure_3": "Figure 3",
    "table_1": "Table 1",
    "table_2": "Table 2",
    "table_3": "Table 3",
    "table_4": "Table 4",
    "table_5": "Table 5",
    "methods": "Every method",
    "runs": "Every run",
}


def main():
    """Rewrite the tables in place."""
    tables = bodies()
    for page in PAGES:
        page.write_text(filled(page.read_text(), tables))


def bodies() -> dict[str, str]:
    """Every table by its name."""
    runs = sorted(path.parent for path in RUNS.glob("*/config.json"))
    return {
        **joined(runs),
        **audits(runs),
        "commands": commands(runs),
        "curves": curves(runs),
        "trials": trials(runs),
        "biased": biased(runs),
    }


def filled(text: str, tables: dict[str, str]) -> str:
    """A page with every table made from the runs."""

    def fill(match):
        body = tables.get(match[1], "Not run.")
        return f"<!-- {match[1]} -->\n{body.strip()}\n<!-- end of {match[1]} -->"

    pattern = r"<!-- ([\w.]+) -->\n.*?<!-- end of \1 -->"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def joined(runs) -> dict[str, str]:
    """Tables of the joined report, without their headings."""
    with tempfile.TemporaryDirectory() as folder:
        join(runs, folder)
        text = (pathlib.Path(folder) / "report.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {
        name: section.split("\n", 1)[1].strip()
        for name, title in JOINED.items()
        for section in sections
        if section.startswith(title)
    }


def commands(runs) -> str:
    """The command, code and seed of every run."""
    lines = []
    for run in runs:
        record = json.loads((run / "config.json").read_text())
        lines += [
            f"**`results/{run.name}`**, seed {record['config']['seed']}, commit"
            f" {record['commit'][:12]}:",
            "",
            "```",
            " \\\n    ".join(shell_words(record["command"])),
            "```",
            "",
        ]
        if (run / "audit.json").exists() and not asks_for_audit(record["command"]):
            lines += ["The audit came from the same command with its phase added.", ""]
    return "\n".join(lines)


def asks_for_audit(command) -> bool:
    """Whether a command runs the audit: all phases are run unless some are named."""
    named = [word for word in command if word.startswith("--config.phases=")]
    return all("audit" in word or word.endswith("=all") for word in named)


def shell_words(command) -> list[str]:
    """A command in lines: the program, then one flag each."""
    lines = [" ".join(command[:3])]
    for word in command[3:]:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def curves(runs) -> str:
    """Rounds until R-set accuracies below the target, from the logged curves."""
    levels = (0.60, 0.70, 0.75, 0.85)
    lines = [
        "| run | method | " + " | ".join(f"R ≥ {x:.0%}" for x in levels) + " | last |",
        "|---|---|" + "---:|" * (len(levels) + 1),
    ]
    for run in runs:
        # A published run may have been stopped in the middle of its next method.
        finished = {row.name for row in read_record(run).methods}
        phases: dict[str, list[tuple[int, float]]] = {}
        for row in read_curves(run):
            judged = row.judged("r_accuracy")
            name = row.phase.removeprefix("unlearn/")
            if name in finished and judged is not None:
                phases.setdefault(name, []).append((row.round_number, judged))
        for name, rows in phases.items():
            found = [
                next((str(number) for number, judged in rows if judged >= x), "-")
                for x in levels
            ]
            last = f"{rows[-1][1]:.1%}"
            warning = roles.warning(name)
            named = f"{name} ({warning})" if warning else name
            lines.append(f"| {run.name} | {named} | {' | '.join(found)} | {last} |")
    return "\n".join(lines)


RAW_MODEL = "results/cifar10_resnet20_raw/models/raw.safetensors"


def trials(runs) -> str:
    """Every way that was tried of forgetting from the published raw model."""
    lines = [
        "| classes | method | seed | rounds | peak rate | teacher | U | R |"
        " R, validation | run |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for run in runs:
        stored = json.loads((run / "config.json").read_text())["config"]
        if stored["model"]["load"] != RAW_MODEL:
            continue
        config = configuration.from_json(stored)
        judged = {
            row.phase: row.judged("r_accuracy")
            for row in read_curves(run)
            if row.judged("r_accuracy") is not None
        }
        record = read_record(run)
        classes = "+".join(map(str, record.classes))
        for row in record.methods:
            judged_here = judged[f"unlearn/{row.name}"]
            lines.append(trial(run.name, classes, config, row, judged_here))
    return "\n".join(lines)


def trial(run: str, classes: str, config, row, judged: float) -> str:
    """One method with one seed."""
    kind = METHODS[row.method].budget
    rate = teacher = ""
    if row.rounds:
        schedule = make_budget(config, kind).schedule
        rate = f"{schedule.learning_rate:g}"
        if schedule.warmup:
            rate += f", warm-up {schedule.warmup}"
        if kind == "fine_tune" and config.fine_tune.distill_weight:
            teacher = f"{config.fine_tune.distill_weight:g}"
    return cells(
        classes,
        titled(row.method),
        str(row.seed + 1),
        str(row.rounds),
        rate,
        teacher,
        f"{row.u_accuracy:.1%}",
        f"{row.r_accuracy:.2%}",
        f"{judged:.2%}",
        f"`{run}`",
    )


def biased(runs) -> str:
    """Every model of the runs with biased clients, one pair of columns per run."""
    found = [run for run in runs if re.fullmatch(r".*_bias[\d.]+", run.name)]
    columns, models = [], {}
    for run in found:
        config = json.loads((run / "config.json").read_text())["config"]
        columns += [f"q = {config['partition']['bias']:g}: U", "R"]
        record = read_record(run)
        rounds = {row.name: row.rounds for row in record.methods}
        for row in record.stages:
            ended = row.stage in ("raw", "masked", "fine_tuned")
            title = titled(row.method) + ("" if ended else ", not fine-tuned")
            spent = str(rounds.get(row.method, "")) if ended else "0"
            pair = f"{row.u_accuracy:.1%}", f"{row.r_accuracy:.1%}"
            models.setdefault((title, spent), {})[run.name] = pair
    lines = [
        cells("model", "rounds", *columns),
        f"|---|---:|{'---:|' * len(columns)}",
    ]
    for (title, spent), pairs in models.items():
        values = [x for run in found for x in pairs.get(run.name, ("", ""))]
        lines.append(cells(title, spent, *values))
    return "\n".join(lines)


# The tests that say most, and what a narrow column calls them.
SHOWN = {
    "probe_few_shot_accuracy": "few-shot probe",
    "relearn_area": "relearning, area",
    "jensen_shannon": "answers: distance",
}


def audits(runs) -> dict[str, str]:
    """The headline of every audited run of ours, by `audit_` and the run's name."""
    return {
        f"audit_{run.name}": audit_table(
            AuditReport.from_json(read_text(run / "audit.json"))
        )
        for run in runs
        if (run / "audit.json").exists()
    }


def audit_table(audit) -> str:
    """What each model has in the tests that say most, beside retrained models."""
    tests = {test.name: test for test in audit.tests}
    shown = [tests[name] for name in SHOWN if name in tests]
    titles = [SHOWN[test.name] for test in shown]
    own = "attack by shadow models of its own method, AUC"
    retrained = f"retrained, {judgement.retrained_models(audit)} seeds"
    lines = [
        f"| model | headline | {' | '.join([*titles, own])} |",
        "|---|---|" + "---:|" * (len(shown) + 1),
        cells(retrained, "", *(spread(test) for test in shown), "by method"),
        cells("interval", "", *map(judgement.interval_text, shown), "by method"),
    ]
    for model in ("raw", *audit.candidates):
        if model not in audit.headlines:
            continue
        values = (judgement.value_text(t, t.values.get(model)) for t in shown)
        attack = tests.get(f"unlearned_shadow_{roles.family(model)}_auc")
        lines.append(
            cells(
                titled(model), verdict(audit, model), *values, attacked(attack, model)
            )
        )
    return "\n".join(lines)


def cells(*texts) -> str:
    """A row of a table."""
    return f"| {' | '.join(texts)} |"


def titled(model: str) -> str:
    """A model's name, what it is, and what it trains on."""
    if model == "raw":
        return model
    warning = roles.warning(model)
    control = "control: " if roles.control_of(model) else ""
    return f"{control}`{model}`" + (f" ({warning})" if warning else "")


def verdict(audit, model: str) -> str:
    """The headline's verdict in a few words."""
    found = judgement.headline(audit, model)
    if not found.failed:
        return found.verdict
    return f"fails {len(found.failed)} of {found.tests}"


def spread(test) -> str:
    """The range of the retrained models' values."""
    values = [value for value in test.retrained if value is not None]
    if not values:
        return judgement.NO_RESULT
    low, high = (judgement.value_text(test, f(values)) for f in (min, max))
    return f"{low} to {high}"


def attacked(test, model: str) -> str:
    """The attack that was made for one method, or why there is none."""
    if test is None or test.values.get(model) is None:
        return ""
    text = judgement.value_text(test, test.values[model])
    return f"{text} (retrained {spread(test)})"


if __name__ == "__main__":
    main()
