"""The verdict in words: what passed, what failed, and whether a control did as well.

The sentences are made from the audit's figures alone. A failure is always in the
headline, and a method that is no better than a trivial control is told so.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fuprune.audit.evidence import (
    CANNOT_TELL,
    FAIL,
    NOT_TOLD_APART,
    PASS,
    AuditReport,
    Evidence,
)
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
_RANK = {FAIL: 0, CANNOT_TELL: 1, NOT_TOLD_APART: 2, PASS: 2}


class Verdict(NamedTuple):
    """What stands first on the page."""

    tone: str  # "pass", "fail" or "unknown": the colour of the card
    headline: str
    findings: tuple[tuple[str, str], ...]  # topic and its sentences


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
      A headline and the findings that support it.
    """
    name = main_method(run)
    tone, headline = _headline(run, name)
    topics = [
        ("Fails", _named(run.audit, name, FAIL)),
        ("Cannot tell", _named(run.audit, name, CANNOT_TELL)),
        ("Controls", _control_sentences(run, name)),
        ("Accuracy", _accuracy_sentences(run, name)),
        ("Speed", _speed_sentences(run, name)),
    ]
    if run.audit is None or not run.audit.tests:
        topics.append(("Why", iter([_WHY_AUDIT])))
    findings = [(topic, " ".join(sentences)) for topic, sentences in topics]
    return Verdict(tone, headline, tuple((t, text) for t, text in findings if text))


_WHY_AUDIT = (
    "Low accuracy on a class is weak evidence, since hiding one output gives it too. "
    "Run the audit phase to get a verdict."
)


def _headline(run: Run, name: str | None) -> tuple[str, str]:
    target = forgotten(run)
    if run.audit is None or not run.audit.tests:
        return "unknown", f"Not audited: nothing here shows that {target} is gone."
    if name is None or name not in run.audit.candidates:
        return "unknown", "Only controls were audited, so there is no method to judge."
    counts = tally(run.audit, name)
    method = _capital(formats.method_name(name))
    total = sum(counts)
    tests = formats.plural(total, "test")
    if counts.failed:
        return "fail", (
            f"{method} fails {counts.failed} of {tests}: it can be told from a model "
            f"that never saw {target}."
        )
    if counts.passed == total:
        return "pass", (
            f"{method} passes all {tests}: here it cannot be told from a model that "
            f"never saw {target}."
        )
    if counts.passed:
        return "unknown", (
            f"{method} fails no test and passes {counts.passed}, but "
            f"{counts.undecided} of {tests} cannot tell."
        )
    return "unknown", f"The audit cannot tell whether {method} forgot {target}."


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
    counts = [verdicts.count(kind) for kind in (PASS, FAIL, CANNOT_TELL)]
    counts[0] += verdicts.count(NOT_TOLD_APART)
    return Tally(*counts)


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


def _named(audit: AuditReport | None, name: str | None, kind: str) -> Iterator[str]:
    """Lists the tests with one verdict: failures with figures, the rest by name."""
    if audit is None or name is None:
        return
    tests = [test for test in audit.tests if test.verdicts.get(name) == kind]
    if not tests:
        return
    if kind == FAIL:
        figures = [
            f"{test_words(test)} {shown(test, test.values[name])} "
            f"(retrained: {interval_text(test)})"
            for test in tests
        ]
        yield f"{_capital(formats.listing(figures, 5))}."
        return
    names = formats.listing([test_words(test) for test in tests], 5)
    yield f"{_capital(names)}; each says why below."
    fewest = min(len(test.retrained) for test in audit.tests)
    if fewest < 2:
        yield (
            f"Some tests had only {formats.plural(fewest, 'retrained model')} to "
            "compare with; a spread needs at least two."
        )


def _control_sentences(run: Run, name: str | None) -> Iterator[str]:
    if run.audit is None or name not in run.audit.candidates:
        return
    audit = run.audit
    controls = [c for c in audit.candidates if palette.is_control(c)]
    if not controls:
        yield (
            "None was audited, so this page cannot say whether a trivial change to the "
            "model would have done as well."
        )
        return
    method = formats.method_name(name)
    as_good = [c for c in controls if _no_worse(audit, c, name)]
    winning = [c for c in controls if c not in as_good and _tests_won(audit, c, name)]
    beaten = [c for c in controls if c not in as_good and c not in winning]
    if as_good:
        names = formats.listing([formats.method_name(c) for c in as_good])
        yield (
            f"A trivial control does as well: {names} "
            f"{'has' if len(as_good) == 1 else 'have'} the same or a better verdict "
            f"than {method} in every test."
        )
    for control in winning:
        yield (
            f"{_capital(formats.method_name(control))} does better than {method} in "
            f"{formats.listing(_tests_won(audit, control, name))}."
        )
    if beaten:
        names = formats.listing([formats.method_name(c) for c in beaten])
        yield f"{_capital(method)} does better than {names}, and worse in no test."


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


def _accuracy_sentences(run: Run, name: str | None) -> Iterator[str]:
    raw = raw_stage(run)
    method = method_row(run, name)
    if method is None or method.u_accuracy is None:
        return
    sentence = (
        f"On {forgotten(run)}: {_from(raw and raw.u_accuracy)}"
        f"{formats.percent(method.u_accuracy)}; on the remaining classes: "
        f"{_from(raw and raw.r_accuracy)}{formats.percent(method.r_accuracy)}"
    )
    retrained = retrain_rows(run)
    if retrained:
        sentence += (
            f" (retrained: {_range([r.u_accuracy for r in retrained])} and "
            f"{_range([r.r_accuracy for r in retrained])})"
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


def _range(
    values: Sequence[float | None], shown: Callable[[float], str] = formats.percent
) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return formats.MISSING
    low, high = shown(min(known)), shown(max(known))
    return low if low == high else f"{low} to {high}"


def _from(value: float | None) -> str:
    return "" if value is None else f"{formats.percent(value)} \N{RIGHTWARDS ARROW} "


def _speed_sentences(run: Run, name: str | None) -> Iterator[str]:
    method = method_row(run, name)
    retrained = retrain_rows(run)
    if method is None or run.target_accuracy is None or not method.rounds:
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
        needed = [r.rounds_to_target for r in retrained]
        if not retrained:
            sentence += "; nothing was retrained to compare with"
        elif None in needed:
            most = max(r.rounds or 0 for r in retrained)
            sentence += (
                f"; {'retraining' if len(needed) == 1 else 'not all retraining'} "
                f"{'did not' if len(needed) == 1 else 'did'} "
                f"in {formats.number(most)} rounds"
            )
        else:
            sentence += f", retraining in {_range(needed, formats.number)}"
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
            f"{formats.method_name(row.method)} "
            f"({formats.number(row.rounds_to_target)})"
            for row in as_fast
        ]
        yield f"Controls that needed no more rounds: {formats.listing(figures)}."


def raw_stage(run: Run) -> Stage | None:
    """Finds the model before anything was forgotten."""
    return next((stage for stage in run.stages if stage.stage == palette.RAW), None)


def method_row(run: Run, name: str | None) -> Method | None:
    """Finds the result of one method."""
    return next((row for row in run.methods if row.method == name), None)


def retrain_rows(run: Run) -> list[Method]:
    """Finds the results of training again without the class, one per seed."""
    return [
        row
        for row in run.methods
        if palette.is_retrain(row.method) and row.error is None
    ]


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
