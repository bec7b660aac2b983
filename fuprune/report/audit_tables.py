"""The tables of an audit: verdicts, and the figures behind them.

Each function returns a `Table`, or `None` when the run holds nothing for it.
"""

from collections.abc import Sequence

from fuprune.audit.evidence import AuditReport, Evidence
from fuprune.report import formats, palette
from fuprune.report.run_files import Run
from fuprune.report.run_tables import role
from fuprune.report.tables import Cell, Column, Table, cell
from fuprune.report.verdict import interval_text, main_method, shown, tally, test_title


def tally_table(run: Run) -> Table | None:
    """Counts the verdicts of every audited model."""
    if run.audit is None or not run.audit.tests:
        return None
    main = main_method(run)
    rows = []
    for name in audited_models(run.audit):
        if name == palette.RANDOM:
            continue
        counts = tally(run.audit, name)
        rows.append(
            (
                cell(
                    name,
                    formats.method_name(name),
                    "highlight" if name == main else "",
                ),
                _audited_role(name, main),
                *(cell(amount) for amount in counts),
            )
        )
    return Table(
        "tally",
        "Verdicts of every model",
        (
            Column("Model", numeric=False),
            Column("Role", numeric=False),
            Column("Pass"),
            Column("Fail"),
            Column("Cannot tell"),
        ),
        tuple(rows),
        "The raw model should fail: a test that it passes has no power here.",
    )


def _audited_role(name: str, main: str | None) -> Cell:
    return cell("before forgetting") if name == palette.RAW else role(name, main)


def audited_models(audit: AuditReport) -> list[str]:
    """Lists the method under test, other candidates, the rest, the raw model last."""
    main = palette.main_method(audit.candidates)
    names = sorted(audit.candidates, key=lambda name: name != main)
    for test in audit.tests:
        names += [name for name in test.values if name not in names]
    last = [name for name in (palette.RANDOM, palette.RAW) if name in names]
    return [name for name in names if name not in last] + last


def verdict_table(run: Run) -> Table | None:
    """Gives the verdict of every candidate in every test with its figure."""
    names = [] if run.audit is None else audited_models(run.audit)
    # The untrained net is a yardstick of the probe, and stands in that table.
    names = [name for name in names if name != palette.RANDOM]
    if run.audit is None or not names:
        return None
    # A phone shows two columns: the test and the method it is about.
    first, *others = names
    columns = [
        Column("Test", numeric=False),
        Column(formats.method_name(first)),
        Column("Retrained interval"),
        *(Column(formats.method_name(name)) for name in others),
    ]
    rows = tuple(
        (
            cell(test.name, test_title(test)),
            _judged(test, first),
            cell(interval_text(test)),
            *(_judged(test, name) for name in others),
        )
        for test in run.audit.tests
    )
    return Table(
        "verdicts",
        "Every test, every model",
        tuple(columns),
        rows,
        "A model passes a test when it lies where one more retrained model would.",
    )


def _judged(test: Evidence, name: str) -> Cell:
    if name not in test.values:
        return cell(None)
    value = test.values[name]
    return cell(value, shown(test, value), verdict=test.verdicts[name])


def evidence_table(run: Run, kinds: Sequence[str], name: str, title: str):
    """Gives the figures of some kinds of test, a row per model.

    Args:
      run: The run.
      kinds: Kinds of evidence.
      name: File name of the table.
      title: Its heading.

    Returns:
      The table, or `None` if no such test was made.
    """
    if run.audit is None:
        return None
    tests = [test for test in run.audit.tests if test.kind in kinds]
    if not tests:
        return None
    main = main_method(run)
    names = [
        model
        for model in audited_models(run.audit)
        if any(model in test.values for test in tests)
    ]
    rows = [
        (
            cell(
                model,
                formats.method_name(model),
                "highlight" if model == main else "",
            ),
            *(_judged(test, model) for test in tests),
        )
        for model in names
    ]
    seeds = max(len(test.retrained) for test in tests)
    rows += [
        (
            cell(f"retrained, seed {seed + 1}"),
            *(
                cell(test.retrained[seed], shown(test, test.retrained[seed]))
                if seed < len(test.retrained)
                else cell(None)
                for test in tests
            ),
        )
        for seed in range(seeds)
    ]
    rows.append(
        (
            cell("retrained, interval"),
            *(cell(interval_text(test)) for test in tests),
        )
    )
    columns = (
        Column("Model", numeric=False),
        *(Column(test_title(test)) for test in tests),
    )
    return Table(name, title, columns, tuple(rows))


def audit_table(run: Run) -> Table | None:
    """Lists every figure of the audit, one per row, for other programs."""
    if run.audit is None or not run.audit.tests:
        return None
    rows = []
    for test in run.audit.tests:
        low, high = test.interval or (None, None)
        measured = [(name, test.values[name]) for name in test.values]
        measured += [
            (f"retrained {seed + 1}", value)
            for seed, value in enumerate(test.retrained)
        ]
        for name, value in measured:
            rows.append(
                (
                    cell(test.name),
                    cell(test.kind),
                    cell(name),
                    cell(value, shown(test, value)),
                    cell(low, shown(test, low)),
                    cell(high, shown(test, high)),
                    cell(test.verdicts.get(name, "")),
                    cell(test.unit),
                )
            )
    names = ("Test", "Kind", "Model", "Value", "Low", "High", "Verdict", "Unit")
    numeric = ("Value", "Low", "High")
    return Table(
        "audit",
        "Every figure of the audit",
        tuple(Column(name, numeric=name in numeric) for name in names),
        tuple(rows),
    )
