"""Objects in a notebook: each shows what a person wants to see first."""

import numpy as np
import pytest

from fuprune.report import show
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
