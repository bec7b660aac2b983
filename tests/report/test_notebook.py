"""Objects in a notebook: each shows what a person wants to see first."""

import importlib
import os
import subprocess
import sys
import types

import numpy as np
import pytest

import fuprune
from fuprune.audit.evidence import AuditReport
from fuprune.report import show
from fuprune.results import Run, RunRecord
from fuprune.surgery.plan import PrunePlan
from tests.report.fixture import make_audit, make_record, make_run
from tests.report.reading import Page


def shown(value) -> str:
    return Page(show(value)._repr_html_()).text


def test_a_record_shows_its_first_screen_and_methods():
    text = shown(make_record())
    assert "nothing here shows that the model forgot class truck (3)." in text
    assert "Every method, and all that it spent" in text


def test_an_audit_shows_its_verdicts():
    text = shown(make_audit())
    assert "Verdicts on every model" in text
    assert "cannot tell" in text


def test_a_whole_run_shows_both():
    run = make_run(audit=make_audit())
    assert "Class pruning can be told from a model" in shown(run)
    assert "Verdicts on every model" in shown(run)


def test_a_plan_shows_what_it_keeps():
    plan = PrunePlan({"conv1": np.array([0, 2]), "conv2": np.array([1])})
    assert "conv1 2 0, 2" in shown(plan)


def test_styles_stay_inside_the_cell():
    html = show(make_record())
    assert "@scope" in html and ":root" not in html


def test_anything_else_is_refused():
    with pytest.raises(ValueError, match="a dict cannot be shown"):
        show({})


def test_ipython_learns_the_types(monkeypatch):
    known = {}

    def learn(home, name, show):
        known[getattr(importlib.import_module(home), name)] = show

    formatter = types.SimpleNamespace(for_type_by_name=learn)
    display = types.SimpleNamespace(formatters={"text/html": formatter})
    shell = types.SimpleNamespace(display_formatter=display)
    module = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)
    fuprune._show_in_notebooks()
    assert set(known) == {RunRecord, Run, AuditReport, PrunePlan}
    plan = PrunePlan({"conv1": np.array([0, 2])})
    assert known[PrunePlan](plan) == show(plan)


def test_importing_the_package_is_enough_in_ipython(tmp_path):
    """A plan shows itself although nobody imported `fuprune.report`."""
    program = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import fuprune, numpy as np")
plan = shell.run_cell("fuprune.PrunePlan({'conv1': np.array([0, 2])})").result
data, _ = shell.display_formatter.format(plan)
assert "<table" in data["text/html"] and "conv1" in data["text/html"], data
"""
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=environment, check=True, capture_output=True)
