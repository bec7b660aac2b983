"""The first screen in words: no failure hidden, controls given their due."""

import pytest

from fuprune.report import prose
from fuprune.report.judgement import (
    has_power,
    interval_text,
    ordered,
    powerless_membership,
)
from fuprune.report.prose import as_text, first_screen
from tests.report.fixture import (
    evidence,
    make_audit,
    make_record,
    method_row,
    replace,
    with_later_seed,
)

PRUNING = "class_pruning"


def answers(record=None, audit=None):
    return found(first_screen(record or make_record(), audit or make_audit()))


def found(screen):
    return {one.question: f"{one.short} {one.details}" for one in screen.answers}


def judged(*tests):
    return first_screen(make_record(), make_audit(*tests))


def test_the_first_screen_answers_four_questions_in_order():
    screen = first_screen(make_record(), make_audit())
    asked = [answer.question for answer in screen.answers]
    assert asked == ["Gone?", "At what price?", "How sure?", "What next?"]
    assert as_text(screen).startswith(screen.headline)


def test_one_failure_among_passes_is_the_headline():
    tests = [evidence(f"test_{i}", {PRUNING: "pass"}) for i in range(9)]
    result = judged(*tests, evidence("probe_auc", {PRUNING: "fail"}))
    assert result.tone == "fail"
    assert result.headline == (
        "Class pruning can be told from a model that never saw class truck (3): it "
        "fails 1 of 10 headline tests."
    )
    gone = found(result)["Gone?"]
    assert "It fails probe AUC 50.0% (retrained: 10.0% to 20.0%)." in gone


def test_nothing_decided_is_no_success():
    result = judged(evidence("a", {PRUNING: "cannot tell"}))
    assert result.tone == "unknown"
    assert result.headline.startswith("This audit cannot tell whether class pruning")


def test_not_told_apart_is_not_called_a_pass():
    result = judged(evidence("a", {PRUNING: "not told apart at this power"}))
    assert result.tone == "unknown"
    assert result.headline == (
        "Class pruning is not told apart, at this power, from models that never saw "
        "class truck (3): it fails none of 1 headline test."
    )
    assert found(result)["Gone?"].startswith("No trace was found.")


def test_the_headline_counts_its_family_only():
    aside = replace(evidence("further", {PRUNING: "fail"}), family="further")
    audit = make_audit(evidence("a", {PRUNING: "pass"}))
    audit = replace(audit, tests=[*audit.tests, aside])
    screen = first_screen(make_record(), audit)
    assert screen.tone == "pass"
    assert "with at most 5% probability" in found(screen)["How sure?"]
    stricter = replace(audit, settings={**audit.settings, "confidence": 0.99})
    screen = first_screen(make_record(), stricter)
    assert "with about 1% probability" in found(screen)["How sure?"]
    assert "Outside the headline it fails further." in found(screen)["Gone?"]


def test_a_run_without_an_audit_says_so_first():
    screen = first_screen(make_record(classes=(0, 3)), None)
    assert screen.headline == (
        "Not audited: nothing here shows that the model forgot classes airplane (0) "
        "and truck (3)."
    )
    said = found(screen)
    assert "Run the audit phase" in said["What next?"]
    assert "Low accuracy on a class is weak evidence" in said["How sure?"]


def test_controls_alone_give_no_verdict():
    audit = make_audit(evidence("a", {"mask_logit": "pass"}))
    screen = first_screen(make_record(methods=("mask_logit",)), audit)
    assert "Only controls were audited" in screen.headline


def test_models_that_an_audit_left_out_are_named_with_the_reason():
    audit = make_audit(evidence("a", {"mask_logit": "fail", "raw": "fail"}))
    nan = "it answers with NaN"
    left_out = {PRUNING: nan, "fine_tune_only": nan}
    audit = replace(audit, detail=audit.detail | {"left_out": left_out})
    screen = first_screen(make_record(), audit)
    assert screen.headline == "Class pruning could not be judged: it answers with NaN."
    said = "Fine tune only could not be judged: it answers with NaN."
    assert said in found(screen)["How sure?"]


def test_a_later_seed_stands_for_its_method_if_the_first_one_failed():
    fails = dict.fromkeys(("class_pruning_seed2", "mask_logit", "raw"), "fail")
    audit = make_audit(evidence("probe_auc", fails))
    screen = first_screen(with_later_seed(make_record()), audit)
    assert screen.tone == "fail"
    assert screen.headline.startswith("Class pruning seed2 can be told from a model")
    said = found(screen)
    assert "It fails probe AUC 50.0%" in said["Gone?"]
    assert "It does no better than a trivial control: mask logit" in said["Gone?"]
    assert "choose a stronger method" in said["What next?"]


def test_accuracy_carries_data_and_seeds():
    gone = answers()["Gone?"]
    assert (
        "On the digits test images of class truck (3), class pruning is right on 0.0% "
        "(1 seed), the raw model on 90.0%, retraining on 0.0% (2 seeds)."
    ) in gone
    assert "mask logit, which only hides the output, reaches it, too" in gone


@pytest.mark.parametrize(
    ("control", "words"),
    [
        (("pass", "fail"), "It does no better than a trivial control: mask logit has"),
        (("pass", "pass"), "It loses to trivial controls: mask logit has the same or"),
        (("fail", "pass"), "Mask logit does better in relearn."),
        (("fail", "fail"), "It does better than mask logit, and worse in no test."),
    ],
)
def test_a_control_gets_its_due(control, words):
    first, second = control
    result = judged(
        evidence("a", {PRUNING: "pass", "mask_logit": first}),
        evidence("relearn", {PRUNING: "fail", "mask_logit": second}),
    )
    assert words in found(result)["Gone?"]


def test_a_control_that_is_equal_is_not_said_to_win_where_another_does():
    controls = {"mask_logit": "fail", "fine_tune_only": "pass"}
    first = evidence("a", {PRUNING: "pass", **controls})
    second = evidence("b", {PRUNING: "pass", **dict.fromkeys(controls, "pass")})
    third = evidence(
        "c", {PRUNING: "fail", "mask_logit": "pass", "fine_tune_only": "fail"}
    )
    gone = found(judged(first, second, third))["Gone?"]
    assert "Mask logit does better in c." in gone
    assert "It does no better than a trivial control: fine tune only has" in gone
    assert "It loses to trivial controls" not in gone


def test_a_test_without_a_result_is_neither_won_nor_lost():
    verdicts = {PRUNING: "cannot tell", "mask_logit": "not told apart at this power"}
    barrier = evidence("loss_barrier_to_raw", verdicts, kind="weights")
    barrier = replace(barrier, values={PRUNING: None, "mask_logit": 0.0})
    other = evidence("relearn", {PRUNING: "pass", "mask_logit": "fail"})
    gone = found(judged(barrier, other))["Gone?"]
    assert "does better in loss barrier" not in gone
    assert "It does better than mask logit, and worse in no test." in gone


def test_speed_is_told_in_rounds_and_seconds_with_own_work():
    price = answers()["At what price?"]
    assert (
        "It reaches retraining's own 85.5% on the test split after 12 rounds and "
        "22.0 s (2.0 s of it its own work); retraining needs 130 rounds and 2.3 min: "
        "10.8× fewer rounds, 6.36× less time."
    ) in price
    assert "Controls that need no more rounds: fine tune only (10)." in price


def test_a_method_that_is_slower_is_not_called_faster():
    assert prose._ratio(0.5, "fewer", "as many") == "2\N{MULTIPLICATION SIGN} as many"
    assert prose._ratio(4.0, "fewer", "as many") == "4\N{MULTIPLICATION SIGN} fewer"
    assert prose._ratio(1.0, "fewer", "as many") == "as many"
    assert prose._ratio(0.9999, "fewer", "as many") == "as many"


def test_a_target_never_reached_is_said():
    record = make_record()
    late = method_row(PRUNING, reached=None)
    record = replace(record, methods=[late, *record.methods[1:]])
    price = answers(record)["At what price?"]
    goal = "retraining's own 85.5% on the test split"
    assert f"It does not reach {goal} within its 20 rounds." in price
    # A method may do all its training as its own work, in no round.
    record = replace(record, methods=[replace(late, rounds=0), *record.methods[1:]])
    assert f"It does not reach {goal}." in answers(record)["At what price?"]


def test_seeds_that_miss_a_target_others_have_from_the_start_are_counted():
    record = make_record()
    rows = [method_row(PRUNING, reached=reached) for reached in (0, None)]
    record = replace(record, methods=[*rows, *record.methods[1:]])
    price = answers(record)["At what price?"]
    assert "within its 20 rounds in 1 of 2 seeds." in price


def test_a_cheaper_and_better_control_is_named():
    price = answers()["At what price?"]
    assert "for no more rounds: fine tune only (87.0%, 20" in price


def test_training_on_the_forgotten_images_stands_beside_the_numbers():
    record = make_record(methods=("relabel", "retrain"))
    audit = make_audit(evidence("a", {"relabel": "pass"}))
    price = found(first_screen(record, audit))["At what price?"]
    assert "It trains on the forgotten images." in price


def test_membership_without_power_is_one_line_with_its_reason():
    line = powerless_membership(make_audit())
    assert line.startswith(
        "None of the 2 membership tests can tell: even the raw model"
    )
    assert line in answers()["How sure?"]
    able = evidence("shadow_auc", {PRUNING: "pass", "raw": "fail"}, kind="shadow")
    assert powerless_membership(make_audit(able)) == ""


def test_tests_that_could_see_come_first():
    audit = make_audit()
    able = [has_power(test) for test in ordered(audit)]
    assert able == sorted(able, reverse=True)
    assert "4 of 6 tests could see a difference" in answers()["How sure?"]


def test_few_seeds_and_missing_retraining_are_next_steps():
    assert "--config.unlearn.retrain_seeds=5" in answers()["What next?"]
    record = make_record(methods=(PRUNING,))
    bare = found(first_screen(record, None))
    assert "Add retrain to unlearn.methods" in bare["What next?"]
    assert "Add controls" in bare["What next?"]
    assert "This run retrained nothing" in bare["At what price?"]
    # Other runs' models, which the audit compares with, are retraining, too.
    others = answers(record)["What next?"]
    assert "Add retrain" not in others and "retrain_seeds" not in others
    assert "more runs with retrained models in audit.reference" in others
    # Also before there is an audit.
    config = {**record.provenance.config, "audit": {"reference": "runs/b"}}
    named = replace(record, provenance=replace(record.provenance, config=config))
    unaudited = found(first_screen(named, None))["What next?"]
    assert "Run the audit phase" in unaudited and "Add retrain" not in unaudited


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((None, 0.5), "at most 50.0%"),
        ((0.25, None), "at least 25.0%"),
        ((0.25, 0.5), "25.0% to 50.0%"),
        ((None, None), "any"),
        (None, "no interval"),
    ],
)
def test_intervals_read_as_words(interval, words):
    test = evidence("a", {"x": "pass"}, interval=interval)
    assert interval_text(test) == words


@pytest.mark.parametrize(("masked", "said"), [("pass", True), ("fail", False)])
def test_a_headline_that_clears_a_masked_logit_shows_little(masked, said):
    audit = make_audit(evidence("a", {PRUNING: "pass", "mask_logit": masked}))
    sure = found(first_screen(make_record(), audit))["How sure?"]
    assert ("do not tell mask logit apart either" in sure) == said
