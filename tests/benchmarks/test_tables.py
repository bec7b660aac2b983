"""The page's tables are made from the results, and say what was measured."""

import importlib
import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
SCRIPTS = ("round_throughput", "bfloat16_accuracy", "roofline", "growth")
MACHINE = {"cpu": "c", "cores": 2, "load": 0.5}


@pytest.fixture
def load(monkeypatch):
    """A function that imports a benchmark, which lies outside the package."""
    for folder in (BENCHMARKS, BENCHMARKS / "peers"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


@pytest.mark.parametrize("name", SCRIPTS)
def test_page_holds_the_table_of_the_results(load, name):
    reports = load("report")
    page = reports.PAGE.read_text()
    assert f"<!-- {name} -->" in page
    found = reports.read(name)
    table = load(name).table(found) if found else "Not measured yet."
    assert reports.filled(page, name, table) == page, f"run benchmarks/{name}.py"


def test_a_report_is_written_with_its_table(load, monkeypatch, tmp_path):
    reports = load("report")
    monkeypatch.setattr(reports, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(reports, "RESULTS", tmp_path / "results")
    reports.PAGE.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nafter")
    reports.write("a", {"rows": [1]}, "| new \\1 |")
    text = "before\n<!-- a -->\n| new \\1 |\n<!-- end of a -->\nafter"
    assert reports.PAGE.read_text() == text
    assert json.loads((tmp_path / "results" / "a.json").read_text()) == {"rows": [1]}


def test_rates_are_shown_relative_to_the_best_pytorch(load):
    rows = [
        dict(name="PyTorch NCHW", net="n", images_per_second=50.0, seconds=[1, 1.2]),
        dict(name="fuprune", net="n", images_per_second=130.0, seconds=[1.0]),
    ]
    work = {"clients": 2, "images": 4, "batch_size": 2, "repeats": 1}
    found = {"date": "today", "machine": MACHINE, "workload": work, "versions": {}}
    text = load("round_throughput").table({**found, "rows": rows, "absent": ["x: y"]})
    assert "| PyTorch NCHW | 50, 1.00x (±10%) |" in text
    assert "| fuprune | 130, 2.60x (±0%) |" in text
    assert text.endswith("Not measured: x: y.")


def test_a_straight_line_reads_one(load):
    growth = load("growth")
    rows = [growth.Row(n, "round", 0.002 * n, n, "client") for n in (5, 10, 100)]
    bent = [*rows, growth.Row(1_000, "round", 6.0, 1_000, "client")]

    def line(rows):
        section = {"date": "now", "machine": MACHINE}
        section["rows"] = [row._asdict() for row in rows]
        return growth.table({"cohort": section}).splitlines()[-1]

    assert "| 5: 10 ms, 10: 20 ms, 100: 200 ms | 1.00 to 1.00 (per client)" in line(
        rows
    )
    assert "| 5: 10 ms, 1,000: 6 s | 1.00 to 3.00 (per client)" in line(bent)


def test_shares_are_of_the_peak_and_of_the_step(load):
    """A layer at half the peak that fills half the step."""
    row = {"layer": "a", "what": "forward", "number": 2, "flops": 12.5e9}
    row["seconds"] = {"float32": 0.25}
    net = {"rows": [row], "step_seconds": {"float32": 1.0}}
    peaks = {"float32": [100e9, 200e9], "bfloat16": [0.0, 0.0]}
    found = {"date": "now", "machine": MACHINE, "batch_size": 32}
    text = load("roofline").table({**found, "peaks": peaks, "nets": {"net": net}})
    assert text.endswith("| net float32 | 32 | 128 | 25% | 50% | a, forward: 50% |")


@pytest.mark.parametrize(
    ("net", "products"), [("resnet20", 40.55e6), ("vgg11", 152.8e6)]
)
def test_layers_add_up_to_the_network(load, net, products):
    """Multiply-adds of the convolutions on one 32x32 image."""
    shapes = load("roofline").layer_shapes(net)
    counted = sum(
        number * 9 * inputs * outputs * (side // stride) ** 2
        for (side, inputs, outputs, stride), number in shapes.items()
    )
    assert counted == pytest.approx(products, rel=0.01)


@pytest.mark.parametrize(("side", "stride"), [(1, 1), (5, 1), (32, 1), (4, 2), (32, 2)])
def test_products_with_padding_are_not_counted(load, side, stride):
    """A kernel of ones over an image of ones counts the pixels that it meets."""
    met = jax.lax.conv_general_dilated(
        jnp.ones((1, side, side, 1)),
        jnp.ones((3, 3, 1, 1)),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    counted = load("roofline").pairs_per_axis(side, stride) ** 2
    assert counted == int(met.sum())
