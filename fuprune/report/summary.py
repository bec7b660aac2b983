"""What a run found, in plain sentences: gone? at what price? by the audit? what next?

Every sentence is made from the record and the audit. A control always stands beside
the method, price is compared with models that forgot only, and the advice is a command.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from fuprune import results
from fuprune.audit import record as audits
from fuprune.report import formats, subject
from fuprune.report.formats import in_words, percent
from fuprune.report.subject import RETRAIN, Subject
from fuprune.report.tables import measure_words

ENOUGH_SEEDS = 5  # retrained models; fewer leave only large differences visible
_RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)


class Answer(NamedTuple):
    """One question of the first screen."""

    question: str
    text: str


class Summary(NamedTuple):
    """What comes first on the page, in the terminal and in a notebook."""

    tone: str  # "good", "bad" or "unsure": the colour of the card
    headline: str
    answers: tuple[Answer, ...]
    command: str  # the advice as a command; "" if a program made the run


def summary(about: Subject) -> Summary:
    """Sums a run up for somebody who reads nothing else."""
    tone, headline = _verdict(about)
    advice, settings = _advice(about)
    answers = {
        "Gone?": _gone(about),
        "At what price?": _price(about),
        "The audit?": _audited(about),
        "And a control?": _controls(about),
        "What next?": iter([advice]),
    }
    found = (Answer(name, " ".join(text)) for name, text in answers.items())
    kept = tuple(answer for answer in found if answer.text)
    return Summary(tone, headline, kept, _command(about, settings))


def closing_lines(found: Summary, written: str) -> str:
    """The last lines in a terminal: one per question, where the report is, advice."""
    *known, advice = found.answers
    lines = [" ".join(answer) for answer in known]
    if not known:
        lines = [found.headline]
    last = f"{' '.join(advice)} {found.command}".strip()
    return "\n".join([*lines, f"Written: {written}", last])


def _verdict(about: Subject) -> tuple[str, str]:
    """Tone and headline."""
    audit, method = about.audit, about.tested
    target = subject.forgotten(about.record)
    if method is None:
        return "unsure", "No method of forgetting has finished yet."
    named = formats.capital(in_words(method))
    if not about.rows(method):
        errors = [r.error for r in about.record.methods if r.method == method]
        why = f": {errors[0]}" if errors and errors[0] else ""
        return "unsure", f"{named} has not finished{why}."
    if about.of_classes and about.has_forgotten(method) is False:
        return "bad", f"{named} did not forget {target}."
    verdict = audit.verdict(method) if audit else ""
    if audit is None or not verdict:
        left = audit.left_out.get(method) if audit else None
        why = f"it could not be audited: {left}" if left else "it was not audited"
        if about.of_classes:
            return "unsure", f"{named} no longer answers {target}, but {why}."
        return "unsure", f"{named} forgot {target}, as far as accuracy shows; {why}."
    measures = formats.plural(len(audit.headline()), "measure")
    other = f"retraining without {target}"
    if verdict == audits.DIFFERENT:
        number = len(audit.differences(method))
        return "bad", f"{named} differs from {other} in {number} of {measures}."
    if verdict == audits.EQUIVALENT:
        return "good", f"{named} is equivalent to {other} in all {measures}."
    if verdict == audits.NO_DIFFERENCE:
        return (
            "unsure",
            f"No difference was found between {in_words(method)} and {other} in "
            f"{measures}.",
        )
    return (
        "unsure",
        f"The answers changed, but this audit cannot tell whether {target} was "
        "forgotten: no measure has power.",
    )


def _gone(about: Subject) -> Iterator[str]:
    method, raw = about.tested, about.raw
    found = about.mean(method, "u_accuracy")
    if method is None or found is None:
        return
    target, forgot = subject.forgotten(about.record), about.has_forgotten(method)
    still = percent(found, 0 if found > 0.1 else 1)
    compared = []
    if raw is not None and raw.u_accuracy is not None:
        compared.append(f"before {percent(raw.u_accuracy)}")
    if (retrained := about.mean(RETRAIN, "u_accuracy")) is not None:
        compared.append(f"retraining {percent(retrained)}")
    beside = f" ({', '.join(compared)})" if compared else ""
    short = "" if forgot is None else "Yes: " if forgot else "No: still "
    right = "right" if short else "Right"
    yield f"{short}{right} on {still} of {target}{beside}."
    yield from _chosen_rates(about, method)
    if about.is_undertrained() and raw is not None:
        yield (
            f"The raw model is undertrained: {percent(raw.r_accuracy, 0)} on the rest, "
            "so that little can be forgotten."
        )


def _chosen_rates(about: Subject, method: str) -> Iterator[str]:
    """What `prune.rate=auto` chose for each class, and why."""
    rows = about.rows(method)
    chosen = rows[0].notes.get("auto_rate", {}) if rows else {}
    for target, tried in chosen.items():
        last = tried[-1]
        smaller = [one for one in tried if one["rate"] < last["rate"]]
        why = ""
        if smaller:
            nearest = max(smaller, key=lambda one: one["rate"])
            left = percent(nearest["forgotten"], 0)
            why = f"; {nearest['rate']:g} would have left {left}"
        yield (
            f"By the clients' answers to {len(tried)} cuts, R is {last['rate']:g} for "
            f"class {target}: right on {percent(last['forgotten'], 0)} of it with the "
            f"cut alone, and {percent(last['others'], 0)} of the others{why}."
        )


def _price(about: Subject) -> Iterator[str]:
    method, accuracy = about.tested, about.mean(about.tested, "r_accuracy")
    if method is None or accuracy is None:
        return
    kept = "the other classes" if about.of_classes else "the test images"
    yield f"{percent(accuracy)} on {kept} after {_spent(about, method)}"
    base = about.mean(RETRAIN, "r_accuracy")
    if base is None:
        yield "(nothing was retrained)."
    else:
        yield f"(retraining: {percent(base)} after {_spent(about, RETRAIN)})."
    if warning := subject.warning(method):
        yield f"It {warning}."
    if about.has_forgotten(method) is False:
        yield "Speed is not compared, because it did not forget."
    else:
        yield from _speed(about, method)


def _spent(about: Subject, method: str) -> str:
    """Rounds and seconds of a method, the mean over seeds."""
    rows = about.rows(method)
    rounds = results.mean(row.rounds for row in rows) or 0.0
    text = f"{formats.number(round(rounds))} rounds"
    clocks = [about.run.clocks.get(f"unlearn/{row.name}") for row in rows]
    steady = results.mean(clock.steady for clock in clocks if clock)
    if steady:
        return f"{text}, {formats.seconds(steady)} without compilation"
    total = results.mean(row.times.total for row in rows)
    return f"{text}, {formats.seconds(total)}" if total else text


def _speed(about: Subject, method: str) -> Iterator[str]:
    found, base = (
        results.reached(about.rows(m), "retrained") for m in (method, RETRAIN)
    )
    if found is None or base is None:
        return
    goal = f"retraining's own {percent(found.accuracy)}"
    goal += f" on the {about.record.chosen_on or 'test'} split"
    if found.rounds is None or found.late:
        yield f"It does not reach {goal}."
    elif (ratio := results.speedups(found, base)[2]) is not None:
        written = formats.speedup(ratio)
        yield f"Speed-up over retraining, to {goal}: {written} in images."


def _audited(about: Subject) -> Iterator[str]:
    audit, method = about.audit, about.tested
    if audit is None:
        if about.rows(method):
            yield "None, and low accuracy alone is weak evidence."
        return
    rows = audit.headline()
    differing = [measure_words(row.name) for row in audit.differences(method or "")]
    powerless = sum(row.powerless for row in rows)
    found = f"{len(differing)} of {formats.plural(len(rows), 'measure')} differ"
    named = f" ({formats.listing(differing, 3)})" if differing else ""
    yield (
        f"{found} from {formats.plural(audit.retrained, 'retrained model')}{named}, "
        f"with {percent(audit.confidence, 0)} intervals."
    )
    if powerless:
        yield f"{powerless} cannot even tell the raw model apart."
    for name, reason in audit.left_out.items():
        yield f"{formats.capital(in_words(name))} was left out: {reason}."
    if about.record.chosen_on == "test":
        yield "Targets and stops were chosen on the test split, which flatters them."


def _controls(about: Subject) -> Iterator[str]:
    """What controls look like beside the method, those that do as well first."""
    method, audit = about.tested, about.audit
    if method is None or not about.rows(method):
        return
    own = len(audit.differences(method)) if audit else 0
    found = []
    for name in about.controls:
        shown = f"{in_words(name)}, which {subject.control(name)},"
        kept = f"keeps {percent(about.mean(name, 'r_accuracy'))} of the rest"
        differing = len(audit.differences(name)) if audit else 0
        if about.has_forgotten(name) is False:
            still = percent(about.mean(name, "u_accuracy"), 0)
            found.append((2, f"{shown} is still right on {still}."))
        elif audit is None or not audit.verdict(name):
            found.append((1, f"{shown} {kept} and does as well by its answers."))
        elif differing > own:
            verb = "differs" if differing == 1 else "differ"
            many = formats.plural(differing, "measure")
            found.append((1, f"{shown} {kept}, but {many} {verb}."))
        else:
            found.append((0, f"{shown} {kept} and does as well in the audit."))
    yield from (formats.capital(text) for _, text in sorted(found)[:2])


def _advice(about: Subject) -> tuple[str, dict[str, Any]]:
    """What to try next, and the settings for it."""
    record, audit, method = about.record, about.audit, about.tested
    units = results.setting(record, "unlearn.methods") or ""
    listed = ",".join(units) if isinstance(units, list) else units
    retrained = audit.retrained if audit else len(about.rows(RETRAIN))

    def adding(*names: str) -> dict[str, Any]:
        return {"unlearn.methods": ",".join(filter(None, (listed, *names)))}

    if about.is_undertrained():
        rounds = results.setting(record, "train.rounds") or 100
        longer = {"train.rounds": 2 * rounds, "model.load": ""}
        return "Train the raw model for longer:", longer
    if method and about.of_classes and about.has_forgotten(method) is False:
        rate = results.setting(record, "prune.rate")
        larger = [one for one in _RATES if isinstance(rate, float) and one > rate]
        if method == subject.PREFERRED and larger:
            text = f"Try rate {larger[0]}, prune.rate=auto or the method relabel:"
            return text, {"prune.rate": larger[0]}
        return "Try the method relabel:", adding("relabel")
    if not retrained:
        return "Retrain, too: all is measured against it:", adding(RETRAIN)
    if audit is None and record.methods:
        return "Compare it with retraining:", {
            "phases": "pretrain,unlearn,audit,report"
        }
    if retrained < ENOUGH_SEEDS and about.rows(RETRAIN):
        more = {"unlearn.retrain_seeds": ENOUGH_SEEDS}
        return "More retrained models show smaller differences:", more
    if record.methods and not about.controls:
        named = "mask_logit" if about.of_classes else "retrain_short"
        return "Set controls beside it:", adding(named, "fine_tune_only")
    if method and len(about.rows(method)) == 1:
        return "Repeat it with other seeds:", {"fine_tune.seeds": 3}
    others = [n for n in range(len(record.class_names)) if n not in record.classes]
    if about.of_classes and others:
        # Models that were retrained elsewhere lack the present class, not that one.
        again = {} if about.rows(RETRAIN) and RETRAIN in listed else adding(RETRAIN)
        other = {"unlearn.classes": others[0], "audit.reference": ""}
        return "Forget another class:", other | again
    return "Repeat it with another seed:", {"seed": 1, "model.load": ""}


def _command(about: Subject, settings: dict[str, Any]) -> str:
    """The run's command with other settings, in a workdir of its own."""
    given = about.record.provenance.command
    if not given:
        changed = ", ".join(f"{key}={value}" for key, value in settings.items())
        return f"set {changed} in the config."
    flags, old = _without(given, ["workdir", *(f"config.{key}" for key in settings)])
    folder = PurePath(old or f"runs/{about.run.name}")
    key, value = next(iter(settings.items()))
    name = f"{folder.name}-{key.split('.')[-1]}"
    name += "" if isinstance(value, str) else str(value)
    if "model.load" not in settings and "model.load" not in " ".join(flags):
        flags.append(f"--config.model.load={folder / 'models' / 'raw'}")
    flags += [
        f"--config.{key}={value}" for key, value in settings.items() if value != ""
    ]
    return shlex.join([*flags, f"--workdir={folder.parent / name}"])


def _without(command: Sequence[str], names: Sequence[str]) -> tuple[list[str], str]:
    """A command without these flags, in either form, and the workdir it gave."""
    kept, workdir, parts = [], "", iter(command)
    for part in parts:
        flag, equals, value = part.removeprefix("--").partition("=")
        if part.startswith("--") and flag in names:
            value = value if equals else next(parts, "")
            workdir = value if flag == "workdir" else workdir
        else:
            kept.append(part)
    return kept, workdir
