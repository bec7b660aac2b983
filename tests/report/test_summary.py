"""The first screen: honest verdicts, and controls beside every claim."""

import pytest

from fuprune.report import roles
from fuprune.report.summary import as_text, summary
from tests.report.fixture import (
    OUTCOMES,
    audit_row,
    make_audit,
    make_record,
    make_run,
    method_row,
    replace,
    stage_row,
)


def found(record=None, audit=None):
    return summary(roles.subject_of(make_run(record, audit)))


def text(record=None, audit=None):
    return as_text(found(record, audit))


def test_no_difference_is_said_with_its_measures_and_models():
    one = found(audit=make_audit())
    assert one.tone == "unsure"
    assert "No difference was found between class pruning" in one.headline
    said = as_text(one)
    assert "3 measures with 95% intervals against 3 retrained models" in said
    assert "1 of them cannot even tell the raw model apart" in said
    assert "No control does as well." in said


def test_a_difference_is_bad_and_names_the_measures():
    rows = (audit_row("probe_auc", ("class_pruning", "raw")), audit_row("u_accuracy"))
    one = found(audit=make_audit(*rows))
    assert one.tone == "bad" and "differs in 1 of 2 measures" in one.headline
    assert "Probe AUC differ from retraining" in as_text(one)


def test_a_network_that_still_answers_did_not_forget():
    record = make_record(outcomes={"class_pruning": (1.0, 0.86, 20, 12)})
    one = found(record, make_audit())
    assert one.tone == "bad"
    said = as_text(one)
    assert "did not forget class truck (3)" in one.headline
    assert "Gone? No: still right on 100% of class truck (3)." in said
    assert "Try a larger rate than 0.1, prune.rate=auto or the method relabel." in said
    assert "Speed is not compared, because it did not forget." in said


def test_without_an_audit_nothing_is_called_forgotten():
    one = found()
    assert one.tone == "unsure" and "it was not audited" in one.headline
    said = as_text(one)
    assert "The control mask logit, which only hides the output, does as well." in said
    assert "Add audit to phases" in said


def test_a_control_with_the_same_verdict_is_named():
    rows = (audit_row("u_accuracy", ("raw",)), audit_row("probe_auc", ("raw",)))
    said = text(audit=make_audit(*rows))
    assert "The control mask logit, which only hides the output, does as well." in said


def test_price_is_compared_with_what_forgot_only():
    said = text()
    assert "Speed-up over retraining" in said and "10.8× in images" in said
    # It keeps more accuracy, but it did not forget.
    assert "fine tune only" not in said.split("At what price?")[1].split("\n")[0]
    slower = {"class_pruning": (0.0, 0.8, 20, 130), "retrain_seed2": (0, 0.8, 200, 60)}
    assert "slower in images" in text(make_record(outcomes=slower))


def test_an_undertrained_raw_model_is_called_that():
    record = make_record()
    weak = stage_row("raw", "raw", 0.9, 0.54)
    record = replace(record, stages=[weak, *record.stages[1:]])
    assert "The raw model is undertrained: 54% on the rest" in text(record)
    assert "Train the raw model for longer" in text(record)
    assert "undertrained" not in text()


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (("class_pruning", "mask_logit"), "Add retrain to unlearn.methods"),
        (
            ("class_pruning", "retrain"),
            "Add the controls mask_logit and fine_tune_only",
        ),
        (("class_pruning", "retrain", "mask_logit"), "unlearn.retrain_seeds=5"),
    ],
)
def test_what_is_missing_is_asked_for(methods, said):
    audit = make_audit() if len(methods) == 3 else None
    assert said in text(make_record(methods=methods), audit)


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
    subject = roles.subject_of(make_run(record))
    assert subject.has_forgotten("class_pruning") is False
