"""Records of runs survive their files; costs follow from curves and clocks."""

import dataclasses
import json
import math
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuprune import results
from fuprune.errors import FupruneError
from fuprune.results import CurveRow, MethodRow, PhaseClock, RunRecord, StageRow


def method(name, *, rounds=0, **fields):
    return MethodRow(
        name, name, rounds=rounds, statistics_bytes=100, model_bytes=7, **fields
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


def record_of(methods, curves, clocks=None, target: float | None = 0.8):
    targets = {"raw_masked": 0.85, "configured": target}
    record = RunRecord(methods=list(methods), targets=targets)
    return results.with_costs(record, curves, clocks or {})


def crossing(record, name, target):
    (row,) = [row for row in record.methods if row.name == name]
    found = results.crossing(row, target)
    assert found is not None
    return found


def test_the_target_is_where_retraining_itself_ended():
    curves = curve("retrain", [0.1, 0.7, None, 0.6]) + curve("cut", [0.2, 0.6])
    record = record_of([method("cut", rounds=1), method("retrain", rounds=3)], curves)
    assert crossing(record, "cut", "retrained").accuracy == 0.6
    assert crossing(record, "cut", "retrained").rounds == 1
    assert crossing(record, "retrain", "retrained").rounds == 1
    assert crossing(record, "cut", "raw_masked").rounds is None
    assert crossing(record, "cut", "raw_masked").accuracy == 0.85


def test_short_retraining_sets_no_target_and_none_is_no_target():
    curves = curve("retrain_short", [0.1, 0.7])
    record = record_of([method("retrain_short", rounds=1)], curves, target=None)
    assert [one.target for one in record.methods[0].crossings] == ["raw_masked"]


def test_a_method_that_stopped_has_no_crossing():
    (row,) = record_of([method("fisher", error="it diverged")], []).methods
    assert row.crossings == [] and row.images == 0


@given(
    st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=8),
    st.floats(0.01, 1),
)
def test_crossings_agree_with_a_walk_along_the_curve(accuracies, target):
    curves = curve("cut", accuracies)
    seconds = [(n, 0.5 * n) for n in range(1, len(accuracies))]
    clocks = {"unlearn/cut": PhaseClock(3.0, seconds)}
    rounds = len(accuracies) - 1
    record = record_of([method("cut", rounds=rounds)], curves, clocks, target=target)
    found = crossing(record, "cut", "configured")
    images, clock, first = 0, 3.0, None
    for number, accuracy in enumerate(accuracies):
        images += number
        clock += 0.5 * number
        if accuracy is not None and accuracy >= target:
            first = number
            break
    if first is None:
        assert found == results.Crossing("configured", target)
    else:
        assert found.rounds == first and found.images == images
        np.testing.assert_allclose(found.seconds, clock, atol=1e-3)
        assert found.upload_bytes == 100 + first * 7
    assert record.methods[0].upload_bytes == 100 + rounds * 7


def test_a_record_comes_back_from_its_file(tmp_path):
    curves = curve("retrain", [0.1, 0.7]) + curve("cut", [0.2, 0.6])
    record = record_of([method("cut", rounds=1), method("retrain", rounds=1)], curves)
    stage = StageRow("raw", "raw", 0.9, 0.0, 0.9, 1.0, [0.9, None], [[1, 0], [0, 1]])
    record = dataclasses.replace(record, stages=[stage])
    (tmp_path / "results.json").write_text(results.dumps(record))
    assert results.read_record(tmp_path) == record
    assert results.with_costs(record, [], {}) == record


def published(repository):
    found = sorted((repository / "results").glob("*/results.json"))
    assert len(found) >= 10
    return found


def test_published_records_agree_with_their_curves(repository):
    for path in published(repository):
        run = results.read_run(path.parent)
        assert run.record.chosen_on in ("test", "validation")
        for row in run.record.methods:
            rounds = [
                c.round_number for c in run.curves if c.phase.endswith(f"/{row.name}")
            ]
            assert max(rounds, default=0) == row.rounds, (path, row.name)
            assert row.times.own > 0 and row.times.training >= 0


def test_published_costs_are_those_of_curves_and_clocks(repository):
    compared = 0
    for path in published(repository):
        run = results.read_run(path.parent)
        bare = [
            dataclasses.replace(row, images=0, times=results.Times(), crossings=[])
            for row in run.record.methods
        ]
        made = results.with_costs(
            dataclasses.replace(run.record, methods=bare), run.curves, run.clocks
        )
        for stored, row in zip(run.record.methods, made.methods, strict=True):
            # The first versions kept no clock of a method's own work.
            if f"unlearn/{row.name}" in run.clocks and row.times.own:
                assert row == stored, (path, row.name)
                compared += 1
    assert compared > 50


def test_a_published_record_with_a_field_more_or_less_reads(repository, tmp_path):
    plain = json.loads(published(repository)[0].read_text())
    places = [plain, plain["methods"][0], plain["stages"][0], plain["provenance"]]
    for place in places:
        for field in list(place):
            value = place.pop(field)
            place["of_another_version"] = 1
            (tmp_path / "results.json").write_text(json.dumps(plain))
            assert results.read_run(tmp_path).notes[0] != "", field
            assert results.read_record(tmp_path).methods is not None
            place[field] = value


def test_arrays_and_what_is_not_finite_become_plain():
    value = {"a": np.arange(2), "b": (math.nan, np.float32(1)), 3: math.inf}
    assert results.to_plain(value) == {"a": [0, 1], "b": [None, 1.0], "3": None}


def test_curves_and_clocks_leave_out_what_is_no_number(tmp_path):
    rows: list[dict[str, typing.Any]] = [
        {"phase": "pretrain", "round": 0, "r_accuracy": 0.1},
        {"phase": "pretrain", "round": 1, "loss": None, "rejected": [3]},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"phase": "pretr')
    assert results.read_curves(tmp_path) == [
        CurveRow("pretrain", 0, {"r_accuracy": 0.1}),
        CurveRow("pretrain", 1, {}),
    ]
    clocks = [
        {"phase": "unlearn/cut", "own_seconds": 2.0},
        {"phase": "unlearn/cut", "round": 1, "seconds": 1.5, "images_per_second": 2.0},
        {"phase": "unlearn/cut", "own_seconds": 0.5, "compiling": 0.25},
        {"phase": "unlearn/cut", "unit_seconds": 9.0},
        {"phase": "audit", "unit_seconds": 3.0},
    ]
    text = "".join(json.dumps(row) + "\n" for row in clocks)
    (tmp_path / "timings.jsonl").write_text(text)
    assert results.read_clocks(tmp_path) == {
        "unlearn/cut": PhaseClock(2.5, [(1, 1.5)], 9.0, 0.25),
        "audit": PhaseClock(0.0, [], 3.0),
    }


def test_a_broken_file_becomes_a_note(tmp_path):
    with pytest.raises(FupruneError, match="is not a run"):
        results.read_run(tmp_path)
    (tmp_path / "results.json").write_text("{")
    (tmp_path / "config.json").write_text('{"config": {"data": {"name": "digits"}}}')
    (tmp_path / "feature_maps.npz").write_bytes(b"no archive")
    run = results.read_run(tmp_path)
    assert run.record.dataset == "digits" and run.feature_maps is None
    noted = " ".join(run.notes)
    assert (
        "results.json does not parse" in noted and "metrics.jsonl is missing" in noted
    )
    assert "feature_maps.npz does not parse" in noted and str(tmp_path) not in noted
