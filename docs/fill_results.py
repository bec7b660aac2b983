"""Writes the tables of the pages on results from the runs under results/.

A table stands between `<!-- name -->` and `<!-- end of name -->`; what is outside is
written by hand. A test fails when pages and runs differ.

    python docs/fill_results.py
"""

import pathlib
import re
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.figure import Figure

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
    "class 1, the recipe of the cut": (
        f"{RESNET20}_class1_prune",
        f"{RESNET20}_class1_retrained1",
        f"{RESNET20}_class1_retrained3",
        f"{RESNET20}_class1_retrained5",
    ),
    "class 1, the recipe, second raw model": (f"{RESNET20}_class1_prune_raw1",),
    "class 1, the paper's cut": (f"{RESNET20}_class1_tf_idf",),
    "class 1, relabelled": (f"{RESNET20}_class1_relabel",),
    "class 5": (
        f"{RESNET20}_class5",
        f"{RESNET20}_class5_retrained",
        f"{RESNET20}_class5_retrained2to3",
        f"{RESNET20}_class5_retrained4to5",
    ),
    "classes 0 and 9": (
        f"{RESNET20}_classes0_9",
        f"{RESNET20}_classes0_9_retrained",
        f"{RESNET20}_classes0_9_retrained4",
        f"{RESNET20}_classes0_9_retrained5",
    ),
    "class 9, the recipe of the cut": (f"{RESNET20}_class9_prune",),
    "classes 0 and 9, the recipe of the cut": (f"{RESNET20}_classes0_9_prune",),
    "classes 0 and 9, the recipe with R = 0.05": (
        f"{RESNET20}_classes0_9_prune_shared",
    ),
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
    paths = sorted(path.parent for path in RUNS.glob("leaderboard*/config.json"))
    if paths:
        rows = ranked(read_run(path, reading.read) for path in paths)
        draw_leaderboard(rows, HERE / "leaderboard.png")


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
    table = leaderboard(ranked(of_leaderboard(runs.values())))
    return {"models": models(runs), **audits, "leaderboard": table}


def of_leaderboard(runs: Iterable[Run]) -> list[Run]:
    """The runs of configs/leaderboard.py, by their workdirs' names."""
    return [run for run in runs if run.name.startswith("leaderboard")]


def models(runs: dict[str, Run]) -> str:
    """Accuracies of every method of the experiments."""
    lines = [
        "| experiment | model | seeds | U | R | rounds | trains on forgotten images"
        " | the audit |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    shown = set()  # raw models, once for each class
    for title, names in EXPERIMENTS.items():
        parts = [runs[name] for name in names]
        before = {
            stage.stage: stage
            for stage in parts[0].record.stages
            if stage.stage.startswith(("raw", "pruned"))
        }
        for name, stage in before.items():
            u, r = _span([stage.u_accuracy]), _span([stage.r_accuracy])
            if name == "raw" and (u, r) in shown:
                continue
            shown.add((u, r))
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


class Ranked(NamedTuple):
    """One method in one run of the leaderboard; means over its seeds."""

    run: str
    method: str
    seeds: int
    u: float
    r: float
    images: float
    upload_bytes: float
    slimmer: bool  # its network is smaller than others' of the run
    verdict: str

    @property
    def forgets(self) -> bool:
        """Whether it may be compared by what it keeps."""
        return self.u <= FORGETS


def ranked(runs: Iterable[Run]) -> list[Ranked]:
    """The methods that forget by what they keep, then the others by what is left."""
    found = []
    for run in runs:
        by_method: dict[str, list[MethodRow]] = {}
        for row in run.record.methods:
            if row.u_accuracy is not None:
                by_method.setdefault(row.method, []).append(row)
        largest = max((row.model_bytes for row in run.record.methods), default=0)
        for method, rows in by_method.items():
            u, r, images, sent = (
                statistics.mean(getattr(row, name) or 0 for row in rows)
                for name in ("u_accuracy", "r_accuracy", "images", "upload_bytes")
            )
            slimmer = rows[0].model_bytes < largest
            verdict = (run.audit.verdict(method) if run.audit else "") or ""
            about = (run.name, method, len(rows), u, r, images, sent)
            found.append(Ranked(*about, slimmer, verdict))
    return sorted(found, key=lambda one: (0, -one.r) if one.forgets else (1, one.u))


def leaderboard(rows: list[Ranked]) -> str:
    """The table, with a figure where something was run."""
    if not rows:
        return "Not run."
    lines = [
        "![R against images of the methods that forget](leaderboard.png)",
        "",
        "| run | method | seeds | U | R | images | bytes up | reads forgotten images"
        " | slimmer | the audit |",
        "|---|---|---:|---:|---:|---:|---:|---|---|---|",
    ]
    for one in rows:
        reads = "yes" if METHODS[one.method].reads_forgotten else "no"
        lines.append(
            f"| {one.run} | `{one.method}` | {one.seeds} | {one.u:.1%} | {one.r:.1%} |"
            f" {one.images:,.0f} | {one.upload_bytes:,.0f} | {reads} |"
            f" {'yes' if one.slimmer else 'no'} | {one.verdict} |"
        )
    return "\n".join(lines)


def draw_leaderboard(rows: list[Ranked], path: pathlib.Path) -> None:
    """R against images, of the methods that forget."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for one in (row for row in rows if row.forgets):
        axes.plot(one.images, 100 * one.r, "o", color="#3b6ea5")
        axes.annotate(one.method, (one.images, 100 * one.r), fontsize=7)
    axes.set_xlabel("images that clients trained on")
    axes.set_ylabel("accuracy on the other classes, %")
    figure.savefig(path, dpi=120)


def _span(values) -> str:
    shown = dict.fromkeys(f"{100 * v:.1f}%" for v in (min(values), max(values)))
    return " to ".join(shown)


def audit(run: Run) -> str:
    """The headline of an audit."""
    table = tables.audit_table(subject.subject_of(run), headline=True)
    return tables.to_markdown(table._replace(note=""), title=False)


if __name__ == "__main__":
    main()
