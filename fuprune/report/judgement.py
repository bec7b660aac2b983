"""What an audit's tests say of a model, and which of them could have said anything.

A test has power here if it tells the raw model, which was trained on what is to be
forgotten, from retraining. Everything on a page that counts or orders tests asks this
file.
"""

from fuprune.audit.evidence import (
    CANNOT_TELL,
    FAIL,
    HEADLINE,
    NOT_TOLD_APART,
    PASS,
    QUESTIONS,
    AuditReport,
    Evidence,
    Headline,
)
from fuprune.report import formats, roles

MEMBERSHIP_KINDS = QUESTIONS["membership"]
NO_RESULT = "no result"
_SPELLING = {
    "u": "U-set",
    "r": "R-set",
    "auc": "AUC",
    "tpr": "TPR",
    "kl": "KL divergence",
    "cka": "CKA",
    "jensen": "Jensen",
    "shannon": "Shannon",
}


# In the order of a table, and what each is called there.
COUNTED = {
    FAIL: "failed",
    NOT_TOLD_APART: "not told apart",
    PASS: "passed",
    CANNOT_TELL: "cannot tell",
}


def counts(audit: AuditReport, model: str) -> list[int]:
    """How many tests had each of the verdicts on one model, in order of `COUNTED`."""
    verdicts = [test.verdicts.get(model) for test in audit.tests]
    return [verdicts.count(verdict) for verdict in COUNTED]


def headline(audit: AuditReport, model: str) -> Headline:
    """The verdict on one model over the tests that make the headline."""
    return audit.headlines.get(model, Headline(CANNOT_TELL, 0, [], None))


def failed(audit: AuditReport, model: str) -> list[Evidence]:
    """The headline's tests that a model fails, what says most first."""
    names = headline(audit, model).failed
    tests = [test for test in audit.tests if test.name in names]
    return sorted(tests, key=lambda test: _TELLING.get(test.kind, len(_TELLING)))


_TELLING = {"relearn": 0, "probe": 1} | dict.fromkeys(MEMBERSHIP_KINDS, 2)


def has_power(test: Evidence) -> bool:
    """Whether the test tells the raw model, or any other, from retraining."""
    verdicts = [v for name, v in test.verdicts.items() if name != roles.RANDOM]
    return any(verdict != CANNOT_TELL for verdict in verdicts)


def ordered(audit: AuditReport) -> list[Evidence]:
    """The tests: the headline's first, and those without power last."""
    return sorted(
        audit.tests, key=lambda test: (not has_power(test), test.family != HEADLINE)
    )


def of_kinds(audit: AuditReport | None, kinds: tuple[str, ...]) -> list[Evidence]:
    """The tests of some kinds, those with power first."""
    tests = ordered(audit) if audit is not None else []
    return [test for test in tests if test.kind in kinds]


def powerless_membership(audit: AuditReport | None) -> str:
    """One line for all membership tests if none has power; empty otherwise."""
    tests = of_kinds(audit, MEMBERSHIP_KINDS)
    if not tests or any(has_power(test) for test in tests):
        return ""
    if len(tests) == 1:
        amount = "The membership test cannot tell"
    else:
        amount = f"None of the {len(tests)} membership tests can tell"
    return (
        f"{amount}: even the raw model, which was trained on the forgotten images, "
        "gives an attacker no more than retrained models do."
    )


def value_text(test: Evidence, value: float | None) -> str:
    """Writes a number in the unit of its test."""
    if value is None:
        return NO_RESULT
    return (formats.percent if test.unit == "fraction" else formats.number)(value)


def difference_text(test: Evidence) -> str:
    """Writes the smallest difference that a test can see, where the audit says it."""
    least = test.smallest_difference
    if least is None:
        return formats.MISSING
    if test.unit == "fraction":
        return f"{formats.number(100 * least, 2)} points"
    return formats.number(least, 2)


def interval_text(test: Evidence) -> str:
    """Writes in words where one more retrained model would lie."""
    if test.interval is None:
        return "no interval"
    low, high = test.interval
    if low is None and high is None:
        return "any"
    if low is None:
        return f"at most {value_text(test, high)}"
    if high is None:
        return f"at least {value_text(test, low)}"
    return f"{value_text(test, low)} to {value_text(test, high)}"


def test_words(test: Evidence) -> str:
    """Names a test in words, for the middle of a sentence."""
    return " ".join(_SPELLING.get(part, part) for part in test.name.split("_"))


def test_title(test: Evidence) -> str:
    """Names a test in words."""
    return formats.capital(test_words(test))


def retrained_models(audit: AuditReport) -> int:
    """How many retrained models the audit compares with."""
    return max((len(test.retrained) for test in audit.tests), default=0)
