import json

import pytest

from fuprune.audit import AuditReport, Evidence


def make_report(**changes):
    evidence = Evidence(
        name="u_accuracy",
        kind="accuracy",
        question="Still there?",
        unit="fraction",
        higher_is="worse",
        values={"a": 0.1, "raw": 0.9},
        retrained=[0.0, 0.01],
        interval=[None, 0.05],
        verdicts={"a": "fail", "raw": "fail"},
        notes=["a note"],
    )
    return AuditReport([3], ["a"], [evidence._replace(**changes)], {"roc": {}}, {})


def test_report_survives_json():
    report = make_report()
    again = AuditReport.from_json(report.to_json())
    assert again == report
    assert isinstance(again.tests[0], Evidence)


def test_numbers_json_has_no_word_for_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        make_report(values={"a": float("nan"), "raw": 1.0}).to_json()
    text = make_report().to_json().replace("0.1", "NaN")
    with pytest.raises(ValueError, match="NaN"):
        AuditReport.from_json(text)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plain: plain.pop("detail"),
        lambda plain: plain.update(extra=1),
        lambda plain: plain.update(format=0),
        lambda plain: plain.update(tests={}),
        lambda plain: plain["tests"][0].pop("notes"),
        lambda plain: plain["tests"][0].update(higher_is="odd"),
        lambda plain: plain["tests"][0]["verdicts"].update(a="perhaps"),
        lambda plain: plain["tests"][0]["verdicts"].pop("a"),
        lambda plain: plain["tests"][0]["values"].update(a="0.1"),
        lambda plain: plain["tests"][0].update(interval=[0.1]),
    ],
)
def test_anything_else_is_refused(spoil):
    plain = json.loads(make_report().to_json())
    spoil(plain)
    with pytest.raises(ValueError):
        AuditReport.from_json(json.dumps(plain))


def test_broken_text_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="run the audit phase again"):
        AuditReport.from_json("{")
