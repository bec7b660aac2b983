"""Reports: what runs wrote, as one self-contained page with tables and figures.

`build` makes the report of one run; `join` sets several runs beside the paper's tables.
Both read files only and can be called again at any time. `show` gives a record, an
audit or a plan as HTML, for a notebook.
"""

from fuprune.report.joined_report import join
from fuprune.report.notebook import show
from fuprune.report.run_report import build

__all__ = ["build", "join", "show"]
