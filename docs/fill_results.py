"""Writes the tables of the pages on results from the runs under results/.

A table stands between `<!-- name -->` and `<!-- end of name -->`; what is outside is
written by hand. A test fails when pages and runs differ.

    python docs/fill_results.py
"""

import pathlib
import re
from collections.abc import Callable

from fuprune.audit import reading
from fuprune.report import compare, subject, tables
from fuprune.results import Run, read_run, setting

HERE = pathlib.Path(__file__).resolve().parent
PAGES = tuple(HERE / f"{n}.md" for n in ("results", "results_tables", "prize"))
RUNS = HERE.parent / "results"
RAW_MODEL = "results/cifar10_resnet20_raw/models/raw.safetensors"


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
    paths = sorted(path.parent for path in RUNS.glob("*/config.json"))
    runs = [read_run(path, reading.read) for path in paths]
    groups = compare.group_runs(runs)
    made = [compare.runs_table(groups), *compare.paper_tables(groups)]
    return {
        **{one.name: tables.to_markdown(one, title=False) for one in made},
        "methods": methods(runs, lambda run: True),
        "trials": methods(
            runs, lambda run: setting(run.record, "model.load") == RAW_MODEL
        ),
        **{f"audit_{run.name}": audit(run) for run in runs if run.audit is not None},
    }


COLUMNS = (
    *("Experiment", "Method", "Seeds", "Accuracy U-set", "Accuracy R-set", "Rounds"),
    *("Images", "Speed-up over retraining, images", "Audit"),
)


def methods(runs: list[Run], chosen: Callable[[Run], bool]) -> str:
    """Every method of some runs."""
    table = compare.comparison_table(compare.group_runs([*filter(chosen, runs)]))
    return tables.to_markdown(tables.only(table, COLUMNS), title=False)


def audit(run: Run) -> str:
    """The headline of an audit."""
    table = tables.audit_table(subject.subject_of(run), headline=True)
    return tables.to_markdown(table._replace(note=""), title=False)


if __name__ == "__main__":
    main()
