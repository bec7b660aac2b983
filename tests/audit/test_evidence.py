import json

import hypothesis
import hypothesis.strategies as st
import pytest

from fuprune.audit.evidence import AuditReport, Evidence, Headline


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
        family="headline",
        sampling_error=0.01,
        smallest_difference=0.07,
        p_values={"a": 0.003, "raw": None},
        adjusted_p_values={"a": 0.006, "raw": None},
    )
    return AuditReport(
        [3],
        ["a"],
        [evidence._replace(**changes)],
        {"roc": {}},
        {},
        {"a": Headline("fail", 1, ["u_accuracy"], 0.006)},
    )


def test_report_survives_json():
    report = make_report()
    again = AuditReport.from_json(report.to_json())
    assert again == report
    assert isinstance(again.tests[0], Evidence)


def test_a_model_without_a_result_has_null_for_a_value():
    report = make_report(
        values={"a": None, "raw": 0.9},
        retrained=[None, 0.1],
        verdicts={"a": "cannot tell", "raw": "not told apart at this power"},
    )
    assert AuditReport.from_json(report.to_json()) == report


def test_numbers_json_has_no_word_for_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        make_report(values={"a": float("nan"), "raw": 1.0}).to_json()
    text = make_report().to_json().replace("0.1", "NaN")
    with pytest.raises(ValueError, match="no word for"):
        AuditReport.from_json(text)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plain: plain.pop("detail"),
        lambda plain: plain["detail"].update(roc={"attack": {"a": [0.1]}}),
        lambda plain: plain["detail"].update(relearn={"level": 0.9}),
        lambda plain: plain.update(extra=1),
        lambda plain: plain.update(format=0),
        lambda plain: plain.update(tests={}),
        lambda plain: plain["tests"][0].pop("notes"),
        lambda plain: plain["tests"][0].update(higher_is="odd"),
        lambda plain: plain["tests"][0]["verdicts"].update(a="perhaps"),
        lambda plain: plain["tests"][0]["verdicts"].pop("a"),
        lambda plain: plain["tests"][0]["values"].update(a="0.1"),
        lambda plain: plain["tests"][0].update(interval=[0.1]),
        lambda plain: plain["tests"][0].update(family="other"),
        lambda plain: plain["tests"][0]["p_values"].update(a=1.5),
        lambda plain: plain["tests"][0]["adjusted_p_values"].pop("a"),
        lambda plain: plain["headlines"]["a"].update(verdict="perhaps"),
        lambda plain: plain["headlines"]["a"].pop("failed"),
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


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**53 + 1])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["pass", "fail", "worse", "raw", "a", "two\nlines"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(tree, path=()):
    """The path of every value inside a JSON document, the document's own included."""
    yield path
    inside = tree if isinstance(tree, dict) else {}
    if isinstance(tree, list):
        inside = dict(enumerate(tree))
    for step, child in inside.items():
        yield from places(child, (*path, step))


@hypothesis.given(st.data())
def test_any_change_is_read_whole_or_refused_in_one_sentence(data):
    """Whatever stands in the file, no other error than ValueError comes out."""
    plain = json.loads(make_report().to_json())
    path = data.draw(st.sampled_from(list(places(plain))))
    value = data.draw(VALUES)
    if not path:
        plain = value
    else:
        parent = plain
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = value
    check_reading(json.dumps(plain))


@hypothesis.given(
    st.text(max_size=30)
    | VALUES.map(json.dumps)
    | st.sampled_from(["1" * 5000, "[" * 100_000, "1e999", "\ufeff{}"])
)
def test_any_text_is_refused_in_one_sentence(text):
    check_reading(text)


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400, "9" * 5000])
def test_numbers_beyond_a_float_are_refused(number):
    text = make_report().to_json().replace("0.1", number)
    assert number in text
    with pytest.raises(ValueError):
        AuditReport.from_json(text)


def check_reading(text):
    try:
        report = AuditReport.from_json(text)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 500
    else:
        assert AuditReport.from_json(report.to_json()) == report
