"""The verdict in words: no failure hidden, controls given their due."""

import pytest

from fuprune.audit.evidence import AuditReport, Evidence
from fuprune.report.run_files import Method, read_run
from fuprune.report.verdict import interval_text, verdict
from tests.report.fixture import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    return read_run(write_run(directory, class_names=tuple("0123456789")))


def evidence(name, verdicts, interval=(0.1, 0.2)):
    return Evidence(
        name=name,
        kind="probe",
        question="?",
        unit="fraction",
        higher_is="two_sided",
        values={model: 0.5 for model in verdicts},
        retrained=[0.14, 0.16],
        interval=list(interval) if interval else None,
        verdicts=verdicts,
        notes=[],
    )


def judged(run, *tests):
    candidates = [name for name in tests[0].values if name != "raw"]
    return verdict(
        run._replace(audit=AuditReport([9], candidates, list(tests), {}, {}))
    )


def test_one_failure_among_passes_is_the_headline(run):
    tests = [evidence(f"test_{i}", {"class_pruning": "pass"}) for i in range(9)]
    tests.append(evidence("probe_auc", {"class_pruning": "fail"}))
    result = judged(run, *tests)
    assert result.tone == "fail"
    assert result.headline.startswith("Class pruning fails 1 of 10 tests")
    fails = dict(result.findings)["Fails"]
    assert fails == "Probe AUC 50.0% (retrained: 10.0% to 20.0%)."


def test_all_passes_say_what_they_mean(run):
    result = judged(run, evidence("a", {"class_pruning": "pass"}))
    assert result.tone == "pass"
    assert "passes all 1 test: here it cannot be told" in result.headline


def test_undecided_tests_are_not_counted_as_passes(run):
    result = judged(
        run,
        evidence("a", {"class_pruning": "pass"}),
        evidence("b", {"class_pruning": "cannot tell"}, interval=None),
    )
    assert result.tone == "unknown"
    assert "but 1 of 2 tests cannot tell" in result.headline
    assert dict(result.findings)["Cannot tell"].startswith("B; each says why")


def test_nothing_decided_is_no_success(run):
    result = judged(run, evidence("a", {"class_pruning": "cannot tell"}))
    assert result.tone == "unknown"
    assert result.headline.startswith("The audit cannot tell whether")


def test_a_control_as_good_as_the_method_is_named(run):
    result = judged(
        run,
        evidence("a", {"class_pruning": "pass", "mask_logit": "pass"}),
        evidence("b", {"class_pruning": "fail", "mask_logit": "cannot tell"}),
    )
    controls = dict(result.findings)["Controls"]
    assert controls.startswith(
        "A trivial control does as well: mask logit has the same"
    )


def test_a_control_that_wins_one_test_is_named_with_the_test(run):
    result = judged(
        run,
        evidence("a", {"class_pruning": "pass", "mask_logit": "fail"}),
        evidence("relearn", {"class_pruning": "fail", "mask_logit": "pass"}),
    )
    controls = dict(result.findings)["Controls"]
    assert controls == "Mask logit does better than class pruning in relearn."


def test_a_beaten_control_is_said_to_be_beaten(run):
    result = judged(run, evidence("a", {"class_pruning": "pass", "mask_logit": "fail"}))
    controls = dict(result.findings)["Controls"]
    assert "Class pruning does better than mask logit" in controls


def test_controls_alone_give_no_verdict(run):
    bare = run._replace(methods=())
    result = judged(bare, evidence("a", {"mask_logit": "pass"}))
    assert result.tone == "unknown"
    assert "Only controls were audited" in result.headline


def test_controls_that_were_as_fast_and_as_low_are_named(run):
    findings = dict(verdict(run).findings)
    assert "That alone proves little: mask logit" in findings["Accuracy"]
    assert "Controls that needed no more rounds" in findings["Speed"]


def method(name, **values):
    fields = dict.fromkeys(Method._fields) | {"method": name, "notes": {}}
    return Method(**(fields | values))


def test_a_target_never_reached_is_said(run):
    slow = method("class_pruning", u_accuracy=0.0, r_accuracy=0.7, rounds=40.0)
    findings = dict(verdict(run._replace(methods=(slow,))).findings)
    assert "did not reach the target of 85.0%" in findings["Speed"]
    assert "in 40 rounds" in findings["Speed"]


def test_retrained_seeds_are_given_as_a_range(run):
    rows = (
        method("class_pruning", u_accuracy=0.0, r_accuracy=0.86, rounds=40.0)._replace(
            rounds_to_target=12.0
        ),
        method("retrain", u_accuracy=0.0, r_accuracy=0.861, rounds_to_target=90.0),
        method(
            "retrain_seed2", u_accuracy=0.0, r_accuracy=0.869, rounds_to_target=110.0
        ),
    )
    findings = dict(verdict(run._replace(methods=rows)).findings)
    assert "(retrained: 0.0% and 86.1% to 86.9%)" in findings["Accuracy"]
    assert "in 12 rounds, retraining in 90 to 110" in findings["Speed"]


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
    assert interval_text(evidence("a", {"x": "pass"}, interval)) == words
