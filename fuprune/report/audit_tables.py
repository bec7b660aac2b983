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
        "The raw model was trained on what is to be forgotten and should fail: where "
        "it does not, the test has no power here and cannot tell.",
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


def verdict_table(audit: AuditReport, tested: str | None) -> Table | None:
    """The verdict on every model in every test, those that could see first."""
    names = _judged_models(audit, tested)
    if not names:
        return None
    # A phone shows two columns: the test and the method it is about.
    first, *others = names
    rows = [
        (
            cell(test.name, test_title(test)),
            _judged(test, first),
            cell(interval_text(test)),
            cell(judgement.difference_text(test)),
            *(_judged(test, name) for name in others),
        )
        for test in judgement.ordered(audit)
    ]
    columns = (
        Column("Test", numeric=False),
        Column(formats.in_words(first)),
        Column("Where retrained models lie"),
        Column("Smallest visible difference"),
        *(Column(formats.in_words(name)) for name in others),
    )
    return table_of(
        "verdicts",
        "What was tested, and what could be seen",
        columns,
        rows,
        "Tests that tell the raw model from retraining come first. A model fails when "
        "it lies where a retrained model hardly would; otherwise it is not told apart.",
    )


def _judged(test: Evidence, name: str) -> Cell:
    if name not in test.values:
        return cell(None)
    value = test.values[name]
    return cell(value, value_text(test, value), "", test.verdicts[name])
