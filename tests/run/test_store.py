"""Rows, finished units and the lock of a workdir."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from fuprune import results
from fuprune.federated.train import Record
from fuprune.results import (
    FormatError,
    MethodRow,
    PicturesRow,
    RunRecord,
    StageRow,
)
from fuprune.run import store
from fuprune.run.store import Store, append_row

RAW = RunRecord(stages=[StageRow("raw", "raw")], targets={"configured": 0.5})


def rounds_of(workdir):
    rows = results.read_rows(workdir / "metrics.jsonl")
    return [(row["phase"], row["round"]) for row in rows]


def test_rows_read_back_as_written(tmp_path):
    files = Store(tmp_path)
    row = files.log("pretrain", Record(1, {"loss": 0.5}, rejected=(3,)))
    assert row == {"phase": "pretrain", "round": 1, "loss": 0.5, "rejected": [3]}
    assert results.read_rows(tmp_path / "metrics.jsonl") == [row]
    files.clock_round("pretrain", 3, 0.5, images=100)
    assert results.read_rows(tmp_path / "timings.jsonl") == [
        {"phase": "pretrain", "round": 3, "seconds": 0.5, "images_per_second": 200.0}
    ]


def test_a_unit_drops_the_rows_it_will_write_again_and_no_others(tmp_path):
    files = Store(tmp_path)
    files.open_logs()
    files.drop_rows("pretrain", after=0)
    for unit, number in [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 1)]:
        files.log(unit, Record(number, {}))
    files.drop_rows("a", after=1)
    assert rounds_of(tmp_path) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    files.drop_rows("b", after=-1)
    assert rounds_of(tmp_path) == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("tail", [b'{"round": 2, "lo', b"x" * 200_000])
def test_partial_last_line_is_not_read_and_is_dropped_at_the_start(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n' + tail)
    assert results.read_rows(path) == [{"round": 1}]
    Store(tmp_path).open_logs()
    append_row(path, {"round": 2})
    assert results.read_rows(path) == [{"round": 1}, {"round": 2}]


def test_results_are_the_union_of_units_and_a_finished_one_is_not_done_again(tmp_path):
    files = Store(tmp_path)
    files.open_logs()
    cut = RunRecord(methods=[MethodRow("cut")], stages=[StageRow("cut", "cut")])
    done = {"pretrain": RAW, "unlearn/cut": cut}
    done["pictures"] = RunRecord(pictures=PicturesRow("cut"))
    for unit, found in done.items():
        files.do(unit, lambda found=found: found)
    files.log("unlearn/cut", Record(0, {"r_accuracy": 0.75}))
    files.clock("unlearn/cut", own_seconds=2.0)
    files.save()
    (row,) = results.read_record(tmp_path).methods
    assert row.times.own == 2.0 and row.crossings[0].rounds == 0
    again = Store(tmp_path)
    assert again.record == files.record  # costs are not of it
    for unit in done:
        again.do(unit, pytest.fail)
    assert not again.is_finished("audit") and not again.is_finished("feature_maps")
    (tmp_path / "results.json").write_text('{"stages": 3}')
    with pytest.raises(FormatError, match="stages is 3: "):
        Store(tmp_path)


HOLDER = """
    import sys, time
    from fuprune.run import store

    with store.lock_workdir(sys.argv[1]):
        print("held", flush=True)
        time.sleep(600)
"""


def test_second_run_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(store.WorkdirBusyError, match=f"by process {child.pid} on"):
            with store.lock_workdir(tmp_path):
                pass
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with store.lock_workdir(tmp_path):
        pass
