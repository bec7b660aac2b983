"""The verdict in words: what passed, what failed, and whether a control did as well.

The sentences are made from the audit's figures alone. A failure is always in the
headline, and a method that is no better than a trivial control is told so.
"""

from typing import NamedTuple

from fuprune.audit.evidence import CANNOT_TELL, FAIL, PASS, AuditReport, Evidence
from fuprune.report import formats, palette
from fuprune.report.run_files import Method, Run, Stage, class_label

_SPELLING = {
    "u": "U-set",
    "r": "R-set",
    "auc": "AUC",
    "tpr": "TPR",
    "kl": "KL divergence",
    "cka": "CKA",
}
_RANK = {FAIL: 0, CANNOT_TELL: 1, PASS: 2}


class Verdict(NamedTuple):
    """What stands first on the page."""

    tone: str  # "pass", "fail" or "unknown": the colour of the card
    headline: str
    sentences: tuple[str, ...]


class Tally(NamedTuple):
    """How many tests a model passed, failed, and could not be judged by."""

    passed: int
    failed: int
    undecided: int


def verdict(run: Run) -> Verdict:
    """Sums a run up for somebody who reads nothing else.

    Args:
      run: The run.

    Returns:
      A headline and the sentences that support it.
    """
    target = forgotten(run)
    if run.audit is None or not run.audit.tests:
        return Verdict(
            "unknown",
            f"Not audited: nothing here shows that {target} is gone.",
            (
                *_accuracy_sentences(run, main_method(run)),
                *_speed_sentences(run, main_method(run)),
                "Low accuracy on a class is weak evidence, since hiding one output gives "
                "it too. Run the audit phase to get a verdict.",
            ),
        )
    name = main_method(run)
    if name is None or name not in run.audit.candidates:
        return Verdict(
            "unknown",
            "Only controls were audited, so there is no method to judge.",
            tuple(_accuracy_sentences(run, name)),
        )
    counts = tally(run.audit, name)
    method = _capital(formats.method_name(name))
    total = sum(counts)
    if counts.failed:
        tone = "fail"
        headline = (
            f"{method} fails {counts.failed} of {formats.plural(total, 'test')}: "
            f"it can be told from a model that never saw {target}."
        )
    elif counts.passed == total:
        tone = "pass"
        headline = (
            f"{method} passes all {formats.plural(total, 'test')}: here it cannot be "
            f"told from a model that never saw {target}."
        )
    elif counts.passed:
        tone = "unknown"
        headline = (
            f"{method} fails no test, but {counts.undecided} of "
            f"{formats.plural(total, 'test')} cannot tell."
        )
    else:
        tone = "unknown"
        headline = f"The audit cannot tell whether {method} forgot {target}."
    return Verdict(
        tone,
        headline,
        (
            *_audit_sentences(run.audit, name),
            *_control_sentences(run, name),
            *_accuracy_sentences(run, name),
            *_speed_sentences(run, name),
        ),
    )


def main_method(run: Run) -> str | None:
    """Picks the method that the page is about."""
    names = list(run.audit.candidates) if run.audit is not None else []
    names += [method.method for method in run.methods]
    return palette.main_method(names)


def forgotten(run: Run) -> str:
    """Names what was to be forgotten: `class cat (3)`, `classes 0 and 9`."""
    if not run.classes:
        return "the class"
    names = [class_label(run, index) for index in run.classes]
    return f"{'class' if len(names) == 1 else 'classes'} {formats.listing(names)}"


def tally(audit: AuditReport, name: str) -> Tally:
    """Counts the verdicts of one model."""
    verdicts = [test.verdicts[name] for test in audit.tests if name in test.verdicts]
    return Tally(*(verdicts.count(kind) for kind in (PASS, FAIL, CANNOT_TELL)))


def shown(test: Evidence, value: float | None) -> str:
    """Writes a figure in the unit of its test."""
    if test.unit == "fraction":
        return formats.percent(value)
    return formats.number(value)


def interval_text(test: Evidence) -> str:
    """Writes the retrained interval in words."""
    if test.interval is None:
        return "no interval"
    low, high = test.interval
    if low is None and high is None:
        return "any"
    if low is None:
        return f"at most {shown(test, high)}"
    if high is None:
        return f"at least {shown(test, low)}"
    return f"{shown(test, low)} to {shown(test, high)}"


def test_title(test: Evidence) -> str:
    """Names a test in words."""
    return _capital(test_words(test))


def test_words(test: Evidence) -> str:
    """Names a test in words, for the middle of a sentence."""
    parts = [_SPELLING.get(part, part) for part in test.name.split("_")]
    return formats.shorten(" ".join(parts), 60)


def _audit_sentences(audit: AuditReport, name: str):
    for kind, opening in ((FAIL, "Fails"), (CANNOT_TELL, "Cannot tell")):
        named = [test for test in audit.tests if test.verdicts.get(name) == kind]
        if not named:
            continue
        figures = [
            f"{test_words(test)} {shown(test, test.values[name])} "
            f"(retrained: {interval_text(test)})"
            for test in named
        ]
        yield f"{opening}: {formats.listing(figures, 8)}."
    fewest = min((len(test.retrained) for test in audit.tests), default=0)
    if fewest < 2:
        yield (
            f"Only {formats.plural(fewest, 'retrained model')} stood for comparison in "
            "some tests; a spread needs at least two."
        )


def _control_sentences(run: Run, name: str):
    assert run.audit is not None
    controls = [c for c in run.audit.candidates if palette.is_control(c)]
    if not controls:
        yield (
            "No control was audited, so this page cannot say whether a trivial change "
            "to the model would have done as well."
        )
        return
    as_good = [c for c in controls if _no_worse(run.audit, c, name)]
    method = formats.method_name(name)
    for control in as_good:
        yield (
            f"A trivial control does as well: {formats.method_name(control)} has the "
            f"same or a better verdict than {method} in every test."
        )
    for control in controls:
        if control in as_good:
            continue
        better = _tests_won(run.audit, control, name)
        if better:
            yield (
                f"The control {formats.method_name(control)} does better than {method} "
                f"in {formats.listing(better)}."
            )
    beaten = [
        formats.method_name(c)
        for c in controls
        if c not in as_good and not _tests_won(run.audit, c, name)
    ]
    if beaten:
        yield (
            f"{_capital(method)} has better verdicts than "
            f"{formats.listing(beaten)}, and worse ones in no test."
        )


def _no_worse(audit: AuditReport, first: str, second: str) -> bool:
    both = [t for t in audit.tests if first in t.verdicts and second in t.verdicts]
    return bool(both) and all(
        _RANK[t.verdicts[first]] >= _RANK[t.verdicts[second]] for t in both
    )


def _tests_won(audit: AuditReport, first: str, second: str) -> list[str]:
    return [
        test_words(t)
        for t in audit.tests
        if first in t.verdicts
        and second in t.verdicts
        and _RANK[t.verdicts[first]] > _RANK[t.verdicts[second]]
    ]


def _accuracy_sentences(run: Run, name: str | None):
    raw = raw_stage(run)
    method = method_row(run, name)
    if method is None or method.u_accuracy is None:
        return
    sentence = (
        f"Accuracy on {forgotten(run)}: {_from(raw and raw.u_accuracy)}"
        f"{formats.percent(method.u_accuracy)}; on the remaining classes: "
        f"{_from(raw and raw.r_accuracy)}{formats.percent(method.r_accuracy)}"
    )
    retrained = retrain_row(run)
    if retrained is not None:
        sentence += (
            f" (retrained: {formats.percent(retrained.u_accuracy)} and "
            f"{formats.percent(retrained.r_accuracy)})"
        )
    yield sentence + "."
    equal = [
        formats.method_name(row.method)
        for row in run.methods
        if palette.is_control(row.method)
        and row.u_accuracy is not None
        and row.u_accuracy <= method.u_accuracy
    ]
    if equal:
        yield (
            f"That alone proves little: {formats.listing(equal)} "
            f"{'brings' if len(equal) == 1 else 'bring'} accuracy on the class as low."
        )


def _from(value: float | None) -> str:
    return "" if value is None else f"{formats.percent(value)} \N{RIGHTWARDS ARROW} "


def _speed_sentences(run: Run, name: str | None):
    method = method_row(run, name)
    retrained = retrain_row(run)
    if method is None or run.target_accuracy is None:
        return
    goal = f"{formats.percent(run.target_accuracy)} on the remaining classes"
    words = _capital(formats.method_name(method.method))
    if method.rounds_to_target is None:
        yield (
            f"{words} did not reach the target of {goal} in "
            f"{formats.number(method.rounds)} rounds."
        )
    else:
        sentence = (
            f"{words} reached {goal} in "
            f"{formats.plural(int(method.rounds_to_target), 'round')}"
        )
        if retrained is None:
            sentence += "; nothing was retrained to compare with"
        elif retrained.rounds_to_target is None:
            sentence += (
                f"; retraining did not in {formats.number(retrained.rounds)} rounds"
            )
        else:
            sentence += f", retraining in {formats.number(retrained.rounds_to_target)}"
            if method.speedup is not None:
                sentence += f" (speed-up {formats.times(method.speedup)})"
        yield sentence + "."
    as_fast = [
        row
        for row in run.methods
        if palette.is_control(row.method)
        and row.error is None
        and row.rounds_to_target is not None
        and (
            method.rounds_to_target is None
            or row.rounds_to_target <= method.rounds_to_target
        )
    ]
    if as_fast:
        figures = [
            f"{formats.method_name(row.method)} ({formats.number(row.rounds_to_target)})"
            for row in as_fast
        ]
        yield f"Controls that needed no more rounds: {formats.listing(figures)}."


def raw_stage(run: Run) -> Stage | None:
    """Finds the model before anything was forgotten."""
    return next((stage for stage in run.stages if stage.stage == palette.RAW), None)


def method_row(run: Run, name: str | None) -> Method | None:
    """Finds the result of one method."""
    return next((row for row in run.methods if row.method == name), None)


def retrain_row(run: Run) -> Method | None:
    """Finds the result of training again without the class."""
    return next((row for row in run.methods if palette.is_retrain(row.method)), None)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
