"""The first screen: honest verdicts, and controls beside every claim."""

import shlex
from pathlib import Path

import pytest

from fuprune import main, results
from fuprune.report import subject
from fuprune.report.summary import closing_lines, summary
from fuprune.results import PhaseClock
from tests.report.fixture import (
    OUTCOMES,
    audit_row,
    make_audit,
    make_record,
    make_run,
    method_row,
    replace,
    stage_row,
    write_run,
)


def found(record=None, audit=None):
    return summary(subject.subject_of(make_run(record, audit)))


def text(record=None, audit=None):
    return spoken(found(record, audit))


def spoken(one):
    return f"{one.headline}\n{closing_lines(one, 'runs/a/report')}"


def test_no_difference_is_said_with_its_measures_and_models():
    one = found(audit=make_audit())
    assert one.tone == "unsure"
    assert "No difference was found between class pruning" in one.headline
    said = spoken(one)
    assert "0 of 3 measures differ from 3 retrained models, with 95% intervals" in said
    assert "1 cannot even tell the raw model apart" in said
    assert "keeps 84.0% of the rest, but 1 measure differs." in said


def test_a_difference_is_bad_and_names_the_measures():
    rows = (audit_row("probe_auc", ("class_pruning", "raw")), audit_row("u_accuracy"))
    one = found(audit=make_audit(*rows))
    assert one.tone == "bad" and "in 1 of 2 measures" in one.headline
    assert "1 of 2 measures differ from 3 retrained models (Probe AUC)" in spoken(one)


def test_a_network_that_still_answers_did_not_forget():
    record = make_record(outcomes={"class_pruning": (1.0, 0.86, 20, 12)})
    one = found(record, make_audit())
    assert one.tone == "bad"
    said = spoken(one)
    assert "did not forget class truck (3)" in one.headline
    assert "Gone? No: still right on 100% of class truck (3)" in said
    assert "Try rate 0.2, prune.rate=auto or the method relabel:" in said
    assert "Speed is not compared, because it did not forget." in said


def test_without_an_audit_nothing_is_called_forgotten():
    one = found()
    assert one.tone == "unsure" and "it was not audited" in one.headline
    said = spoken(one)
    assert "Mask logit, which only hides the output, keeps 84.0%" in said
    assert "does as well by its answers" in said
    assert "--config.phases=pretrain,unlearn,audit,report" in said


def test_a_control_with_the_same_verdict_is_named():
    rows = (audit_row("u_accuracy", ("raw",)), audit_row("probe_auc", ("raw",)))
    said = text(audit=make_audit(*rows))
    assert "keeps 84.0% of the rest and does as well in the audit." in said


def test_price_is_compared_with_what_forgot_only():
    said = text()
    assert "86.0% on the other classes after 20 rounds, 22.0 s" in said
    assert "retraining: 86.2% after 200 rounds" in said
    assert "Speed-up over retraining" in said and "10.8× in images" in said
    # It keeps more accuracy, but it did not forget.
    assert "fine tune only" not in said.split("At what price?")[1].split("\n")[0]
    slower = {"class_pruning": (0.0, 0.8, 20, 130), "retrain_seed2": (0, 0.8, 200, 60)}
    assert "slower in images" in text(make_record(outcomes=slower))


def test_seconds_are_without_compilation_where_that_is_known():
    run = make_run()
    clock = PhaseClock(2.0, [(1, 7.0), (2, 0.5), (3, 0.5)], None, 1.5)
    run = run._replace(clocks={"unlearn/class_pruning": clock})
    said = spoken(summary(subject.subject_of(run)))
    assert "after 20 rounds, 2.0 s without compilation" in said


def test_models_retrained_elsewhere_are_the_price_to_compare_with(tmp_path):
    elsewhere = write_run(tmp_path / "b", make_record(methods=("retrain",)))
    record = make_record(methods=("class_pruning",))
    config = record.provenance.config | {"audit": {"reference": str(elsewhere)}}
    record = replace(record, provenance=replace(record.provenance, config=config))
    about = subject.read_subject(write_run(tmp_path / "a", record))
    said = spoken(summary(about))
    assert about.rows("retrain") and about.final_stage("retrain") is not None
    assert "retraining: 86.0% after 200 rounds" in said
    # By the curves of both: 0.5 + 0.003 per round.
    reached = results.reached(about.rows("class_pruning"), "retrained")
    assert reached.accuracy == pytest.approx(1.1) and reached.late == 1


def test_an_undertrained_raw_model_is_called_that():
    record = make_record()
    weak = stage_row("raw", "raw", 0.9, 0.54)
    record = replace(record, stages=[weak, *record.stages[1:]])
    assert "The raw model is undertrained: 54% on the rest" in text(record)
    assert "Train the raw model for longer" in text(record)
    assert "--config.train.rounds=400" in text(record)
    assert "undertrained" not in text()


ADVICE = {
    "a larger rate": dict(outcomes={"class_pruning": (1.0, 0.86, 20, 12)}),
    "unlearn.methods=class_pruning,mask_logit,retrain": dict(
        methods=("class_pruning", "mask_logit")
    ),
    "unlearn.methods=class_pruning,retrain,mask_logit,fine_tune_only": dict(
        methods=("class_pruning", "retrain")
    ),
    "unlearn.retrain_seeds=5": dict(methods=("class_pruning", "retrain", "mask_logit")),
}


@pytest.mark.parametrize("wanted", ADVICE)
def test_the_advice_is_a_command_that_can_be_run(wanted):
    record = make_record(**ADVICE[wanted])
    audit = make_audit() if "retrain" in ADVICE[wanted].get("methods", ()) else None
    if "unlearn.methods=class_pruning,retrain" in wanted:
        audit = replace(audit, retrained=5)
    command = found(record, audit).command
    assert wanted.replace("a larger rate", "prune.rate=0.2") in command
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "fuprune.main"]
    asked = main.parse(words[2:])
    assert asked.config.model.load == "runs/a/models/raw"
    assert asked.workdir.parent == Path("runs") and asked.workdir.name != "a"


def test_a_method_that_stopped_is_said_with_its_reason():
    record = replace(make_record(), methods=[method_row("fisher", error="no memory")])
    assert "Fisher has not finished: no memory." in text(record)
    assert "No method of forgetting" in text(make_record(methods=()))


def test_a_later_seed_counts_if_the_first_failed():
    record = make_record()
    pruning, *others = record.methods
    failed = replace(pruning, error="no memory")
    second = replace(pruning, name="class_pruning_seed2")
    record = replace(record, methods=[failed, second, *others])
    assert "class pruning" in found(record, make_audit()).headline


@pytest.mark.parametrize(
    ("kind", "targets", "named"),
    [("clients", [3, 4], "clients 3 and 4"), ("examples", [*range(9)], "9 examples")],
)
def test_requests_for_images_are_compared_with_retraining(kind, targets, named):
    outcomes = dict.fromkeys(OUTCOMES, (0.85, 0.86, 20, 12))
    record = make_record(outcomes=outcomes, classes=())
    request = replace(record.request, kind=kind, targets=targets)
    record = replace(record, request=request, classes=[], cuts={})
    said = text(record, make_audit(classes=()))
    assert named in said and "still right" not in said
    far = dict(outcomes, class_pruning=(0.95, 0.86, 20, 12))
    record = replace(make_record(outcomes=far, classes=()), request=request, classes=[])
    about = subject.subject_of(make_run(record))
    assert about.has_forgotten("class_pruning") is False


def test_what_the_answers_chose_is_said_with_the_cut_below_it():
    record = make_record()
    tried = [
        {"rate": 0.05, "forgotten": 1.0, "others": 1.0},
        {"rate": 0.3, "forgotten": 0.0, "others": 0.7},
        {"rate": 0.2, "forgotten": 0.4, "others": 0.9},
        {"rate": 0.25, "forgotten": 0.01, "others": 0.8},
    ]
    first, *others = record.methods
    assert first.method == "class_pruning"
    first = replace(first, notes={"auto_rate": {"3": tried}})
    said = text(replace(record, methods=(first, *others)))
    assert "answers to 4 cuts, R is 0.25 for class 3: right on 1% of it" in said
    assert "80% of the others; 0.2 would have left 40%." in said
