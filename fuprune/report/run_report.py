"""The report of one run: the first screen, then one section per question.

`build` reads what a run wrote and nothing else, so a report can be made again at any
time, and the same files give the same bytes.
"""

import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuprune import results
from fuprune.audit.evidence import AuditReport
from fuprune.errors import InputError
from fuprune.report import (
    audit_figures,
    figures,
    formats,
    judgement,
    page,
    prose,
    roles,
    table_forms,
    tables,
)
from fuprune.report.markup import Child, Markup, element
from fuprune.report.questions import Question, questions_about
from fuprune.report.roles import Topic
from fuprune.report.table_forms import Table
from fuprune.results import Run, read_run


def build(workdir: str | Path) -> Path:
    """Writes the report of a run into `workdir/report`.

    Args:
      workdir: the run's directory. Missing files are said in the page, not an error.

    Returns:
      The path of `report.html`; beside it are `report.md` and one CSV per table.

    Raises:
      InputError: the directory is not a run, or its `report` leads elsewhere.
    """
    run = read_run(workdir, AuditReport.from_json)
    folder = Path(workdir).resolve() / "report"
    if folder.resolve() != folder:
        raise InputError(
            f"{str(folder)!r} is a link to {str(folder.resolve())!r}, outside the run; "
            "remove the link."
        )
    topic = roles.topic_of(run.record, run.audit)
    made = _tables(run, topic)
    html = html_page(run, topic, made)
    return page.write_report(folder, html, _markdown(run), made.values())


def html_page(run: Run, topic: Topic, made: Mapping[str, Table]) -> str:
    """Composes the page of a run and its tables."""
    first, *others = questions_about(run.record)
    sections = [
        _first_section(run, made),
        _accuracy_section(topic, first, made),
        _speed_section(run, topic, made),
        *_audit_sections(topic, others),
        _cut_section(run, topic, made),
        _privacy_section(run, made),
        _rerun_section(run, made),
    ]
    return page.document(
        title(run),
        "Federated unlearning \N{MIDDLE DOT} report of one run",
        _facts(run),
        [entry for entry in sections if entry is not None],
        [
            "Made by fuprune from the files of ",
            element("code", None, run.name),
            "; nothing on this page is loaded from elsewhere.",
        ],
    )


def title(run: Run) -> str:
    """Names the run: `Forgetting class 9: resnet20 on cifar10`."""
    names = (results.model_name(run.record), run.record.dataset)
    subject = " on ".join(name for name in names if name)
    named = f"Forgetting {roles.forgotten(run.record)}"
    return f"{named}: {subject}" if subject else named


def _facts(run: Run) -> list[tuple[str, str]]:
    known = functools.partial(roles.setting_in_use, run.record)
    named = (
        ("seed", "seed"),
        ("clients", "partition.clients"),
        ("per round", "train.cohort"),
        ("partition", "partition.kind"),
        ("bias", "partition.bias"),
        ("algorithm", "train.algorithm"),
        ("pruning rate", "prune.rate"),
    )
    found = {name: known(key) for name, key in named}
    # A part of the data is not the dataset, and says so.
    if limit := known("data.limit"):
        share = known("data.validation")
        held = ""
        if share and isinstance(share, float):
            held = f", {formats.percent(share, 0)} of them for validation"
        found["images per class"] = f"the first {limit}{held}"
    return [
        ("run", run.name),
        *((name, str(value)) for name, value in found.items() if value is not None),
        ("commit", run.record.provenance.commit[:12]),
    ]


def first_screen_card(screen: prose.FirstScreen) -> Markup:
    """The first screen as a card: headline, then question and answer."""
    answers = [
        [
            element("dt", None, answer.question),
            element("dd", None, element("b", None, answer.short), " ", answer.details),
        ]
        for answer in screen.answers
    ]
    return element(
        "div",
        {"class": f"card verdict {screen.tone}"},
        element("h2", None, screen.headline),
        element("dl", None, *answers),
    )


def _first_section(run: Run, made: Mapping[str, Table]) -> page.Section:
    them = roles.forgotten_things(run.record)
    how_judged = (
        f"Several models are retrained from scratch without {them}, each with its own "
        "seed. For each test they say where one more retrained model would lie. A "
        "model that lies elsewhere, counting the sampling error of the images, fails; "
        "one that does not is not told apart, which may mean that it forgot or that "
        f"the test is too weak. If even the raw model, which certainly knows {them}, "
        "is not told apart, or if there are too few retrained models, the test cannot "
        "tell. There is no overall score, so that no failure is averaged away."
    )
    body: list[Child] = [
        first_screen_card(prose.first_screen(run.record, run.audit)),
        # A page made while the run goes on says so before any evidence.
        page.missing(" ".join(run.notes)) if run.notes else None,
    ]
    if run.audit is not None:
        body += [
            table_forms.to_html(made.get("tally")),
            table_forms.to_html(made.get("verdicts")),
            page.details("How a verdict is reached", page.note(how_judged)),
        ]
    return page.section("verdict", "Verdict", "", "", *body)


def _accuracy_section(
    topic: Topic, question: Question, made: Mapping[str, Table]
) -> page.Section:
    bars = figures.class_figure(topic)
    return page.section(
        *question[:4],
        table_forms.to_html(made.get("paper_form")),
        *_evidence(topic, question, [bars], fitting=4),
        _titled("Which class is answered", figures.confusion_figures(topic)),
        _folded("Accuracy of each class as a table", made.get("classes")),
        None if topic.record.stages else page.missing("There are no accuracies yet."),
    )


def _speed_section(run: Run, topic: Topic, made: Mapping[str, Table]) -> page.Section:
    record = run.record
    main, *others = [made.get(f"speed_{target}") for target in results.TARGETS]
    lacking = {
        0: "No method has finished yet.",
        1: "Only one method was run, so there is nothing to compare it with: no "
        "retraining, no baseline, no control.",
    }.get(len({row.method for row in record.methods}))
    return page.section(
        "speed",
        "At what price?",
        "What did it cost, compared with training again?",
        "After the cut the federation fine-tunes on what remains. The honest "
        "comparison is retraining from scratch, and the sobering one is a control that "
        "cuts nothing."
        if record.request.kind == "classes"
        else "Most methods train on what remains after a step of their own; FedEraser "
        "replays kept rounds, and SISA trains some of its shards again. The honest "
        "comparison is retraining from scratch, and the sobering one is fine-tuning "
        "alone.",
        figures.recovery_figure(topic, run.curves),
        table_forms.to_html(main),
        _folded("The same for other targets", *others),
        table_forms.to_html(made.get("methods")),
        _folded("Where the time of the run went", made.get("units")),
        page.missing(lacking) if lacking else None,
    )


def _audit_sections(topic: Topic, questions: Sequence[Question]) -> list[page.Section]:
    audit, styles = topic.audit, topic.styles
    if audit is None:
        explanation = page.missing(
            "There is no readable audit. Relearning, probes, distance to retraining "
            "and membership inference are unknown for this run; run the audit phase "
            "and build the report again."
        )
        name = "What was not tested"
        return [page.section("audit", name, f"{name}?", "", explanation)]
    beside: dict[str, list[Markup | None]] = {
        "relearn": [*audit_figures.relearn_figures(audit, styles)],
        "probe": [*audit_figures.probe_figures(audit, styles)],
        "distance": [audit_figures.cka_figure(topic, audit)],
    }
    powerless = judgement.powerless_membership(audit)
    sections = []
    for question in questions:
        if not judgement.of_kinds(audit, question.kinds):
            continue
        body = _evidence(topic, question, beside.get(question.anchor, []))
        if question.anchor == "membership":
            curves = audit_figures.roc_figures(audit, styles)
            body.append(_titled("ROC curves", curves))
            if powerless:
                folded = page.details("The attacks, one by one", *body)
                body = [page.missing(powerless), folded]
        sections.append(page.section(*question[:4], *body))
    return sections


def _evidence(
    topic: Topic, question: Question, beside: list[Markup | None], fitting: int = 2
) -> list[Child]:
    """A question's figures and its tests; `fitting` of them go beside a lone figure."""
    drawn = [figure for figure in beside if figure is not None]
    tests = judgement.of_kinds(topic.audit, question.kinds)
    if not tests:
        return [page.grid(drawn)]
    strips = [audit_figures.strip_figure(topic, test) for test in tests]
    alone = len(drawn) == 1
    return [
        page.grid([drawn[0], page.grid(strips[:fitting], "stack")]) if alone else None,
        None if alone else page.grid(drawn),
        page.grid(strips[fitting:] if alone else strips),
        audit_figures.strip_legend(topic, tests),
    ]


def _tables(run: Run, topic: Topic) -> dict[str, Table]:
    """Every table of a run that has content, by name."""
    record, audit, provenance = run.record, run.audit, run.record.provenance
    settings, found, tested = {}, [], topic.tested
    if audit is not None:
        settings = audit.settings
        found = [tables.tally_table(audit, tested), tables.verdict_table(audit, tested)]
    found += [
        *(tables.speed_table(topic, target) for target in results.TARGETS),
        tables.methods_table(topic),
        tables.units_table(run.clocks),
        tables.paper_table(topic),
        tables.class_table(record),
        *tables.layer_tables(topic),
        tables.privacy_curve_table(record),
        *(
            tables.key_value_table(name, title, values)
            for name, title, values in (
                ("privacy", "The privacy accountant's numbers", record.privacy),
                ("settings", "Every setting", provenance.config),
                ("versions", "Versions", provenance.versions),
                ("audit_settings", "Settings of the audit", settings),
            )
        ),
    ]
    return table_forms.by_name(found)


def _cut_section(
    run: Run, topic: Topic, made: Mapping[str, Table]
) -> page.Section | None:
    if run.record.request.kind != "classes":
        return None  # only classes are cut
    layers = [table for name, table in made.items() if name.startswith("layers")]
    body: list[Child] = [
        *figures.score_figures(topic),
        figures.feature_map_figure(run.record, run.feature_maps),
        _folded("The layers as a table", *layers),
    ]
    if not any(body):
        body = [page.missing("No pruning plan was recorded, so nothing was cut.")]
    return page.section(
        "cut",
        "What was cut?",
        "What was cut, and what did it see?",
        "Each channel of each convolution gets a TF-IDF score for each forgotten "
        "class: high when it is active for that class and for few others. The "
        "highest-scoring channels are removed from the network.",
        *body,
    )


def _privacy_section(run: Run, made: Mapping[str, Table]) -> page.Section | None:
    if not run.record.privacy and not run.record.privacy_curve:
        return None
    numbers = page.grid([table_forms.to_html(made.get("privacy"))], "stack")
    return page.section(
        "privacy",
        "What leaves a client?",
        "How private is what leaves a client?",
        "Clients send only sums of activations per class. With noise, the sums are "
        "(\N{GREEK SMALL LETTER EPSILON}, \N{GREEK SMALL LETTER DELTA})-differentially "
        "private: the smaller epsilon, the less can be learnt about one image.",
        page.grid([figures.privacy_figure(run.record), numbers]),
        _folded("The curve as a table", made.get("privacy_curve")),
    )


def _rerun_section(run: Run, made: Mapping[str, Table]) -> page.Section:
    provenance = run.record.provenance
    commands = {
        "The command": shlex.join(provenance.command),
        "This page, from the files alone": f"python -m fuprune.report {run.name}",
    }
    body: list[Child] = [
        [element("h3", None, heading), element("pre", {"class": "wrapping"}, command)]
        for heading, command in commands.items()
        if command
    ]
    if provenance.commit:
        commit, where = element("code", None, provenance.commit), provenance.platform
        body.append(page.note("Code at commit ", commit, f", on {where}."))
    lists = [made.get(n) for n in ("settings", "versions", "audit_settings")]
    body += [_folded(table.title, table) for table in lists if table is not None]
    return page.section(
        "rerun",
        "How to run it again",
        "How can this be run again?",
        "Everything that decided the outcome: command, settings, seeds, versions. The "
        "tables of this page are beside it as Markdown (report.md) and CSV.",
        *body,
    )


def _folded(summary: str, *found: Table | None) -> Markup | None:
    content = [table_forms.to_html(table) for table in found if table is not None]
    return page.details(summary, *content) if content else None


def _titled(heading: str, body: Markup | None) -> Child:
    return None if body is None else [element("h3", None, heading), body]


def _markdown(run: Run) -> list[str]:
    """What `report.md` says before the tables."""
    text = table_forms.markdown_text
    screen = prose.first_screen(run.record, run.audit)
    lines = [f"# {text(title(run))}", "", f"**{text(screen.headline)}**", ""]
    lines += [
        f"- **{answer.question}** {text(' '.join(answer[1:]))}"
        for answer in screen.answers
    ]
    if run.notes:
        lines += ["", *(f"> {text(note)}" for note in run.notes)]
    return lines
