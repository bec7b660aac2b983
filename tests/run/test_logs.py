import io
import json
import math
import os
import signal
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

from fuprune import results
from fuprune.results import Provenance, RequestRow, empty_record
from fuprune.run import files, logs, progress
from tests.report.fixture import replace


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_rows_read_back_as_written_while_the_log_is_open(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"phase": "pretrain", "round": i, "loss": 0.1 * i} for i in range(3)]
    with logs.RowLog(path) as log:
        for row in rows:
            log.append(row)
        assert results.read_rows(path) == rows


def test_scalars_of_numpy_and_jax_become_numbers_and_nan_becomes_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with logs.RowLog(path) as log:
        log.append(
            {
                "a": np.float32(0.5),
                "b": jnp.int32(3),
                "c": math.nan,
                "d": np.array([1.0, math.inf]),
                "e": True,
                "f": (1, "é"),
            }
        )
    assert results.read_rows(path) == [
        {"a": 0.5, "b": 3, "c": None, "d": [1.0, None], "e": True, "f": [1, "é"]}
    ]


def test_row_that_json_cannot_hold_writes_nothing(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with logs.RowLog(path) as log, pytest.raises(TypeError, match="not JSON"):
        log.append({"a": object()})
    assert path.read_bytes() == b""


def test_resume_cuts_back_to_the_offset_of_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with logs.RowLog(path) as log:
        log.append({"round": 1})
        offset = log.offset()
        log.append({"round": 2})
    with logs.RowLog(path) as log:
        log.truncate_to(offset)
        log.append({"round": 2, "again": True})
    assert results.read_rows(path) == [{"round": 1}, {"round": 2, "again": True}]


def test_offset_beyond_the_file_is_refused(tmp_path):
    with logs.RowLog(tmp_path / "m.jsonl") as log:
        with pytest.raises(ValueError, match="offset is 7, but the file has 0 bytes"):
            log.truncate_to(7)


@pytest.mark.parametrize("tail", [b'{"round": 2, "lo', b"x" * 200_000])
def test_partial_last_line_is_not_read_and_is_dropped_on_reopening(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n' + tail)
    assert results.read_rows(path) == [{"round": 1}]
    with logs.RowLog(path) as log:
        log.append({"round": 2})
    assert results.read_rows(path) == [{"round": 1}, {"round": 2}]


def test_log_without_a_path_discards():
    log = logs.RowLog(None)
    log.append({"round": 1})
    log.truncate_to(0)
    assert log.offset() == 0


def test_timings_hold_images_per_second(tmp_path):
    path = tmp_path / "timings.jsonl"
    with logs.RowLog(path) as log:
        log.append(logs.round_clock("pretrain", 3, 0.5, images=100))
    assert results.read_rows(path) == [
        {"phase": "pretrain", "round": 3, "seconds": 0.5, "images_per_second": 200.0}
    ]


def run_phase(stream, rounds, seconds, **options):
    clock = Clock()
    shown = progress.Progress(stream=stream, clock=clock, **options)
    with shown, shown.phase("pretrain", rounds) as update:
        for number in range(1, rounds + 1):
            clock.now += seconds
            update(number, images=100, loss=1.0 / number)
    return stream.getvalue()


def test_without_a_terminal_plain_lines_come_at_intervals():
    text = run_phase(io.StringIO(), rounds=100, seconds=1.0, interval=25.0)
    lines = [line for line in text.splitlines() if "round " in line and "/100" in line]
    assert [line.split()[2] for line in lines] == [
        "25/100",
        "50/100",
        "75/100",
        "100/100",
    ]
    assert "loss 0.0400  1 rounds/s  100 images/s  1 min 15 s left" in lines[0]
    assert "\x1b" not in text


def test_on_a_terminal_the_line_is_live():
    text = run_phase(Terminal(), rounds=5, seconds=1.0)
    assert "5/5" in text and "rounds/s" in text and "\x1b[" in text


def test_progress_that_is_off_says_nothing():
    assert run_phase(io.StringIO(), rounds=50, seconds=1.0, mode="off") == ""


def test_steps_fill_a_bar_that_grows_past_its_guess():
    stream = Terminal()
    shown = progress.Progress(stream=stream)
    with shown, shown.steps("audit", 2) as update:
        for text in ("outputs of raw", "probes, raw", "relearning, raw"):
            update(text)
            shown._live.refresh()
    text = stream.getvalue()
    assert "0/2" in text and "1/2" in text and "2/3" in text and "3/3" in text
    assert "relearning, raw" in text


def test_steps_are_plain_lines_elsewhere():
    stream = io.StringIO()
    with progress.Progress(stream=stream).steps("audit", 2) as update:
        update("accuracy")
    assert stream.getvalue() == "audit: accuracy\n"


def test_prose_is_broken_at_words():
    stream = io.StringIO()
    progress.Progress(stream=stream).prose("a long word " * 20)
    lines = stream.getvalue().splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= 80


def test_first_rounds_give_the_time_of_the_whole_run():
    text = run_phase(io.StringIO(), rounds=10, seconds=36.0, whole_run_rounds=104)
    said = [line for line in text.splitlines() if "take about" in line]
    assert said == [
        "pretrain: 36 s per round; the 100 rounds left in this run take about "
        "1 h 0 min."
    ]


def test_compilation_in_the_first_round_is_not_counted():
    clock = Clock()
    stream = io.StringIO()
    with progress.Progress(stream=stream, clock=clock).phase(
        "pretrain", 1000
    ) as update:
        for number, seconds in enumerate([500.0, 1.0, 1.0, 1.0], start=1):
            clock.now += seconds
            update(number)
    assert "pretrain: 1 s per round" in stream.getvalue()


@pytest.mark.parametrize(
    ("platform", "seconds", "named"),
    [("cpu", 100.0, True), ("cpu", 1.0, False), ("gpu", 100.0, False)],
)
def test_days_on_a_cpu_name_the_reduced_config(platform, seconds, named):
    text = progress.estimate(
        "pretrain", seconds, 2000, platform=platform, reduced_config="configs/small.py"
    )
    assert ("--config configs/small.py" in text) == named


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (61, "1 min 1 s"),
        (3_599.6, "1 h 0 min"),
        (90_000, "1 day 1 h"),
        (200_000, "2 days 7 h"),
    ],
)
def test_duration_is_said_in_two_units(seconds, text):
    assert progress.duration(seconds) == text


def test_plain_table_lines_up_and_shows_markup_as_it_is():
    stream = io.StringIO()
    rows = [{"method": "[red]a", "U": 0.123456}, {"method": "b", "U": None, "n": 3}]
    progress.print_table(rows, title="Table", stream=stream)
    assert stream.getvalue().splitlines() == [
        "Table",
        "method |      U | n",
        "-------+--------+--",
        "[red]a | 0.1235 | -",
        "b      |      - | 3",
    ]


def test_terminal_table_shows_markup_as_it_is():
    stream = Terminal()
    progress.print_table([{"method": "[red]a[/red]", "U": 0.5}], stream=stream)
    assert "[red]a[/red]" in stream.getvalue()


def test_empty_table_is_harmless():
    progress.print_table([], stream=io.StringIO())


@pytest.mark.parametrize(
    ("kind", "targets", "words"),
    [
        ("classes", [9], "class 9"),
        ("classes", [0, 9], "classes 0, 9"),
        ("clients", [1, 4], "clients 1, 4"),
        ("examples", list(range(40)), "40 examples"),
    ],
)
def test_tables_at_the_end_name_what_was_forgotten(kind, targets, words, capsys):
    record = empty_record(Provenance({}, {}, "", [], ""))
    progress.show_record(replace(record, request=RequestRow(kind, targets, "", "")))
    assert f"Accuracy by stage, forgetting {words}\n" in capsys.readouterr().out


HOLDER = """
    import sys, time
    from fuprune.run import files

    with files.lock_workdir(sys.argv[1]):
        print("held", flush=True)
        time.sleep(600)
"""


def test_second_run_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(files.WorkdirBusyError, match=f"by process {child.pid} on"):
            with files.lock_workdir(tmp_path):
                pass
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with files.lock_workdir(tmp_path):
        pass


def test_lock_is_released_on_leaving(tmp_path):
    with files.lock_workdir(tmp_path):
        pass
    with files.lock_workdir(tmp_path):
        assert json.dumps(os.getpid()) in (tmp_path / ".lock").read_text()
