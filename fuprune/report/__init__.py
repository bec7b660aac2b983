"""Reports: what runs wrote, as one self-contained page with tables and figures.

`build` makes the report of one run, `closing` its last words in a terminal, and `join`
sets several runs beside each other and the paper. All read files only and can be called
again at any time. `show` gives a record, an audit or a plan as HTML, for a notebook.
"""

from fuprune.report.compare import join
from fuprune.report.page import build, closing, show

__all__ = ["build", "closing", "join", "show"]
