"""The throughput benchmark in small: ours alone, and the talk with contenders."""

import json
import pathlib
import subprocess
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """The benchmark's modules, which lie outside the package."""
    for folder in (BENCHMARKS, BENCHMARKS / "peers"):
        monkeypatch.syspath_prepend(str(folder))
    import protocol
    import round_throughput
    import workload

    return round_throughput, protocol, workload


@pytest.mark.slow
def test_smoke_run_writes_one_row_per_contender(tmp_path):
    output = tmp_path / "rows.json"
    command = [sys.executable, BENCHMARKS / "round_throughput.py", "--smoke"]
    done = subprocess.run(
        [*map(str, command), f"--output={output}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    (run,), (row,) = report["runs"], report["rows"]
    assert run["absent"] == [] and run["net"] == row["net"] == "vgg11"
    assert row["name"] == "fuprune auto" and row["images_per_second"] > 0
    assert row["backend"] != "auto" and row["conv"] in ("xla", "onednn")
    assert "fuprune auto" in done.stdout


ECHO = """
import protocol
channel = protocol.claim_output()
print("noise on standard output")
protocol.serve(channel, lambda: None, warm_up=2, versions={"echo": "1"})
"""


def test_contender_answers_rounds_between_noise(modules, tmp_path):
    _, protocol, _ = modules
    env = {"PYTHONPATH": str(BENCHMARKS / "peers")}
    command = [sys.executable, "-c", ECHO]
    contender = protocol.Contender("echo", command, tmp_path / "log", env)
    facts = contender.answer()
    assert facts["versions"] == {"echo": "1"} and len(facts["warm_up_seconds"]) == 2
    assert all(0 <= contender.round()["seconds"] < 1 for _ in range(3))
    assert contender.round()["cpu_seconds"] >= 0
    contender.close()
    assert contender.process.poll() is not None
    assert "noise" in (tmp_path / "log").read_text()


def test_contender_that_dies_is_named_with_its_log(modules, tmp_path):
    _, protocol, _ = modules
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    contender = protocol.Contender("mayfly", command, tmp_path / "log")
    with pytest.raises(protocol.ContenderError, match="mayfly ended with code 3; see"):
        contender.answer()
    contender.close()


def test_training_flops_are_three_forward_passes(modules):
    round_throughput, _, _ = modules
    assert round_throughput.training_flops("resnet20", 32) == pytest.approx(
        245e6, rel=0.01
    )


def test_every_backend_and_peer_is_a_contender(modules):
    round_throughput, _, workload = modules
    entries = round_throughput.entries(1.0)
    names = [entry.name + entry.net_suffix for entry in entries]
    assert len(set(names)) == len(names)
    for wanted in (
        "matrix product",
        "PyTorch NHWC",
        "Flower JAX",
        "FedJAX without norm",
    ):
        assert wanted in names
    assert sum(name.endswith(("xla", "onednn")) for name in names) == 8
    for entry in entries:
        assert (BENCHMARKS / "peers" / entry.script).exists()
    work = workload.Workload("resnet20", 2, 8, 4, 32)
    assert work.images_per_round == 16 and "--batch-size=4" in work.flags()


def test_table_shows_ratios_fastest_first(modules):
    round_throughput, _, _ = modules
    rows = [
        dict(name="PyTorch NCHW", net="n", images_per_second=50.0, ratio=0.5),
        dict(name="fuprune auto", net="n", images_per_second=130.0, ratio=1.3),
    ]
    for row in rows:
        row |= dict(clients=2, seconds=[1.0, 1.1], backend="map", conv="xla")
        row["images_per_core_second"] = None
    machine = dict(cores=2, cpu="one", load_before=0.1, load_after=2.0)
    run = dict(net="n", date="today", machine=machine, versions={}, absent=["x: y"])
    run["workload"] = {"repeats": 2}
    text = round_throughput.table({"rows": rows, "runs": [run]})
    assert "load 0.1 before and 2.0 after" in text and "Not measured: x: y." in text
    first, second = text.splitlines()[4:6]
    assert "**fuprune auto** (map, xla) | 130.0 | 1.30x | - | 10%" in first
    assert "PyTorch NCHW | 50.0 | 0.50x" in second
