"""What a run found, in plain sentences: gone? at what price? how sure? what next?

Every sentence is made from the record and the audit. A control that does as well as
the method is always named, and price is compared with models that forgot, only.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fuprune import results
from fuprune.audit import record as audits
from fuprune.report import formats, roles
from fuprune.report.formats import percent
from fuprune.report.roles import RETRAIN, Subject
from fuprune.report.tables import measure_words

ENOUGH_SEEDS = 5  # retrained models; fewer leave only large differences visible


class Answer(NamedTuple):
    """One question of the first screen."""

    question: str
    short: str  # the answer in a few words
    details: str  # sentences that support it


class Summary(NamedTuple):
    """What comes first on the page, in the terminal and in a notebook."""

    tone: str  # "good", "bad" or "unsure": the colour of the card
    headline: str
    answers: tuple[Answer, ...]


def summary(subject: Subject) -> Summary:
    """Sums a run up for somebody who reads nothing else."""
    tone, headline, short = _verdict(subject)
    parts = {
        "Gone?": (short, _gone(subject)),
        "At what price?": ("", _price(subject)),
        "How sure?": ("", _sure(subject)),
        "What next?": ("", _next(subject)),
    }
    answers = (
        Answer(question, short, " ".join(sentences))
        for question, (short, sentences) in parts.items()
    )
    kept = tuple(one for one in answers if one.short or one.details)
    return Summary(tone, headline, kept)


def as_text(found: Summary) -> str:
    """The summary for a terminal, one line per question."""
    lines = [" ".join(filter(None, answer)) for answer in found.answers]
    return "\n".join([found.headline, *lines])


def _verdict(subject: Subject) -> tuple[str, str, str]:
    """Tone, headline and the short answer to "Gone?"."""
    record, audit, method = subject.record, subject.audit, subject.tested
    target = roles.forgotten(record)
    if method is None:
        return "unsure", "No method of forgetting has finished yet.", "Unknown."
    named = formats.capital(formats.in_words(method))
    if not subject.rows(method):
        stopped = next((r.error for r in record.methods if r.method == method), None)
        why = f": {stopped}" if stopped else ""
        return "unsure", f"{named} has not finished{why}.", "Unknown."
    if subject.of_classes and subject.has_forgotten(method) is False:
        still = percent(subject.mean(method, "u_accuracy"), 0)
        headline = (
            f"{named} did not forget {target}: it is still right on {still} of it."
        )
        return "bad", headline, f"No: still right on {still} of {target}."
    verdict = audit.verdict(method) if audit else ""
    number = len(audit.headline()) if audit else 0
    if audit is None or not verdict:
        left = audit.left_out.get(method) if audit else None
        why = f"it could not be audited: {left}" if left else "it was not audited"
        headline = f"{named} no longer answers {target}, but {why}."
        if not subject.of_classes:
            headline = f"{named} forgot {target}, as far as accuracy shows; {why}."
        return "unsure", headline, "From the answers."
    if verdict == audits.DIFFERENT:
        found = [measure_words(row.name) for row in audit.differences(method)]
        return (
            "bad",
            f"{named} can be told from retraining without {target}: it differs in "
            f"{len(found)} of {formats.plural(number, 'measure')}.",
            f"Not wholly: {formats.listing(found, 3)} differ from retraining.",
        )
    if verdict == audits.EQUIVALENT:
        return (
            "good",
            f"{named} is equivalent to retraining without {target} in all "
            f"{formats.plural(number, 'measure')}.",
            "Yes, within the audit's margins.",
        )
    if verdict == audits.NO_DIFFERENCE:
        return (
            "unsure",
            f"No difference was found between {formats.in_words(method)} and "
            f"retraining without {target}, in any of "
            f"{formats.plural(number, 'measure')}.",
            "Yes, as far as this audit can see.",
        )
    return (
        "unsure",
        f"This audit cannot tell whether {target} was forgotten: no measure has power.",
        "Unknown.",
    )


def _gone(subject: Subject) -> Iterator[str]:
    method, raw = subject.tested, subject.raw
    found = subject.mean(method, "u_accuracy")
    if method is None or found is None:
        return
    sentence = f"Accuracy on {roles.forgotten(subject.record)}: {percent(found)}"
    if raw is not None and raw.u_accuracy is not None:
        sentence += f", before {percent(raw.u_accuracy)}"
    retrained = subject.mean(RETRAIN, "u_accuracy")
    if retrained is not None:
        sentence += f", retraining {percent(retrained)}"
    yield sentence + "."
    if subject.is_undertrained() and raw is not None:
        yield (
            f"The raw model is undertrained: {percent(raw.r_accuracy, 0)} on the rest, "
            "so that little can be forgotten."
        )
    yield from _as_good(subject)


def _as_good(subject: Subject) -> Iterator[str]:
    """Names the controls that do as well, by accuracy and by the audit."""
    method, audit = subject.tested, subject.audit
    if method is None or not subject.has_forgotten(method):
        return
    equals = [name for name in subject.controls if subject.has_forgotten(name)]
    if audit is not None and audit.verdict(method):
        judged = audit.verdict(method)
        amount = len(audit.differences(method))
        equals = [
            name
            for name in {*equals, *audit.candidates}
            if roles.control(name)
            and audit.verdict(name)
            and (audit.verdict(name) == judged or judged == audits.DIFFERENT)
            and len(audit.differences(name)) <= amount
        ]
        if not equals and subject.controls:
            yield "No control does as well."
    for name in sorted(equals)[:2]:
        yield (
            f"The control {formats.in_words(name)}, which {roles.control(name)}, does "
            "as well."
        )


def _price(subject: Subject) -> Iterator[str]:
    method = subject.tested
    rows = subject.rows(method)
    accuracy = subject.mean(method, "r_accuracy")
    if method is None or accuracy is None:
        return
    kept = "the other classes" if subject.of_classes else "the test images"
    sentence = f"{percent(accuracy)} on {kept}"
    if (retrained := subject.mean(RETRAIN, "r_accuracy")) is not None:
        sentence += f" (retraining {percent(retrained)})"
    images = results.mean(row.images for row in rows) or 0.0
    seconds = results.mean(row.times.total for row in rows) or 0.0
    spent = f"{formats.count(images)} images and {formats.seconds(seconds)}"
    yield f"{sentence}, after {spent}."
    if warning := roles.warning(method):
        yield f"It {warning}."
    if subject.has_forgotten(method) is False:
        yield "Speed is not compared, because it did not forget."
        return
    yield from _speed(subject, method)
    cheaper = [
        f"{formats.in_words(name)} ({percent(subject.mean(name, 'r_accuracy'))})"
        for name in subject.controls
        if subject.has_forgotten(name)
        and (subject.mean(name, "r_accuracy") or 0.0) >= accuracy
        and subject.mean(name, "images") is not None
        and (subject.mean(name, "images") or 0.0) <= images
    ]
    if cheaper:
        listed = formats.listing(cheaper, 3)
        yield f"For no more images, controls keep as much: {listed}."


def _speed(subject: Subject, method: str) -> Iterator[str]:
    if not subject.rows(RETRAIN):
        yield "Nothing was retrained to compare the speed with."
        return
    found = results.reached(subject.rows(method), "retrained")
    base = results.reached(subject.rows(RETRAIN), "retrained")
    if found is None or base is None:
        return
    goal = f"retraining's own {percent(found.accuracy)} on the "
    goal += f"{subject.record.chosen_on or 'test'} split"
    if found.rounds is None or found.late:
        yield f"It does not reach {goal}."
        return
    _, time, images, _ = results.speedups(found, base)
    ratios = [
        f"{formats.speedup(ratio)} in {noun}"
        for ratio, noun in ((images, "images"), (time, "time"))
        if ratio is not None
    ]
    if ratios:
        yield f"Speed-up over retraining, to {goal}: {formats.listing(ratios)}."


def _sure(subject: Subject) -> Iterator[str]:
    audit = subject.audit
    if audit is None:
        yield (
            "Not at all: low accuracy on a class is weak evidence, because hiding one "
            "output gives it, too."
            if subject.of_classes
            else "Not at all: models that never saw these images are right on many of "
            "them, too."
        )
        return
    rows = audit.headline()
    powerless = sum(row.powerless for row in rows)
    yield (
        f"{formats.plural(len(rows), 'measure')} with "
        f"{percent(audit.confidence, 0)} intervals against "
        f"{formats.plural(audit.retrained, 'retrained model')}."
    )
    if powerless:
        yield f"{powerless} of them cannot even tell the raw model apart."
    for name, reason in audit.left_out.items():
        yield f"{formats.capital(formats.in_words(name))} was left out: {reason}."
    if subject.record.chosen_on == "test":
        yield "Targets and stops were chosen on the test split, which flatters them."


def _next(subject: Subject) -> Iterator[str]:
    record, audit, method = subject.record, subject.audit, subject.tested
    retrained = audit.retrained if audit else 0
    if method and subject.of_classes and subject.has_forgotten(method) is False:
        rate = results.setting(record, "prune.rate")
        larger = f" than {rate}" if isinstance(rate, int | float) else ""
        yield f"Try a larger rate{larger}, prune.rate=auto or the method relabel."
    if subject.is_undertrained():
        yield "Train the raw model for longer."
    if not (subject.rows(RETRAIN) or retrained):
        yield "Add retrain to unlearn.methods: everything is measured against it."
    elif audit is None and record.methods:
        yield "Add audit to phases to compare it with retraining."
    elif retrained < ENOUGH_SEEDS and subject.rows(RETRAIN):
        yield (
            f"In a new workdir, set unlearn.retrain_seeds={ENOUGH_SEEDS}: more "
            "retrained models make smaller differences visible."
        )
    if record.methods and not subject.controls:
        named = "mask_logit" if subject.of_classes else "retrain_short"
        yield f"Add the controls {named} and fine_tune_only to unlearn.methods."
    if method and len(subject.rows(method)) == 1:
        yield "Repeat it with other seeds (fine_tune.seeds)."
