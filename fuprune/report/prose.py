"""The first screen in plain sentences: gone? at what price? how sure? what next?

Every sentence is made from the record and the audit and carries its condition (data,
models, seeds). A method that does no better than a trivial control is said to.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fuprune import results
from fuprune.audit.evidence import (
    CALIBRATED_CONFIDENCE,
    CANNOT_TELL,
    FAIL,
    NOT_TOLD_APART,
    PASS,
    AuditReport,
)
from fuprune.report import formats, judgement, roles
from fuprune.report.judgement import interval_text, test_words, value_text
from fuprune.report.roles import Topic
from fuprune.results import MethodRow, RunRecord

RECOMMENDED_SEEDS = 5  # retrained models; fewer leave small differences unseen
_RANK = {FAIL: 0, CANNOT_TELL: 1}


class FirstScreen(NamedTuple):
    """What comes first on the page, in the terminal and in a notebook."""

    tone: str  # "pass", "fail" or "unknown": the colour of the card
    headline: str
    answers: tuple["Answer", ...]


class Answer(NamedTuple):
    """One question of the first screen."""

    question: str
    short: str  # the answer in a few words
    details: str  # sentences that support it


def first_screen(record: RunRecord, audit: AuditReport | None) -> FirstScreen:
    """Sums a run up for somebody who reads nothing else."""
    # An audit without tests has found nothing.
    topic = roles.topic_of(record, audit if audit is not None and audit.tests else None)
    verdict = _judged(topic)
    answers = {
        "Gone?": [verdict.short, *_gone(topic)],
        "At what price?": _price(record, topic.tested),
        "How sure?": _sure(topic),
        "What next?": ["", *_next(topic)],
    }
    written = [
        Answer(question, short, " ".join(details))
        for question, (short, *details) in answers.items()
    ]
    kept = tuple(answer for answer in written if answer.short or answer.details)
    return FirstScreen(verdict.tone, verdict.headline, kept)


def as_text(screen: FirstScreen) -> str:
    """The first screen for a terminal."""
    lines = [" ".join(filter(None, answer)) for answer in screen.answers]
    return "\n".join([screen.headline, *lines])


class _Verdict(NamedTuple):
    tone: str
    headline: str
    short: str  # whether it is gone


_VERDICTS = {
    FAIL: _Verdict(
        "fail",
        "{} can be told from a model that never saw {target}: it fails {failed} of "
        "{tests}.",
        "Not shown: it differs from retraining.",
    ),
    PASS: _Verdict(
        "pass",
        "{} passes all {tests}: it is as close to models that never saw {target} as "
        "the audit's margin asks.",
        "Yes, within the audit's margin.",
    ),
    NOT_TOLD_APART: _Verdict(
        "unknown",
        "{} is not told apart, at this power, from models that never saw {target}: it "
        "fails none of {tests}.",
        "No trace was found.",
    ),
    CANNOT_TELL: _Verdict(
        "unknown",
        "This audit cannot tell whether {method} forgot {target}.",
        "Unknown.",
    ),
}


def _judged(topic: Topic) -> _Verdict:
    """The colour, the headline and the short answer of a run."""
    target = roles.forgotten_things(topic.record, named=True)
    if topic.audit is None:
        missing = f"Not audited: nothing here shows that the model forgot {target}."
        return _Verdict("unknown", missing, "Unknown.")
    if topic.judged is None:
        missing = "Only controls were audited, so there is no method to judge."
        for name, reason in _left_out(topic.audit):
            missing = reason if roles.family(name) == topic.tested else missing
        return _Verdict("unknown", missing, "Unknown.")
    found = judgement.headline(topic.audit, topic.judged)
    verdict, method = _VERDICTS[found.verdict], formats.in_words(topic.judged)
    headline = verdict.headline.format(
        formats.capital(method),
        method=method,
        target=target,
        failed=len(found.failed),
        tests=formats.plural(found.tests, "headline test"),
    )
    return verdict._replace(headline=headline)


def _left_out(audit: AuditReport) -> list[tuple[str, str]]:
    """The models that an audit could not judge, each with a sentence that says why."""
    return [
        (name, f"{formats.capital(formats.in_words(name))} could not be judged: {why}.")
        for name, why in audit.detail.get("left_out", {}).items()
    ]


def _gone(topic: Topic) -> Iterator[str]:
    record, audit, judged = topic.record, topic.audit, topic.judged
    rows = results.rows_of(record, topic.tested)
    lows = results.known([row.u_accuracy for row in rows])
    if lows:
        where = f"On {roles.u_images(record)}"
        yield _accuracy_sentence(record, where, rows, "u_accuracy")
        yield from _as_good(record, lows)
    if audit is None or judged is None:
        return
    failed = judgement.failed(audit, judged)
    if failed:
        found = [
            f"{test_words(test)} {value_text(test, test.values[judged])} "
            f"(retrained: {interval_text(test)})"
            for test in failed
        ]
        yield f"It fails {formats.listing(found, 4)}."
    counted = judgement.headline(audit, judged).failed
    further = [
        test_words(test)
        for test in audit.tests
        if test.verdicts.get(judged) == FAIL and test.name not in counted
    ]
    if further:
        yield f"Outside the headline it fails {formats.listing(further, 4)}."
    yield from _control_sentences(audit, judged)


def _as_good(record: RunRecord, values: Sequence[float]) -> Iterator[str]:
    """Says so if a control does as well as these U-set accuracies.

    A forgotten class should not be answered at all; the forgotten images of clients,
    and single ones, should be answered as retraining answers them.
    """
    goal = 0.0
    if record.request.kind != "classes":
        goal = _mean(results.rows_of(record, roles.RETRAIN), "u_accuracy")
    if goal is None:
        return
    farthest = max(abs(value - goal) for value in values)
    for control, rows in _controls(record).items():
        found = _mean(rows, "u_accuracy")
        if found is not None and abs(found - goal) <= farthest:
            name, does = formats.in_words(control), roles.CONTROLS[control]
            reached = "reaches it, too" if not goal else "is as close to retraining"
            yield f"That alone shows little: {name}, which {does}, {reached}."
            return


def _accuracy_sentence(
    record: RunRecord, where: str, rows: Sequence[MethodRow], field: str
) -> str:
    method = formats.in_words(rows[0].method)
    sentence = f"{where}, {method} is right on {_seeds(rows, field)}"
    raw = results.raw_stage(record)
    value = getattr(raw, field) if raw is not None else None
    if value is not None:
        sentence += f", the raw model on {formats.percent(value)}"
    retrained = results.rows_of(record, roles.RETRAIN)
    if _mean(retrained, field) is not None:
        sentence += f", retraining on {_seeds(retrained, field)}"
    return sentence + "."


def _seeds(rows: Sequence[MethodRow], field: str) -> str:
    values = results.known([getattr(row, field) for row in rows])
    return f"{formats.spread(values)} ({formats.plural(len(values), 'seed')})"


def _mean(rows: Sequence[MethodRow], field: str) -> float | None:
    return results.mean(getattr(row, field) for row in rows)


def _controls(record: RunRecord) -> dict[str, list[MethodRow]]:
    """The controls of a run with their seeds, the most trivial first."""
    found = {control: results.rows_of(record, control) for control in roles.CONTROLS}
    return {control: rows for control, rows in found.items() if rows}


def _control_sentences(audit: AuditReport, tested: str) -> Iterator[str]:
    controls = [name for name in audit.candidates if roles.control_of(name)]
    lost = {name: _tests_lost(audit, tested, name) for name in controls}
    won = {name: _tests_lost(audit, name, tested) for name in controls}

    def listed(names: Sequence[str]) -> str:
        has = "has" if len(names) == 1 else "have"
        return f"{formats.listing([formats.in_words(name) for name in names])} {has}"

    better = [name for name in controls if lost[name] and not won[name]]
    if better:
        yield (
            f"It loses to trivial controls: {listed(better)} the same or a better "
            "verdict in every test."
        )
    equal = [name for name in controls if not lost[name] and not won[name]]
    if equal:
        yield (
            f"It does no better than a trivial control: {listed(equal)} the same "
            "verdicts."
        )
    for name in (name for name in controls if lost[name] and won[name]):
        named, tests = formats.capital(formats.in_words(name)), lost[name]
        yield f"{named} does better in {formats.listing(tests, 3)}."
    beaten = [formats.in_words(n) for n in controls if won[n] and not lost[n]]
    if beaten:
        yield f"It does better than {formats.listing(beaten)}, and worse in no test."


def _tests_lost(audit: AuditReport, loser: str, winner: str) -> list[str]:
    """The tests in which one model has a worse verdict than another.

    A model without a result, as a cut one whose weights cannot be compared, loses none.
    """
    return [
        test_words(test)
        for test in audit.tests
        if None not in (test.values.get(loser), test.values.get(winner))
        and _RANK.get(test.verdicts[loser], 2) < _RANK.get(test.verdicts[winner], 2)
    ]


def _price(record: RunRecord, tested: str | None) -> Iterator[str]:
    """The short answer, then the details."""
    rows = results.rows_of(record, tested)
    accuracy = _mean(rows, "r_accuracy")
    retrained = _mean(results.rows_of(record, roles.RETRAIN), "r_accuracy")
    if accuracy is None:
        yield ""
        return
    points = 100 * (accuracy - (retrained or 0.0))
    amount = f"{abs(points):.1f} points {'less' if points < 0 else 'more'} accuracy"
    if retrained is None:
        yield ""
    elif abs(points) < 0.05:
        yield f"As accurate on {roles.r_images(record)} as retraining."
    else:
        yield f"{amount} on {roles.r_images(record)} than retraining."
    where = roles.r_images(record, every=True)
    yield _accuracy_sentence(record, f"On {where}", rows, "r_accuracy")
    yield from _speed_sentences(record, rows)
    warning = roles.warning(rows[0].method)
    if warning:
        yield f"It {warning}."
    rounds = max(row.rounds for row in rows)
    better = []
    for control, found in _controls(record).items():
        kept = _mean(found, "r_accuracy")
        spent = max(row.rounds for row in found)
        if kept is not None and kept > accuracy and spent <= rounds:
            amount = formats.plural(spent, "round") if spent else "no rounds"
            what = f"({formats.percent(kept)}, {amount})"
            better.append(f"{formats.in_words(control)} {what}")
    if better:
        yield (
            "On price it loses to trivial controls, which keep more accuracy for no "
            f"more rounds: {formats.listing(better, 4)}."
        )


def _speed_sentences(record: RunRecord, rows: Sequence[MethodRow]) -> Iterator[str]:
    retrained = results.reached(results.rows_of(record, roles.RETRAIN), "retrained")
    found = results.reached(rows, "retrained")
    if not results.rows_of(record, roles.RETRAIN):
        yield "This run retrained nothing, so there is no speed to compare with."
    if found is None:
        return
    accuracy = formats.percent(found.accuracy)
    goal = f"retraining's own {accuracy} on the {record.chosen_on or 'test'} split"
    if found.rounds is None or found.late:
        budget = max(row.rounds for row in rows)
        within = f" within its {formats.plural(budget, 'round')}" if budget else ""
        some = f" in {found.late} of {found.seeds} seeds"
        late = some if found.late < found.seeds else ""
        yield f"It does not reach {goal}{within}{late}."
        return
    own = sum(row.times.own for row in rows) / len(rows)
    sentence = (
        f"It reaches {goal} after {_rounds(found.rounds)} rounds and "
        f"{formats.seconds(found.seconds)} ({formats.seconds(own)} of it its own work)"
    )
    ratios = results.speedups(found, retrained)
    if retrained is not None and retrained.rounds is not None:
        sentence += (
            f"; retraining needs {_rounds(retrained.rounds)} rounds and "
            f"{formats.seconds(retrained.seconds)}"
        )
    if ratios[0] is not None:
        sentence += f": {_ratio(ratios[0], 'fewer', 'as many')} rounds"
        if ratios[1] is not None:
            sentence += f", {_ratio(ratios[1], 'less', 'as much')} time"
    yield sentence + "."
    sooner = []
    for control, others in _controls(record).items():
        other = results.reached(others, "retrained")
        if other is None or other.rounds is None or other.late:
            continue
        if other.rounds <= found.rounds:
            sooner.append(f"{formats.in_words(control)} ({_rounds(other.rounds)})")
    if sooner:
        yield f"Controls that need no more rounds: {formats.listing(sooner, 4)}."


def _rounds(mean: float) -> str:
    return formats.number(round(mean, 1))


def _ratio(speedup: float, less: str, more: str) -> str:
    """A speed-up as `10× fewer`, `2× as many` where there is none, or `as many`."""
    if float(f"{speedup:.3g}") == 1.0:
        return more
    if speedup > 1:
        return f"{formats.times(speedup)} {less}"
    return f"{formats.times(1 / speedup)} {more}"


def _sure(topic: Topic) -> Iterator[str]:
    """The short answer, then the details."""
    record, audit = topic.record, topic.audit
    if audit is None:
        yield "Not at all."
        yield (
            "Low accuracy on a class is weak evidence, because hiding one output gives "
            "it, too."
            if record.request.kind == "classes"
            else "Accuracy on the forgotten images is weak evidence, because models "
            "that never saw them are right on many of them, too."
        )
        return
    able = sum(judgement.has_power(test) for test in audit.tests)
    tests = formats.plural(len(audit.tests), "test")
    yield f"{able} of {tests} could see a difference."
    seeds = judgement.retrained_models(audit)
    known = audit.settings.get
    images = known("forgotten_test_images")
    on = f" on {images} forgotten test images" if images else ""
    if record.request.kind != "classes":
        on = (
            f" on {known('forgotten_training_images')} forgotten images and "
            f"{known('test_images')} of the same classes that nobody trained on"
        )
    yield f"They compare with {formats.plural(seeds, 'retrained model')}{on}."
    confidence = known("confidence", 0.95)
    error = formats.percent(1 - confidence, 0)
    bound = "at most" if confidence <= CALIBRATED_CONFIDENCE else "about"
    yield (
        "The headline's tests are judged together: a retrained model would fail any of "
        f"them with {bound} {error} probability; docs/audit.md has the simulations."
    )
    yield from (sentence for _, sentence in _left_out(audit))
    hidden = audit.headlines.get("mask_logit")
    if hidden is not None and hidden.verdict != FAIL:
        yield (
            "They do not tell mask logit apart either, which forgets nothing: passing "
            "them shows little here."
        )
    powerless = judgement.powerless_membership(audit)
    if powerless:
        yield powerless
    if seeds < RECOMMENDED_SEEDS:
        yield "So few retrained models make only large differences visible."
    if record.chosen_on == "test":
        yield "Targets and stops were chosen on the test split, which flatters them."


def _next(topic: Topic) -> Iterator[str]:
    record, audit, judged = topic.record, topic.audit, topic.judged
    if audit is None:
        yield "Run the audit phase (--config.phases=audit,report) to get a verdict."
    # An audit may compare with models that other runs retrained (audit.reference).
    references = judgement.retrained_models(audit) if audit is not None else 0
    own = results.rows_of(record, roles.RETRAIN)
    if not (own or references or results.setting(record, "audit.reference")):
        yield "Add retrain to unlearn.methods: everything is measured against it."
    elif audit is not None and references < RECOMMENDED_SEEDS:
        more = f"Set --config.unlearn.retrain_seeds={RECOMMENDED_SEEDS}"
        if not own:
            more = "Name more runs with retrained models in audit.reference"
        yield f"{more}: more retrained models make smaller differences visible."
    if record.methods and not _controls(record):
        named = "mask_logit" if record.request.kind == "classes" else "retrain_short"
        yield (
            f"Add controls ({named}, fine_tune_only) to unlearn.methods: without "
            "them nobody knows whether a trivial change would do as well."
        )
    if topic.tested and len(results.rows_of(record, topic.tested)) == 1:
        yield "Repeat it with other seeds before trusting the last digit."
    if audit is not None and judged is not None:
        if judgement.headline(audit, judged).verdict == FAIL:
            yield (
                f"Do not call {roles.forgotten_things(record, named=True)} forgotten: "
                "choose a stronger method (docs/methods.md) or retrain."
            )
