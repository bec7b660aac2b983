"""The record of a run: times are whole, crossings count on one grid from round 0."""

import json
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuprune import typed_json
from fuprune.errors import FupruneError
from fuprune.run import files, logs
from fuprune.run.record import (
    FORMAT,
    CurveRow,
    PhaseClock,
    Provenance,
    RequestRow,
    RunRecord,
    StageRow,
    TrainedOutcome,
    UnlearnedOutcome,
    add_outcomes,
)

EMPTY = RunRecord(
    FORMAT,
    Provenance({}, {}, "", [], "cpu"),
    "digits",
    {},
    [0],
    [],
    "validation",
    [],
    [],
    {},
    {},
    [],
    None,
    RequestRow("classes", [], "", ""),
)


def stage(name, kind, accuracy):
    return StageRow(name, kind, accuracy, 0.0, accuracy, 1.0, [accuracy], [[1]])


def outcome(name, budget="fine_tune", *, rounds=0, error=None):
    stages = [] if error else [stage(name, "last", 0.5)]
    return UnlearnedOutcome(
        name, name, 0, budget, stages, rounds, 100, 7, [], {}, {}, error
    )


def curve(name, accuracies, metric="validation_r_accuracy"):
    """Rounds 0, 1, ...; None is a round without evaluation. Round n trains n images."""
    return [
        CurveRow(
            f"unlearn/{name}",
            number,
            {"images": float(number)} | ({} if a is None else {metric: a}),
        )
        for number, a in enumerate(accuracies)
    ]


def record_of(outcomes, curves, clocks=None, target=0.8):
    trained = TrainedOutcome(stage("raw", "raw", 0.9), 0.8, 0.85)
    return add_outcomes(
        EMPTY,
        trained,
        outcomes,
        curves=curves,
        clocks=clocks or {},
        configured_target=target,
    )


def crossing(record, name, target):
    (row,) = [row for row in record.methods if row.name == name]
    (found,) = [c for c in row.crossings if c.target == target]
    return found


def test_a_method_that_starts_at_the_target_crosses_in_round_0():
    curves = curve("fine_tune_only", [0.8, 0.9])
    record = record_of([outcome("fine_tune_only", rounds=1)], curves)
    found = crossing(record, "fine_tune_only", "configured")
    assert (found.rounds, found.images, found.upload_bytes) == (0, 0, 100)


def test_the_target_is_where_retraining_itself_ended():
    curves = curve("retrain", [0.1, 0.7, None, 0.6]) + curve("cut", [0.2, 0.6])
    outcomes = [outcome("cut", rounds=1), outcome("retrain", "training", rounds=3)]
    record = record_of(outcomes, curves)
    assert crossing(record, "cut", "retrained").accuracy == 0.6
    assert crossing(record, "cut", "retrained").rounds == 1
    assert crossing(record, "retrain", "retrained").rounds == 1
    assert crossing(record, "cut", "raw_masked").rounds is None
    assert crossing(record, "cut", "raw_masked").accuracy == 0.85


def test_short_retraining_sets_no_target():
    curves = curve("retrain_short", [0.1, 0.7])
    record = record_of([outcome("retrain_short", "short", rounds=1)], curves)
    targets = [found.target for found in record.methods[0].crossings]
    assert targets == ["raw_masked", "configured"]


def test_seconds_include_the_methods_own_work_and_repeated_rounds():
    clock = PhaseClock(5.0, [(1, 1.0), (2, 2.0), (2, 2.5), (3, 4.0)])
    curves = curve("cut", [0.1, 0.2, 0.8, 0.9])
    record = record_of([outcome("cut", rounds=3)], curves, {"unlearn/cut": clock})
    assert crossing(record, "cut", "configured").seconds == 5.0 + 1.0 + 2.0 + 2.5
    times = record.methods[0].times
    assert (times.own, times.training, times.total) == (5.0, 9.5, 14.5)


def test_a_method_that_stopped_has_an_error_and_no_crossing():
    record = record_of([outcome("fisher", error="it diverged")], [])
    (row,) = record.methods
    assert row.error == "it diverged" and row.crossings == []
    assert row.u_accuracy is None and row.rounds == 0


def test_choices_are_read_from_the_split_they_were_made_on():
    row = CurveRow("pretrain", 1, {"r_accuracy": 0.9, "validation_r_accuracy": 0.5})
    assert row.judged("r_accuracy") == 0.5
    assert CurveRow("pretrain", 1, {"r_accuracy": 0.9}).judged("r_accuracy") == 0.9
    assert CurveRow("pretrain", 1, {"loss": 0.9}).judged("r_accuracy") is None


def test_images_are_those_of_the_rounds_and_of_the_methods_own_work():
    curves = [CurveRow("unlearn/cut", n, {"images": 9.0 * n}) for n in range(3)]
    trained = outcome("cut", rounds=2)._replace(notes={"images": 100})
    (row,) = record_of([trained], curves).methods
    assert row.images == 9 + 18 + 100


@given(
    st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=8),
    st.floats(0.01, 1),
)
def test_crossings_agree_with_a_walk_along_the_curve(accuracies, target):
    curves = curve("cut", accuracies)
    seconds = [(n, 0.5 * n) for n in range(1, len(accuracies))]
    clocks = {"unlearn/cut": PhaseClock(3.0, seconds)}
    rounds = len(accuracies) - 1
    record = record_of([outcome("cut", rounds=rounds)], curves, clocks, target=target)
    found = crossing(record, "cut", "configured")
    images, clock, first = 0, 3.0, None
    for number, accuracy in enumerate(accuracies):
        images += number
        clock += 0.5 * number
        if accuracy is not None and accuracy >= target:
            first = number
            break
    if first is None:
        assert found[2:] == (None, None, None, None)
    else:
        assert found.rounds == first and found.images == images
        np.testing.assert_allclose(found.seconds, clock, atol=1e-3)
        assert found.upload_bytes == 100 + first * 7
    assert record.methods[0].upload_bytes == 100 + rounds * 7


def test_a_record_comes_back_from_its_file(tmp_path):
    curves = curve("retrain", [0.1, 0.7]) + curve("cut", [0.2, 0.6])
    outcomes = [outcome("cut", rounds=1), outcome("retrain", "training", rounds=1)]
    record = record_of(outcomes, curves)
    (tmp_path / "results.json").write_text(typed_json.dumps(record))
    assert files.read_record(tmp_path) == record


def test_committed_records_are_read_strictly_and_agree_with_their_curves(repository):
    found = sorted((repository / "results").glob("*/results.json"))
    assert len(found) >= 10
    for path in found:
        record = files.read_record(path.parent)
        assert record.format == FORMAT and record.chosen_on in ("test", "validation")
        curves = logs.read_curves(path.parent)
        for row in record.methods:
            rounds = [
                c.round_number for c in curves if c.phase.endswith(f"/{row.name}")
            ]
            assert max(rounds, default=0) == row.rounds, (path, row.name)
            assert row.times.own > 0 and row.times.training >= 0


@pytest.mark.parametrize("field", RunRecord._fields)
def test_a_record_that_lacks_a_field_is_one_sentence(tmp_path, field):
    plain = typed_json.to_plain(EMPTY)
    del plain[field]
    (tmp_path / "results.json").write_text(json.dumps(plain))
    with pytest.raises(FupruneError, match=f"has no '{field}'"):
        files.read_record(tmp_path)


def test_curves_and_clocks_leave_out_what_is_no_number(tmp_path):
    rows: list[dict[str, typing.Any]] = [
        {"phase": "pretrain", "round": 0, "r_accuracy": 0.1},
        {"phase": "pretrain", "round": 1, "loss": None, "rejected": [3]},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"phase": "pretr')
    assert logs.read_curves(tmp_path) == [
        CurveRow("pretrain", 0, {"r_accuracy": 0.1}),
        CurveRow("pretrain", 1, {}),
    ]
    clocks = [
        {"phase": "unlearn/cut", "own_seconds": 2.0},
        {"phase": "unlearn/cut", "round": 1, "seconds": 1.5, "images_per_second": 2.0},
        {"phase": "unlearn/cut", "own_seconds": 0.5},
        {"phase": "unlearn/cut", "unit_seconds": 9.0, "program_seconds": 4.0},
        {"phase": "audit", "unit_seconds": 3.0, "program_seconds": None},
    ]
    text = "".join(json.dumps(row) + "\n" for row in clocks)
    (tmp_path / "timings.jsonl").write_text(text)
    assert logs.read_clocks(tmp_path) == {
        "unlearn/cut": PhaseClock(2.5, [(1, 1.5)], 9.0, 4.0),
        "audit": PhaseClock(0.0, [], 3.0, None),
    }
