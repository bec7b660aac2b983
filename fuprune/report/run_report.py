"""The report of one run: verdict first, then one section per question.

`build` reads what a run wrote and nothing else, so a report can be made again at any
time, and the same files give the same bytes.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuprune.report import (
    audit_figures,
    audit_tables,
    formats,
    output,
    page,
    pictures,
    run_figures,
    run_tables,
    tables,
)
from fuprune.report.markup import Child, Markup, element
from fuprune.report.questions import (
    ACCURACY,
    AUDIT_QUESTIONS,
    DISTANCE,
    MEMBERSHIP,
    RELEARN,
    Question,
)
from fuprune.report.run_files import Run, mapping, read_run, setting, words
from fuprune.report.verdict import forgotten, verdict


def build(workdir: str | Path) -> Path:
    """Writes the report of a run into `workdir/report`.

    Args:
      workdir: The run's directory. Missing files are said in the page, not an error.

    Returns:
      The path of `report.html`; beside it lie `report.md` and one CSV per table.

    Raises:
      ValueError: If the directory is not a run, or its `report` leads elsewhere.
    """
    run = read_run(workdir)
    folder = output.report_folder(Path(workdir))
    every_table = _tables(run)
    files = {"report.html": html_page(run), "report.md": _markdown(run, every_table)}
    for table in every_table:
        files.setdefault(f"{table.name}.csv", tables.to_csv(table))
    output.write_files(folder, files)
    return folder / "report.html"


def html_page(run: Run) -> str:
    """Composes the page of a run."""
    styles = run_figures.run_styles(run)
    sections = [
        _verdict_section(run),
        _accuracy_section(run, styles),
        _speed_section(run, styles),
        *_audit_sections(run, styles),
        _cut_section(run),
        _privacy_section(run),
        _rerun_section(run),
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
    subject = " on ".join(name for name in (run.model, run.dataset) if name)
    return f"Forgetting {forgotten(run)}" + (f": {subject}" if subject else "")


def _facts(run: Run) -> list[tuple[str, str]]:
    partition = mapping(run.config.get("partition"))
    train = mapping(run.config.get("train"))
    return [
        ("run", run.name),
        ("seed", words(run.config.get("seed"))),
        ("clients", words(partition.get("clients"))),
        ("a round", words(train.get("cohort"))),
        ("partition", words(partition.get("kind"))),
        ("bias", words(partition.get("bias"))),
        ("algorithm", words(train.get("algorithm"))),
        ("pruning rate", words(setting(run, "prune.rate"))),
        ("commit", run.commit[:12]),
    ]


def _verdict_section(run: Run) -> page.Section:
    result = verdict(run)
    judged = [audit_tables.tally_table(run), audit_tables.verdict_table(run)]
    # A page made while the run goes on says so before anything else.
    readable = [note for note in run.notes if not note.endswith("is not there.")]
    absent = [
        note.removesuffix(" is not there.")
        for note in run.notes
        if note.endswith("is not there.")
    ]
    body: list[Child] = [
        element(
            "div",
            {"class": f"card verdict {result.tone}"},
            element("h2", None, result.headline),
            element(
                "dl",
                None,
                *(
                    [element("dt", None, topic), element("dd", None, sentences)]
                    for topic, sentences in result.findings
                ),
            ),
        ),
        page.missing(*(f"{note} " for note in readable)) if readable else None,
        page.missing(f"Not in this run's directory: {formats.listing(absent)}.")
        if absent
        else None,
    ]
    for table in judged:
        if table is not None:
            body += [tables.to_html(table), page.note(table.note)]
    if judged[0] is not None:
        body.append(
            element(
                "details",
                None,
                element("summary", None, "How a verdict is reached"),
                element("p", {"class": "note"}, _HOW_JUDGED),
            )
        )
    return page.Section(
        "verdict", "Verdict", element("section", {"id": "verdict"}, *body)
    )


_HOW_JUDGED = (
    "Several models were retrained from scratch without the class, each with its own "
    "seed. For each test they give an interval in which one more retrained model would "
    "lie (95% unless set otherwise). A model inside it passes, a model outside fails. "
    "When there are too few retrained models, or when even the raw model, which "
    "certainly knows the class, lies inside, the test cannot tell. With many tests, "
    "now and then a model that truly forgot fails one by chance. There is no overall "
    "score, so that no failure is averaged away."
)


def _accuracy_section(run: Run, styles: Mapping[str, str]) -> page.Section:
    bars = run_figures.class_bars(run, styles)
    many = len(run.class_names) > run_figures.FEW_CLASSES
    body: list[Child] = [
        _shown(run_tables.paper_table(run)),
        bars if many else None,
        *_evidence(run, ACCURACY, styles, None if many else bars, fitting=4),
        _titled("Which class is answered", run_figures.confusion_figures(run)),
        _folded("Accuracy of each class as a table", run_tables.class_table(run)),
    ]
    if not run.stages:
        body.append(page.missing("results.json holds no stages, so no accuracies."))
    return page.section(
        ACCURACY.anchor, ACCURACY.contents, ACCURACY.question, ACCURACY.lead, *body
    )


def _speed_section(run: Run, styles: Mapping[str, str]) -> page.Section:
    curves = run_figures.recovery_figure(run, styles)
    body: list[Child] = [
        page.grid([curves, run_figures.rounds_figure(run, styles)]),
        _shown(run_tables.methods_table(run, errors=False)),
    ]
    if not run.methods:
        body.append(page.missing("results.json lists no methods yet."))
    for row in run.methods:
        if row.error:
            name = formats.method_name(row.method)
            body.append(page.missing(f"{name} did not finish: {row.error}"))
    if len(run.methods) == 1:
        body.append(
            page.missing(
                "Only one method was run, so there is nothing to compare it with: no "
                "retraining, no baseline, no control."
            )
        )
    if curves is None:
        body.append(
            page.missing(
                "metrics.jsonl holds no rounds of an unlearning phase with R-set "
                "accuracy, so there are no curves."
            )
        )
    return page.section(
        "speed",
        "How fast was it?",
        "How fast was it, compared with training again?",
        "After the cut the federation fine-tunes without the class until the remaining "
        "classes are as good as the target. The honest comparison is retraining from "
        "scratch, and the sobering one is a control that cuts nothing.",
        *body,
        _folded("Time of each phase", run_tables.time_table(run)),
    )


def _audit_sections(run: Run, styles: Mapping[str, str]) -> list[page.Section]:
    if run.audit is None:
        return [
            page.section(
                "audit",
                "What was not tested",
                "What was not tested?",
                "",
                page.missing(
                    "There is no readable audit.json. Membership inference, linear "
                    "probe, relearn time and distance to retraining are unknown for "
                    "this run; run the audit phase and build the report again."
                ),
            )
        ]
    beside = {
        RELEARN.anchor: audit_figures.relearn_figure(run, styles),
        DISTANCE.anchor: audit_figures.cka_figure(run, styles),
    }
    below: dict[str, list[Child]] = {
        MEMBERSHIP.anchor: [
            _titled("ROC curves", audit_figures.roc_figures(run, styles)),
            _noted(audit_figures.shadow_sentence(run.audit)),
        ],
    }
    known = {
        kind for question in (ACCURACY, *AUDIT_QUESTIONS) for kind in question.kinds
    }
    kinds = tuple(dict.fromkeys(test.kind for test in run.audit.tests))
    questions = list(AUDIT_QUESTIONS)
    others = tuple(kind for kind in kinds if kind not in known)
    if others:
        questions.append(
            Question("other", "Other evidence", "What else was measured?", "", others)
        )
    sections = []
    for entry in questions:
        evidence = _evidence(run, entry, styles, beside.get(entry.anchor))
        sections.append(
            page.section(
                entry.anchor,
                entry.contents,
                entry.question,
                entry.lead,
                *evidence,
                None
                if _evidence_table(run, entry)
                else page.missing("This run's audit did not ask it."),
                *below.get(entry.anchor, []),
            )
        )
    return sections


def _evidence(
    run: Run,
    question: Question,
    styles: Mapping[str, str],
    beside: Markup | None = None,
    fitting: int = 2,
) -> list[Child]:
    """Shows a question's strips, `fitting` of them next to a larger figure."""
    strips = audit_figures.strip_figures(run, question.kinds, styles)
    table = _evidence_table(run, question)
    if table is None:
        return [page.grid([beside])]
    return [
        page.grid([beside, page.stack(strips[:fitting])]) if beside else None,
        page.grid(strips[fitting:] if beside else strips),
        audit_figures.strip_legend(run, question.kinds, styles),
        _folded("The figures as a table", table),
    ]


def _evidence_table(run: Run, question: Question) -> tables.Table | None:
    return audit_tables.evidence_table(
        run, question.kinds, f"evidence_{question.anchor}", question.question
    )


def _tables(run: Run) -> list[tables.Table]:
    """Lists every table of a run that has content, for the Markdown and CSV files."""
    found = [
        audit_tables.tally_table(run),
        audit_tables.verdict_table(run),
        run_tables.methods_table(run),
        run_tables.paper_table(run),
        run_tables.class_table(run),
        *run_tables.layer_tables(run),
        run_tables.privacy_table(run),
        run_tables.privacy_curve_table(run),
        run_tables.time_table(run),
        *(_evidence_table(run, entry) for entry in (ACCURACY, *AUDIT_QUESTIONS)),
        audit_tables.audit_table(run),
        run_tables.settings_table(run),
        run_tables.versions_table(run),
    ]
    return [table for table in found if table is not None]


def _cut_section(run: Run) -> page.Section:
    body: list[Child] = [
        *run_figures.score_figures(run),
        pictures.feature_map_figure(run),
        *run_figures.width_figures(run),
        _folded("The layers as a table", *run_tables.layer_tables(run)),
    ]
    if not any(body):
        body = [page.missing("No pruning plan was recorded, so nothing was cut.")]
    elif run.feature_maps is None:
        body.append(page.missing("No feature maps were saved (feature_maps.npz)."))
    return page.section(
        "cut",
        "What was cut?",
        "What was cut, and what did it see?",
        "Each channel of each convolution gets a TF-IDF score for the class: high when "
        "it is active for this class and for few others. The highest-scoring channels "
        "are removed from the network.",
        *body,
    )


def _privacy_section(run: Run) -> page.Section | None:
    if not run.privacy and not run.privacy_curve:
        return None
    return page.section(
        "privacy",
        "What leaves a client?",
        "How private is what leaves a client?",
        "Clients send only sums of activations per class. With noise, the sums are "
        "(\N{GREEK SMALL LETTER EPSILON}, \N{GREEK SMALL LETTER DELTA})-differentially "
        "private: the smaller epsilon, the less can be learnt about one image.",
        page.grid(
            [
                run_figures.privacy_figure(run),
                page.stack([_shown(run_tables.privacy_table(run))]),
            ]
        ),
        _folded("The curve as a table", run_tables.privacy_curve_table(run)),
    )


def _rerun_section(run: Run) -> page.Section:
    body: list[Child] = []
    if run.command:
        body += [
            element("h3", None, "The command"),
            element("pre", {"class": "wrapping"}, shlex.join(run.command)),
        ]
    body += [
        element("h3", None, "This page, from the files alone"),
        element(
            "pre",
            {"class": "wrapping"},
            f"python -m fuprune.report {shlex.quote(run.name)}",
        ),
    ]
    if run.commit:
        body.append(
            page.note("Code at commit ", element("code", None, run.commit), ".")
        )
    seeds = _seeds(run)
    if seeds:
        body.append(page.note(f"Seeds: {seeds}."))
    if not run.config:
        body.append(page.missing("There is no readable config.json."))
    body += [
        _folded("Every setting", run_tables.settings_table(run)),
        _folded("Versions", run_tables.versions_table(run)),
        _folded("Settings of the audit", _audit_settings(run)),
    ]
    return page.section(
        "rerun",
        "How to run it again",
        "How can this be run again?",
        "Everything that decided the outcome: command, settings, seeds, versions. The "
        "tables of this page lie beside it as Markdown (report.md) and CSV.",
        *body,
    )


def _seeds(run: Run) -> str:
    found = [("run", words(run.config.get("seed")))]
    for key, value in run.config.items():
        for inner, number in mapping(value).items():
            if "seed" in inner:
                found.append((f"{key}.{inner}", words(number)))
    return ", ".join(f"{name} {value}" for name, value in found if value)


def _audit_settings(run: Run) -> tables.Table | None:
    if run.audit is None or not run.audit.settings:
        return None
    return run_tables.key_value_table(
        "audit_settings", "Settings of the audit", run.audit.settings
    )


def _shown(table: tables.Table | None) -> Child:
    if table is None:
        return None
    return [tables.to_html(table), page.note(table.note) if table.note else None]


def _folded(summary: str, *found: tables.Table | None) -> Markup | None:
    shown = [_shown(table) for table in found if table is not None]
    if not shown:
        return None
    return element("details", None, element("summary", None, summary), *shown)


def _titled(heading: str, body: Markup | None) -> Child:
    return None if body is None else [element("h3", None, heading), body]


def _noted(sentence: str) -> Markup | None:
    return page.note(sentence) if sentence else None


def _markdown(run: Run, every_table: Sequence[tables.Table]) -> str:
    result = verdict(run)
    lines = [f"# {tables.markdown_text(title(run))}", ""]
    lines += [f"**{tables.markdown_text(result.headline)}**", ""]
    lines += [
        f"- **{topic}**: {tables.markdown_text(sentences)}"
        for topic, sentences in result.findings
    ]
    if run.notes:
        lines += ["", *(f"> {tables.markdown_text(note)}" for note in run.notes)]
    # One figure per row is for programs, and stands in audit.csv.
    parts = [tables.to_markdown(t) for t in every_table if t.name != "audit"]
    return "\n".join([*lines, "", *parts])
