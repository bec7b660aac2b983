"""A report names what was to be forgotten: classes, clients, or single images."""

import re

import pytest

from fuprune.report import build, run_report
from fuprune.report.joined import group_runs
from fuprune.report.prose import as_text, first_screen
from fuprune.report.questions import questions_about
from fuprune.report.roles import topic_of
from fuprune.report.tables import methods_table
from fuprune.results import Crossing, RequestRow, read_run
from tests.report.fixture import (
    evidence,
    make_audit,
    make_record,
    make_run,
    method_row,
    replace,
    stage_row,
    write_run,
)
from tests.report.reading import Page

KINDS = (
    *("accuracy", "membership", "shadow", "likelihood_ratio", "unlearned_shadow"),
    *("difference", "interpolated", "probe", "relearn", "distance", "weights"),
)
REQUEST_KINDS = (
    *("membership", "difference", "interpolated", "distance", "accuracy", "losses"),
    *("influence", "weights", "backdoor"),
)
U_SET, R_SET = "the 40 training images", "the 360 test images, which nobody trained on"
FAILS = {"fed_eraser": "fail", "fine_tune_only": "fail", "raw": "fail"}


def record_of(kind, targets):
    """A run in which FedEraser forgot clients or examples."""
    rows = [
        method_row("fed_eraser", 0.55, 0.84, rounds=0, reached=None),
        method_row("fine_tune_only", 0.9, 0.87, reached=None),
        method_row("retrain", 0.6, 0.86, rounds=100),
    ]
    rows[0] = replace(rows[0], images=2250)
    stages = [
        stage_row(name, stage, u, 0.85, classes=())
        for name, stage, u in [
            ("raw", "raw", 1.0),
            ("fed_eraser", "fed_eraser", 0.55),
            ("retrain", "fine_tuned", 0.6),
        ]
    ]
    return replace(
        make_record(),
        classes=[],
        methods=rows,
        stages=stages,
        cuts={},
        privacy={},
        privacy_curve=[],
        feature_maps=None,
        request=RequestRow(kind, targets, U_SET, R_SET),
    )


def audit_of():
    kinds = ("accuracy", "membership", "losses", "backdoor")
    tests = [evidence(f"{kind}_test", FAILS, kind=kind) for kind in kinds]
    made = make_audit(*tests, classes=())
    settings = {"forgotten_training_images": 40, "test_images": 300}
    detail = {name: made.detail[name] for name in ("roc", "cka")}
    return replace(made, settings=settings, detail=detail)


@pytest.fixture
def pages(tmp_path):
    def made(kind, targets):
        folder = write_run(tmp_path / kind, record_of(kind, targets), audit_of())
        return build(folder).read_text()

    return made


@pytest.mark.parametrize(
    ("kind", "targets", "title", "them"),
    [
        ("clients", [3], "Forgetting client 3", "the images of client 3"),
        (
            "clients",
            [3, 17],
            "Forgetting clients 3 and 17",
            "the images of clients 3 and 17",
        ),
        ("examples", list(range(40)), "Forgetting 40 examples", "the forgotten images"),
    ],
)
def test_a_page_names_what_was_to_be_forgotten(pages, kind, targets, title, them):
    text = Page(pages(kind, targets)).text
    assert title in text
    assert f"Does it behave like a model that never saw {them}?" in text
    assert f"Could somebody still tell that {them} were in training?" in text
    assert f"retrained from scratch without {them}" in text
    for phrase in ("the class", "forgotten class", "remaining classes"):
        assert not re.findall(rf".{{0,40}}\b{phrase}\b.{{0,40}}", text)
    assert "What was cut" not in text


# What audits write of one class, and what a page says where several were forgotten.
AUDITED = {
    "How often does the model still recognise the forgotten class?": (
        "How often does the model still recognise the forgotten classes?"
    ),
    "How many training steps until the forgotten class is back?": (
        "How many training steps until the forgotten classes are back?"
    ),
    "How much of the class is back while it is taught again (mean)?": (
        "How much of the forgotten classes is back while they are taught again (mean)?"
    ),
    "How much of the class does a head recover from 2 images of it?": (
        "How much of the forgotten classes does a head recover from 2 images of each?"
    ),
    "In the class that differs most, how far is accuracy from retraining?": (
        "In the class that differs most, how far is accuracy from retraining?"
    ),
}


def everything_said(folder, classes):
    """The words of a page on all kinds of evidence, also those for screen readers."""
    tests = [
        replace(evidence(f"test_{n}", FAILS, kind=kind), question=question)
        for kind in KINDS
        for n, question in enumerate(AUDITED)
    ]
    how = "4 shadow models, unlearned by fine-tuning without the class"
    areas = {"raw": {"linear": [0.5, 0.9]}}
    probe = {"layers": ["stem", "conv1"], "classifiers": ["linear"], "areas": areas}
    made = make_audit(classes=classes)
    audit = replace(
        made,
        tests=[*made.tests, replace(tests[0], notes=[how]), *tests[1:]],
        detail=made.detail | {"probe": probe},
    )
    record = make_record(classes=classes)
    masked = Crossing("raw_masked", 0.85, 5, 1.0, 1, 1)
    rows = [replace(row, crossings=[*row.crossings, masked]) for row in record.methods]
    write_run(folder, replace(record, methods=rows), audit)
    page = Page(build(folder).read_text())
    return " ".join([page.text, *page.labels])


@pytest.mark.parametrize(
    ("classes", "them", "others"),
    [
        ((3,), "the forgotten class", "the (?:forgotten )?classes(?! as)"),
        ((0, 3), "the forgotten classes", "the (?:forgotten )?class(?! that differs)"),
    ],
)
def test_a_page_speaks_of_as_many_classes_as_were_forgotten(
    tmp_path, classes, them, others
):
    text = everything_said(tmp_path / "run", classes)
    assert f"Does it behave like a model that never saw {them}?" in text
    assert f"retrained from scratch without {them}," in text
    assert f"Does the model still recognise {them}, and is the rest intact?" in text
    assert "What was cut, and what did it see?" in text
    assert "the raw model with the" in text
    assert "unlearned by fine-tuning without the" in text
    for written, plural in AUDITED.items():
        assert (plural if len(classes) > 1 else written) in text
    # Accuracies are spread "over the classes as" retraining spreads them.
    assert not re.findall(rf".{{0,40}}\b{others}\b.{{0,40}}", text)


def test_only_the_class_whose_channels_are_drawn_is_red(tmp_path):
    folder = write_run(tmp_path / "run", make_record(classes=(0, 3)))
    page = Page(build(folder).read_text())
    # The pictures are of classes 3, 0 and 1; the channels are of the first class cut.
    drawn = [given for given in page.all("th") if given.get("class") == "forgotten"]
    assert len(drawn) == 1


def test_examples_are_counted_in_the_headline():
    screen = first_screen(record_of("examples", list(range(40))), audit_of())
    assert "never saw the 40 examples: it fails" in screen.headline
    assert "Do not call the 40 examples forgotten" in as_text(screen)


def test_the_first_screen_of_a_client_is_about_its_images():
    text = as_text(first_screen(record_of("clients", [3]), audit_of()))
    assert "can be told from a model that never saw the images of client 3" in text
    assert f"On {U_SET}, fed eraser is right on 55.0% (1 seed)" in text
    assert "on 40 forgotten images and 300 of the same classes that nobody" in text
    # 0.55 is nearer to retraining's 0.6 than fine-tuning alone comes.
    assert "That alone shows little" not in text


def test_a_control_as_close_to_retraining_is_named():
    record = record_of("clients", [3])
    near = replace(record.methods[1], u_accuracy=0.62)
    record = replace(record, methods=[record.methods[0], near, record.methods[2]])
    text = as_text(first_screen(record, audit_of()))
    assert "fine tune only, which removes nothing, is as close to retraining" in text


def test_without_an_audit_accuracy_is_called_weak_evidence():
    text = as_text(first_screen(record_of("examples", [1, 2]), None))
    assert "models that never saw them are right on many of them, too" in text


def test_the_clients_work_is_shown_as_a_share_of_retrainings():
    table = methods_table(topic_of(record_of("clients", [3])))
    titles = [column.title for column in table.columns]
    place = titles.index("Images of a retraining's")
    shares = {row[0].text: row[place].text for row in table.rows}
    assert shares["fed eraser"] == "0.225\N{MULTIPLICATION SIGN}"
    assert shares["retrain"] == "1\N{MULTIPLICATION SIGN}"


@pytest.mark.parametrize("kind", ["bias", "dirichlet"])
def test_settings_that_played_no_part_are_not_shown(kind):
    record = record_of("clients", [3])
    config = record.provenance.config
    config["prune"] = {"rate": 0.05}
    config["partition"]["kind"] = kind
    assert ("bias" in facts_of(record)) == (kind == "bias")
    assert "pruning rate" not in facts_of(record)
    (group,) = group_runs([make_run(record)])
    assert ("q 0.25" in group.scale) == ("q 0.25" in group.subject) == (kind == "bias")
    assert "R 0.05" not in group.scale
    cutting = make_record()
    cutting.provenance.config["prune"] = {"rate": 0.05}
    assert facts_of(cutting)["pruning rate"] == "0.05"
    *_, group = group_runs([make_run(record), make_run(cutting)])
    assert "R 0.05" in group.scale


def facts_of(record):
    """What stands under the title of a run's page."""
    return dict(run_report._facts(make_run(record)))


def test_joined_runs_say_who_left(tmp_path):
    folder = write_run(tmp_path / "run", record_of("clients", [3, 17]), audit_of())
    (group,) = group_runs([read_run(folder)])
    assert group.subject == "E1: resnet20 on digits, clients 3 and 17, q 0.25"
    assert group.tested == "fed_eraser"


@pytest.mark.parametrize(
    ("record", "kinds"),
    [(make_record(), KINDS), (record_of("clients", [3]), REQUEST_KINDS)],
    ids=["classes", "clients"],
)
def test_every_kind_of_evidence_has_its_question(record, kinds):
    asked = questions_about(record)
    assert set(kinds) <= {kind for question in asked for kind in question.kinds}
