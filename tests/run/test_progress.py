import io

import pytest

from fuprune.run import progress


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


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
    numbers = [line.split()[2] for line in lines]
    assert numbers == ["25/100", "50/100", "75/100", "100/100"]
    assert lines[0].endswith("0:01:15 left  loss 0.0400  100 images/s")
    assert "\x1b" not in text
    assert run_phase(io.StringIO(), rounds=50, seconds=1.0, mode="off") == ""


def test_on_a_terminal_bar_round_and_time_left_fit_and_go_at_the_end(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    stream, clock = Terminal(), Clock()
    shown = progress.Progress(stream=stream, clock=clock)
    metrics = {"validation_u_accuracy": 0.5, "validation_loss": 2.0, "participants": 9}
    with shown, shown.phase("unlearn/class_pruning_seed2", 2000) as update:
        for number in range(1, 4):
            clock.now += 60.0
            update(number, images=100, loss=1.0, **metrics)
        shown._live.refresh()
        line = stream.getvalue().splitlines()[-1]
    assert "\u2501" in line and "3/2000" in line and "1 day, 9:17:00 left" in line
    lasting = "unlearn/class_pruning_seed2: 3/2000 in 0:03:00  loss 1.0000  U 50.0%\n"
    assert lasting in stream.getvalue()


def test_steps_fill_a_bar_that_grows_past_its_guess():
    stream = Terminal()
    shown = progress.Progress(stream=stream)
    with shown, shown.steps("audit", 2) as update:
        for text in ("outputs of raw", "probes, raw", "relearning, raw"):
            update(text)
            shown._live.refresh()
    text = stream.getvalue()
    assert "0/2" in text and "2/3" in text and "relearning, raw" in text
    assert "audit: 3/3 in 0:00:00" in text
    stream = io.StringIO()
    with progress.Progress(stream=stream).steps("audit", 2) as update:
        update("accuracy")
    assert stream.getvalue() == "audit  1/2  accuracy\n"


def test_rounds_after_the_first_give_the_time_of_the_whole_run():
    stream, clock = io.StringIO(), Clock()
    shown = progress.Progress(stream=stream, clock=clock, whole_run_rounds=104)
    with shown.phase("pretrain", 10) as update:
        for number, seconds in enumerate([500.0, 36.0, 36.0, 36.0, 36.0], start=1):
            clock.now += seconds
            update(number)
    said = [line for line in stream.getvalue().splitlines() if "take about" in line]
    assert len(said) == 1 and said[0].startswith(
        "pretrain: 36 s per round; the 100 rounds left in this run take about 1:00:00"
    )


def test_tensorboard_gets_the_numbers_of_a_row(tmp_path):
    pytest.importorskip("tensorboardX")
    with progress.tensorboard(tmp_path) as on_row:
        on_row({"phase": "pretrain", "round": 3, "loss": 0.5, "bad": float("nan")})
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"pretrain/loss" in data and b"bad" not in data
