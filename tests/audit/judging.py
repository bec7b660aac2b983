"""Drafts of tests, and what is judged from them."""

from fuprune.audit.spread import Draft, interval, make_null
from fuprune.audit.verdict import MARGIN, settle

# For checks against Student's t itself, without the allowance for skewed spreads.
EXACT = {"allowance": 1.0, "positive_control": None}


def draft(retrained, values=None, **options):
    options = {"higher_is": "two_sided", **EXACT, **options}
    return Draft(
        options.pop("name", "number"),
        values or {},
        retrained,
        kind="k",
        question="q?",
        **options,
    )


def judged(values, retrained, *, confidence=0.95, margin=MARGIN, **options):
    """One test that stands alone."""
    alone = draft(retrained, values, **{"higher_is": "worse", **options})
    return settle([alone], confidence=confidence, margin=margin)[0]


def interval_of(retrained, confidence=0.95, **options):
    alone = draft(retrained, **options)
    return interval(make_null(alone), 1 - confidence)
