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
    assert [line.split()[2] for line in lines] == [
        "25/100",
        "50/100",
        "75/100",
        "100/100",
    ]
    assert lines[0].endswith("1 min 15 s left  loss 0.0400  100 images/s")
    assert "\x1b" not in text


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_bar_round_and_time_left_fit_and_go_at_the_end(
    monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream, clock = Terminal(), Clock()
    shown = progress.Progress(stream=stream, clock=clock)
    accuracies = ("accuracy", "u_accuracy", "r_accuracy")
    metrics = {f"validation_{name}": 0.5 for name in accuracies}
    metrics |= {"validation_loss": 2.0, "participants": 10, "train_accuracy": 0.1}
    with shown, shown.phase("unlearn/class_pruning_seed2", 2000) as update:
        for number in range(1, 4):
            clock.now += 60.0
            update(number, images=100, loss=1.0, **metrics)
        shown._live.refresh()
        line = stream.getvalue().splitlines()[-1]
    assert "\u2501" in line and "3/2000" in line and "1 day 9 h left" in line
    lasting = "unlearn/class_pruning_seed2: 3/2000 in 3 min 0 s  loss 1.0000  all 50.0%"
    assert f"{lasting}  U 50.0%  R 50.0%\n" in stream.getvalue()


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
    assert "0/2" in text and "1/2" in text and "2/3" in text
    assert "audit: 3/3 in 0 s" in text
    assert "relearning, raw" in text


def test_steps_are_plain_lines_elsewhere():
    stream = io.StringIO()
    with progress.Progress(stream=stream).steps("audit", 2) as update:
        update("accuracy")
    assert stream.getvalue() == "audit  1/2  accuracy\n"


def test_first_rounds_give_the_time_of_the_whole_run():
    text = run_phase(io.StringIO(), rounds=10, seconds=36.0, whole_run_rounds=104)
    said = [line for line in text.splitlines() if "take about" in line]
    assert said == [
        "pretrain: 36 s per round; the 100 rounds left in this run take about "
        "1 h 0 min."
    ]


def test_the_time_left_names_the_audit_that_follows():
    text = progress.estimate("pretrain", 1.0, 60, audit_follows=True)
    assert text.endswith(
        "take about 1 min 0 s, and the audit after them says its own time."
    )


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
