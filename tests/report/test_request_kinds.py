"""A report names what was to be forgotten: a class, a client, or single images."""

import html
import re

import pytest

from fuprune.audit.audit import KINDS
from fuprune.audit.request_audit import REQUEST_KINDS
from fuprune.report import build
from fuprune.report.joined import group_runs
from fuprune.report.prose import as_text, first_screen
from fuprune.report.questions import questions_about
from fuprune.report.tables import methods_table
from fuprune.run.reading import read_run
from fuprune.run.record import RequestRow
from tests.report.fixture import (
    evidence,
    make_audit,
    make_record,
    method_row,
    stage_row,
    write_run,
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
    rows[0] = rows[0]._replace(images=2250)
    stages = [
        stage_row(name, stage, u, 0.85, classes=())
        for name, stage, u in [
            ("raw", "raw", 1.0),
            ("fed_eraser", "fed_eraser", 0.55),
            ("retrain", "fine_tuned", 0.6),
        ]
    ]
    return make_record()._replace(
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
    return made._replace(settings=settings, detail=detail)


@pytest.fixture
def pages(tmp_path):
    def made(kind, targets):
        folder = write_run(tmp_path / kind, record_of(kind, targets), audit_of())
        return build(folder).read_text()

    return made


@pytest.mark.parametrize(
    ("kind", "targets", "title", "them"),
    [
        ("clients", [3], "Forgetting client 3", "the client's images"),
        ("clients", [3, 17], "Forgetting clients 3 and 17", "the clients' images"),
        ("examples", list(range(40)), "Forgetting 40 examples", "the forgotten images"),
    ],
)
def test_a_page_names_what_was_to_be_forgotten(pages, kind, targets, title, them):
    text = html.unescape(re.sub(r"<style.*?</style>", "", pages(kind, targets)))
    text = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    assert title in text
    assert f"Does it behave like a model that never saw {them}?" in text
    assert f"Could somebody still tell that {them} were in training?" in text
    assert f"retrained from scratch without {them}" in text
    for phrase in ("the class", "forgotten class", "remaining classes"):
        assert not re.findall(rf".{{0,40}}\b{phrase}\b.{{0,40}}", text)
    assert "What was cut" not in text


def test_a_class_is_asked_for_as_before(tmp_path):
    text = build(write_run(tmp_path / "run")).read_text()
    assert "Does it behave like a model that never saw the class?" in text
    assert "Is the class gone from the answers, and is the rest intact?" in text
    assert "What was cut, and what did it see?" in text


def test_the_first_screen_of_a_client_is_about_its_images():
    text = as_text(first_screen(record_of("clients", [3]), audit_of()))
    assert "can be told from a model that never saw client 3" in text
    assert f"On {U_SET}, fed eraser is right on 55.0% (1 seed)" in text
    assert "on 40 forgotten images and 300 of the same classes that nobody" in text
    # 0.55 is nearer to retraining's 0.6 than fine-tuning alone comes.
    assert "That alone shows little" not in text


def test_a_control_as_close_to_retraining_is_named():
    record = record_of("clients", [3])
    near = record.methods[1]._replace(u_accuracy=0.62)
    record = record._replace(methods=[record.methods[0], near, record.methods[2]])
    text = as_text(first_screen(record, audit_of()))
    assert "fine tune only, which removes nothing, is as close to retraining" in text


def test_without_an_audit_accuracy_is_called_weak_evidence():
    text = as_text(first_screen(record_of("examples", [1, 2]), None))
    assert "models that never saw them are right on many of them, too" in text


def test_the_clients_work_is_shown_as_a_share_of_retrainings():
    table = methods_table(record_of("clients", [3]))
    titles = [column.title for column in table.columns]
    place = titles.index("Images of a retraining's")
    shares = {row[0].text: row[place].text for row in table.rows}
    assert shares["fed eraser"] == "0.225\N{MULTIPLICATION SIGN}"
    assert shares["retrain"] == "1\N{MULTIPLICATION SIGN}"


def test_joined_runs_say_who_left(tmp_path):
    folder = write_run(tmp_path / "run", record_of("clients", [3, 17]), audit_of())
    (group,) = group_runs([read_run(folder)])
    assert group.subject == "E1: resnet20 on digits, clients 3 and 17, q 0.25"
    assert group.tested == "fed_eraser"


@pytest.mark.parametrize(
    ("request_kind", "kinds"), [("classes", KINDS), ("clients", REQUEST_KINDS)]
)
def test_every_kind_of_evidence_has_its_question(request_kind, kinds):
    asked = questions_about(request_kind, "the class")
    assert set(kinds) <= {kind for question in asked for kind in question.kinds}
