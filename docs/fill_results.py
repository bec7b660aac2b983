"""Writes the tables of the pages on results from the runs under results/.

A table stands between `<!-- name -->` and `<!-- end of name -->`; what is outside is
written by hand. A test fails when pages and runs differ.

    python docs/fill_results.py
"""

import pathlib
import re

from fuprune.audit import reading
from fuprune.report import subject, tables
from fuprune.results import MethodRow, Run, read_run
from fuprune.unlearning.methods import METHODS

HERE = pathlib.Path(__file__).resolve().parent
PAGES = tuple(HERE / f"{name}.md" for name in ("results", "prize", "leaderboard"))
RUNS = HERE.parent / "results"
RESNET20 = "cifar10_resnet20"
# A heading per experiment, with the runs that are its parts or seeds.
EXPERIMENTS = {
    "class 9": (f"{RESNET20}_class9", f"{RESNET20}_class9_retrained"),
    "class 9, rate 0.25, teacher": (f"{RESNET20}_class9_distil0.25",),
    "class 9, rate 0.125, teacher": (f"{RESNET20}_class9_distil0.125",),
    "class 5": (
        f"{RESNET20}_class5",
        f"{RESNET20}_class5_retrained",
        f"{RESNET20}_class5_retrained2to3",
        f"{RESNET20}_class5_retrained4to5",
    ),
    "class 5, rate 0.25, teacher": (f"{RESNET20}_class5_distil0.25",),
    "class 5, rate 0.125, teacher": (
        f"{RESNET20}_class5_distil0.125",
        f"{RESNET20}_class5_distil0.125_controls",
    ),
    "classes 0 and 9": (
        f"{RESNET20}_classes0_9",
        f"{RESNET20}_classes0_9_retrained",
        f"{RESNET20}_classes0_9_retrained4",
        f"{RESNET20}_classes0_9_retrained5",
    ),
    "classes 0 and 9, rate 0.25, teacher": (f"{RESNET20}_classes0_9_distil0.25",),
    "CIFAR-100, class 99": ("cifar100_resnet20",),
    "biased clients, q = 0.1": (f"{RESNET20}_bias0.1",),
    "biased clients, q = 0.45": (f"{RESNET20}_bias0.45",),
}

FORGETS = 0.02  # accuracy on the forgotten class at which it counts as forgotten


def main():
    """Rewrite the tables in place."""
    made = bodies()
    for page in PAGES:
        page.write_text(filled(page.read_text(), made))


def filled(text: str, made: dict[str, str]) -> str:
    """A page with every table made from the runs."""

    def fill(match):
        body = made.get(match[1], "Not run.")
        return f"<!-- {match[1]} -->\n{body.strip()}\n<!-- end of {match[1]} -->"

    pattern = r"<!-- ([\w.]+) -->\n.*?<!-- end of \1 -->"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def bodies() -> dict[str, str]:
    """Every table by its name."""
    runs = {
        path.parent.name: read_run(path.parent, reading.read)
        for path in sorted(RUNS.glob("*/config.json"))
    }
    audits = {f"audit_{name}": audit(run) for name, run in runs.items() if run.audit}
    ranked = leaderboard([run for name, run in runs.items() if "leaderboard" in name])
    return {"models": models(runs), **audits, **ranked}


def models(runs: dict[str, Run]) -> str:
    """Accuracies of every method of the experiments."""
    lines = [
        "| experiment | model | seeds | U | R | rounds | trains on forgotten images"
        " | the audit |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for title, names in EXPERIMENTS.items():
        parts = [runs[name] for name in names]
        before = {
            stage.stage: stage
            for stage in parts[0].record.stages
            if stage.stage.startswith(("raw", "pruned")) and "rate" not in title
        }
        for name, stage in before.items():
            u, r = _span([stage.u_accuracy]), _span([stage.r_accuracy])
            name = name.replace("pruned_", "after the cut for class ")
            lines.append(f"| {title} | {name} | 1 | {u} | {r} | | | |")
        found: dict[str, dict[str, MethodRow]] = {}
        for row in (row for part in parts for row in part.record.methods):
            found.setdefault(row.method, {}).setdefault(row.name, row)
        for method, rows in found.items():
            u = _span([row.u_accuracy for row in rows.values()])
            r = _span([row.r_accuracy for row in rows.values()])
            rounds = max(row.rounds for row in rows.values())
            on_forgotten = "yes" if METHODS[method].trains_on_forgotten else ""
            verdicts = dict.fromkeys(p.audit.verdict(method) for p in parts if p.audit)
            lines.append(
                f"| {title} | `{method}` | {len(rows)} | {u} | {r} | {rounds:,} |"
                f" {on_forgotten} | {'; '.join(v for v in verdicts if v)} |"
            )
    return "\n".join(lines)


def leaderboard(runs: list[Run]) -> dict[str, str]:
    """The methods that forget first, sorted by what they keep; nothing if none ran."""
    rows = [
        (run, row)
        for run in runs
        for row in run.record.methods
        if row.u_accuracy is not None
    ]
    groups: dict[tuple[str, str], list[tuple[Run, MethodRow]]] = {}
    for run, row in rows:
        groups.setdefault((run.name, row.method), []).append((run, row))

    def order(group):
        u, r = (
            sum(getattr(row, name) for _, row in group) / len(group)
            for name in ("u_accuracy", "r_accuracy")
        )
        return (0, -r) if u <= FORGETS else (1, u)

    lines = [
        "| run | method | seeds | U | R | images | bytes up | reads forgotten images"
        " | the audit |",
        "|---|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for (name, method), group in sorted(groups.items(), key=lambda one: order(one[1])):
        seeds = [row for _, row in group]
        u, r = (
            _span([getattr(row, of) for row in seeds])
            for of in ("u_accuracy", "r_accuracy")
        )
        images, sent = (
            max((getattr(row, of) or 0) for row in seeds)
            for of in ("images", "upload_bytes")
        )
        reads = "yes" if METHODS[method].reads_forgotten else "no"
        verdict = group[0][0].audit.verdict(method) if group[0][0].audit else ""
        lines.append(
            f"| {name} | `{method}` | {len(seeds)} | {u} | {r} | {images:,.0f} |"
            f" {sent:,.0f} | {reads} | {verdict or ''} |"
        )
    return {"leaderboard": "\n".join(lines)} if rows else {}


def _span(values: list[float]) -> str:
    shown = dict.fromkeys(f"{100 * v:.1f}%" for v in (min(values), max(values)))
    return " to ".join(shown)


def audit(run: Run) -> str:
    """The headline of an audit."""
    table = tables.audit_table(subject.subject_of(run), headline=True)
    return tables.to_markdown(table._replace(note=""), title=False)


if __name__ == "__main__":
    main()
