"""The tables of an audit: verdicts first, then the numbers behind them.

Each function returns a `Table`, or None when there is nothing for it.
"""

from fuprune.audit.evidence import AuditReport, Evidence
from fuprune.report import formats, judgement, roles
from fuprune.report.judgement import interval_text, test_title, value_text
from fuprune.report.table_forms import Cell, Column, Table, cell, in_words, table_of


def tally_table(audit: AuditReport, tested: str | None) -> Table | None:
    """The headline's verdict on every audited model, and the count of all tests."""
    rows = []
    for name in _judged_models(audit, tested):
        warned = roles.warning(name)
        rows.append(
            (
                model_cell(name, tested),
                cell(", ".join(filter(None, (roles.role(name, tested), warned)))),
                Cell("", "", "", judgement.headline(audit, name).verdict),
                *(cell(amount) for amount in judgement.counts(audit, name)),
            )
        )
    role = Column("Role", numeric=False, words=True)
    return table_of(
        "tally",
        "Verdicts on every model",
        (*in_words("Model"), role, *in_words("Headline"), *count_columns("All tests")),
        rows if audit.tests else (),
        "The raw model knows the class and should fail: where it does not, the test "
        "has no power here and cannot tell.",
    )


def count_columns(group: str) -> list[Column]:
    """The columns of `judgement.counts`, under one heading."""
    titles = ("failed", "not told apart", "passed", "cannot tell")
    return [Column(title, group=group) for title in titles]


def _judged_models(audit: AuditReport, tested: str | None) -> list[str]:
    # The untrained net is a yardstick of the probe, and stands in that table.
    models = roles.audited_models(audit, tested)
    return [name for name in models if name != roles.RANDOM]


def model_cell(name: str, tested: str | None) -> Cell:
    """A model's name, tinted if it is the method under test."""
    is_tested = tested is not None and roles.family(name) == tested
    return cell(name, formats.in_words(name), "highlight" if is_tested else "")


def verdict_table(
    audit: AuditReport, tested: str | None, *, whole: bool = False
) -> Table | None:
    """The verdict on every model in every test, those that could see first.

    Args:
      audit: the audit.
      tested: the method under test.
      whole: give each membership test its row even if none of them has power;
        otherwise one row stands for all.
    """
    names = _judged_models(audit, tested)
    if not names or not audit.tests:
        return None
    # A phone shows two columns: the test and the method it is about.
    first, *others = names
    powerless = "" if whole else judgement.powerless_membership(audit)
    rows = []
    for test in judgement.ordered(audit):
        if powerless and test.kind in judgement.MEMBERSHIP_KINDS:
            continue
        rows.append(
            (
                cell(test.name, test_title(test)),
                _judged(test, first),
                cell(interval_text(test)),
                cell(judgement.difference_text(test)),
                *(_judged(test, name) for name in others),
            )
        )
    if powerless:
        tests = judgement.of_kinds(audit, judgement.MEMBERSHIP_KINDS)
        title = cell(f"All {formats.plural(len(tests), 'membership test')}")
        blank = Cell("", "", "", "cannot tell")
        rows.append((title, blank, cell(None), cell(None), *[blank] * len(others)))
    columns = (
        Column("Test", numeric=False),
        Column(formats.in_words(first)),
        Column("Where retrained models lie"),
        Column("Smallest visible difference"),
        *(Column(formats.in_words(name)) for name in others),
    )
    if not any(test.smallest_difference for test in audit.tests):
        columns = (*columns[:3], *columns[4:])
        rows = [(*row[:3], *row[4:]) for row in rows]
    return Table(
        "verdicts",
        "What was tested, and what could be seen",
        columns,
        tuple(rows),
        "Tests that tell the raw model from retraining come first. A model fails when "
        "it lies where a retrained model hardly would; otherwise it is not told apart.",
    )


def _judged(test: Evidence, name: str) -> Cell:
    if name not in test.values:
        return cell(None)
    value = test.values[name]
    return cell(value, value_text(test, value), "", test.verdicts[name])


def numbers_table(audit: AuditReport) -> Table | None:
    """Every number of the audit, one per row, for other programs."""
    rows = []
    for test in audit.tests:
        low, high = test.interval or (None, None)
        measured = list(test.values.items())
        measured += [(f"retrained {n + 1}", v) for n, v in enumerate(test.retrained)]
        for name, value in measured:
            adjusted = test.adjusted_p_values.get(name)
            rows.append(
                (
                    cell(test.name),
                    cell(test.kind),
                    cell(test.family),
                    cell(name),
                    cell(value, value_text(test, value)),
                    cell(low, value_text(test, low)),
                    cell(high, value_text(test, high)),
                    cell(adjusted, formats.number(adjusted)),
                    cell(test.verdicts.get(name, "")),
                    cell(test.unit),
                )
            )
    names = ("Test", "Kind", "Family", "Model", "Value", "Low", "High")
    names += ("Adjusted p", "Verdict", "Unit")
    numeric = ("Value", "Low", "High", "Adjusted p")
    columns = [Column(name, numeric=name in numeric) for name in names]
    return table_of("audit", "Every number of the audit", columns, rows)
