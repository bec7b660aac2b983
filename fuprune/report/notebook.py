"""Run records, audit reports and prune plans as HTML for a notebook."""

from fuprune.audit.evidence import AuditReport
from fuprune.errors import InputError
from fuprune.report import page, prose, roles, run_report, table_forms, tables
from fuprune.report.markup import Child, Markup, element
from fuprune.report.table_forms import Column, Table, cell, in_words
from fuprune.results import Run, RunRecord
from fuprune.surgery.plan import PrunePlan


class Shown(str):
    """HTML that a notebook renders."""

    def _repr_html_(self) -> str:
        return str(self)


def show(value: RunRecord | AuditReport | PrunePlan | Run) -> Shown:
    """A record, an audit, a plan or a whole run (`read_run`) as HTML.

    Raises:
      InputError: the value is none of these.
    """
    record, audit, made = None, None, []
    if isinstance(value, Run):
        record, audit = value.record, value.audit
    elif isinstance(value, RunRecord):
        record = value
    elif isinstance(value, AuditReport):
        audit = value
    elif isinstance(value, PrunePlan):
        made = [plan_table(value)]
    else:
        raise InputError(
            f"a {type(value).__name__} cannot be shown; give a RunRecord, an "
            "AuditReport, a PrunePlan or a Run."
        )
    # A scoped sheet, so that the page's rules do not reach the rest of the notebook.
    sheet = page.style_sheet().replace(":root", ":scope")
    parts: list[Child] = [element("style", None, Markup(f"@scope {{ {sheet} }}"))]
    if record is not None:
        parts.append(run_report.first_screen_card(prose.first_screen(record, audit)))
        made.append(tables.methods_table(roles.topic_of(record, audit)))
    if audit is not None:
        tested = roles.tested_among(audit.candidates)
        made += [tables.tally_table(audit, tested), tables.verdict_table(audit, tested)]
    parts += map(table_forms.to_html, table_forms.by_name(made).values())
    return Shown(element("div", None, *parts))


def plan_table(plan: PrunePlan) -> Table:
    """How many channels a plan keeps in each layer, and which."""
    rows = [
        (cell(layer), cell(len(kept)), cell(", ".join(map(str, kept))))
        for layer, kept in plan.keep.items()
    ]
    which = Column("Channels kept", numeric=False, words=True)
    columns = (*in_words("Layer"), Column("Kept"), which)
    return Table("plan", "What a cut keeps", columns, rows)
