"""The model of docs/scaling.md, and the page's tables."""

import json
import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
CONSTANTS = {
    "image_seconds": 3e-3,
    "client_seconds": 1e-3,
    "round_seconds": 5e-3,
    "draw_seconds": {"100": 1e-4, "10000": 1e-3, "1000000": 0.1},
    "deal_seconds_per_client": 1e-5,
    "sum_latency_seconds": 1e-3,
    "exchange_latency_seconds": 1e-3,
    "sum_bytes_per_second": 1e9,
    "exchange_bytes_per_second": 1e9,
    "models": {
        name: {"bytes": size, "statistics_bytes": 5e3, "checkpoint_seconds": 0.1}
        for name, size in (("resnet20", 1e6), ("resnet56", 3e6), ("vgg16", 6e7))
    },
}


@pytest.fixture
def scaling(monkeypatch):
    for folder in (BENCHMARKS, BENCHMARKS / "peers"):
        monkeypatch.syspath_prepend(str(folder))
    import scaling

    return scaling


@pytest.fixture
def model(scaling):
    import scaling_model

    return scaling_model


def test_one_host_sends_nothing(model):
    found = model.predict(model.Case(100, 25, 1, 2, "resnet20"), CONSTANTS)
    assert found["sum_bytes"] == found["exchange_bytes"] == 0
    assert found["compute"] == pytest.approx(13 * (1e-3 + 500 * 3e-3))


def test_the_sum_depends_on_the_model_only(model):
    few = model.predict(model.Case(100, 16, 4, 2, "resnet20"), CONSTANTS)
    many = model.predict(model.Case(10**6, 4096, 4, 2, "resnet20"), CONSTANTS)
    wide = model.predict(model.Case(100, 16, 4, 2, "vgg16"), CONSTANTS)
    assert few["sum_bytes"] == many["sum_bytes"] < wide["sum_bytes"]


def test_only_a_split_pool_is_exchanged_and_only_a_whole_one_is_held(model):
    case = model.Case(10_000, 256, 8, 8, "resnet20")
    split = model.predict(case, CONSTANTS)
    whole = model.predict(case._replace(pool="whole"), CONSTANTS)
    assert split["exchange_bytes"] > 0 == whole["exchange_bytes"] == whole["exchange"]
    assert whole["pool_bytes"] == 8 * split["pool_bytes"]


def test_more_hosts_compute_faster_and_exchange_no_less(model):
    case = model.Case(10**6, 1024, 8, 8, "resnet20")
    few = model.predict(case, CONSTANTS)
    many = model.predict(case._replace(hosts=64), CONSTANTS)
    assert many["compute"] == few["compute"] / 8
    assert many["exchange_bytes"] > few["exchange_bytes"]
    assert many["pool_bytes"] == few["pool_bytes"] / 8


def test_every_case_of_the_page_can_be_predicted(model):
    report = {"constants": CONSTANTS}
    lines = model.prediction_table(report).splitlines()
    assert len(lines) == 2 + len(model.CASES)
    assert len({line.count("|") for line in lines}) == 1


def test_the_page_holds_the_tables_of_the_results(model, scaling):
    page = model.DOCS.read_text()
    for name in model.TABLES:
        assert f"<!-- {name} -->" in page
    if scaling.RESULTS.exists():
        report = json.loads(scaling.RESULTS.read_text())
        again = "run python benchmarks/scaling.py --docs"
        assert model.filled(page, report) == page, again


@pytest.mark.slow
def test_it_measures(scaling, tmp_path):
    """Tiny rounds on one and two devices, and all the constants."""
    output = tmp_path / "scaling.json"
    assert scaling.main(["--smoke", f"--output={output}"]) == 0
    report = json.loads(output.read_text())
    assert {row["devices"] for row in report["rows"]} == {1, 2}
    assert all(row["seconds per round"] > 0 for row in report["rows"])
    assert report["constants"]["image_seconds"] > 0
    assert report["constants"]["sum_bytes_per_second"] > 0
