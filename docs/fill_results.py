"""Writes the tables of results.md from the runs under results/.

A table stands between `<!-- name -->` and `<!-- end of name -->`; what is outside is
written by hand. A test fails when page and runs differ.

    python docs/fill_results.py
"""

import json
import pathlib
import re
import tempfile

from fuprune.report.joined_report import join

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE / "results.md"
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
# Tests of the audit that the page compares methods by, with their headings.
JUDGED = {
    "probe_few_shot_accuracy": "few-shot probe",
    "probe_accuracy": "full probe",
    "relearn_steps": "relearn, steps",
    "jensen_shannon": "JS to retrained",
}
# Methods whose measured rows the page leaves out, because they are known to be wrong.
WITHDRAWN = ("fisher",)


def main():
    """Rewrite the tables in place."""
    PAGE.write_text(filled(PAGE.read_text()))


def filled(text: str) -> str:
    """The page with every table made from the runs."""
    runs = sorted(path.parent for path in RUNS.glob("*/config.json"))
    bodies = {**joined(runs), "commands": commands(runs), "curves": curves(runs)}
    bodies |= {f"audit_{c}": audited(runs, c) for c in forgotten_sets(runs)}

    def fill(match):
        body = without_withdrawn(bodies.get(match[1], "Not run."))
        return f"<!-- {match[1]} -->\n{body.strip()}\n<!-- end of {match[1]} -->"

    pattern = r"<!-- (\w+) -->\n.*?<!-- end of \1 -->"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def without_withdrawn(body: str) -> str:
    """The table less our own rows of methods in `WITHDRAWN`; the paper's stay."""
    return "\n".join(
        line
        for line in body.splitlines()
        if "| paper |" in line
        or not any(f"| {method} |" in line for method in WITHDRAWN)
    )


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
    return "\n".join(lines)


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
    levels = (0.60, 0.70, 0.75)
    lines = [
        "| run | method | " + " | ".join(f"R ≥ {x:.0%}" for x in levels) + " | last |",
        "|---|---|" + "---:|" * (len(levels) + 1),
    ]
    for run in runs:
        phases: dict[str, list[dict]] = {}
        for line in (run / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            if row["phase"].startswith("unlearn/") and "r_accuracy" in row:
                phases.setdefault(row["phase"].removeprefix("unlearn/"), []).append(row)
        for name, rows in phases.items():
            found = [
                next((str(r["round"]) for r in rows if r["r_accuracy"] >= x), "-")
                for x in levels
            ]
            last = f"{rows[-1]['r_accuracy']:.1%}"
            lines.append(f"| {run.name} | {name} | {' | '.join(found)} | {last} |")
    return "\n".join(lines)


def forgotten_sets(runs) -> set[str]:
    """Which classes the audited runs forget, as `9` or `0_9`."""
    return {
        "_".join(map(str, json.loads((run / "audit.json").read_text())["classes"]))
        for run in runs
        if (run / "audit.json").exists()
    }


def audited(runs, classes: str) -> str:
    """Every audited model that forgets `classes`, beside retrained and raw ones."""
    rows, reference = [], None
    for run in runs:
        if not (run / "audit.json").exists():
            continue
        audit = json.loads((run / "audit.json").read_text())
        config = json.loads((run / "config.json").read_text())["config"]
        same = "_".join(map(str, audit["classes"])) == classes
        if not same or config["data"]["name"] != "cifar10":
            continue
        tests = {test["name"]: test for test in audit["tests"]}
        names = ["u_accuracy", "r_accuracy", *JUDGED]
        if reference is None:
            reference = [
                ("retrained", [_spread(tests.get(name)) for name in names], ""),
                ("raw", [_value(tests.get(name), "raw") for name in names], ""),
            ]
        for candidate in audit["candidates"]:
            cells = [_value(tests.get(name), candidate) for name in names]
            rows.append((candidate, cells, run.name))
    lines = [
        "| method | U | R | " + " | ".join(JUDGED.values()) + " | run |",
        "|---|" + "---:|" * (2 + len(JUDGED)) + "---|",
    ]
    for name, cells, run in [*(reference or []), *rows]:
        lines.append(f"| {name} | {' | '.join(cells)} | {run} |")
    return "\n".join(lines)


def _value(test, model) -> str:
    if test is None or model not in test["values"]:
        return ""
    value, verdict = test["values"][model], test["verdicts"].get(model, "")
    return f"{_shown(test, value)} {verdict}".strip()


def _spread(test) -> str:
    if test is None:
        return ""
    return ", ".join(_shown(test, value) for value in test["retrained"])


def _shown(test, value) -> str:
    if value is None:
        return "-"
    if test["unit"] == "fraction":
        return f"{value:.1%}"
    return f"{value:.3g}"


if __name__ == "__main__":
    main()
