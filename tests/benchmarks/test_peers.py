"""Contenders of the benchmark of rounds: their environments, and how they are asked."""

import pathlib
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


ECHO = """
import protocol
channel = protocol.claim_output()
print("noise on standard output")
protocol.serve(channel, lambda: None, warm_up=2, versions={"echo": "1"})
"""


@pytest.fixture
def protocol(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    import protocol

    return protocol


def test_contender_answers_rounds_between_noise(protocol, tmp_path):
    env = {"PYTHONPATH": str(BENCHMARKS / "peers")}
    command = [sys.executable, "-c", ECHO]
    contender = protocol.Contender("echo", command, tmp_path / "log", env)
    assert contender.answer()["versions"] == {"echo": "1"}
    assert all(0 <= contender.round()["seconds"] < 1 for _ in range(3))
    contender.close()
    assert contender.process.poll() is not None
    assert "noise" in (tmp_path / "log").read_text()


def test_contender_that_dies_is_named_with_its_log(protocol, tmp_path):
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    contender = protocol.Contender("mayfly", command, tmp_path / "log")
    with pytest.raises(protocol.ContenderError, match="mayfly ended with code 3; see"):
        contender.answer()
    contender.close()
