"""Privacy through a whole run: masks, noise, the accountant's numbers, the curve."""

import json

import pytest

from fuprune.main import parse
from fuprune.run import experiment
from fuprune.unlearning.privacy import epsilon_of, noise_scales
from tests.integration.command import SMALL

SHORT = (
    "--config.data.limit=6",
    "--config.partition.kind=iid",
    "--config.partition.clients=3",
    "--config.train.cohort=3",
    # What a statistic keeps private does not depend on training, which compiles long.
    "--config.train.rounds=0",
    "--config.fine_tune.rounds=0",
    "--config.unlearn.methods=class_pruning",
    "--config.runtime.progress=off",
)


def run(workdir, *flags):
    """One run in this process; returns results.json as read from the disk."""
    workdir.mkdir(exist_ok=True)
    command = parse(["fuprune", f"--workdir={workdir}", *SMALL, *SHORT, *flags])
    experiment.run(command.config, workdir)
    return json.loads((workdir / "results.json").read_text())


def removed(results):
    """The channels that were cut, by layer."""
    (cut,) = results["cuts"]["class_pruning"]
    return cut["removed"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run that keeps nothing private, and its workdir."""
    workdir = tmp_path_factory.mktemp("plain") / "run"
    return workdir, run(workdir)


def test_a_run_that_keeps_nothing_private_says_nothing_of_it(plain):
    workdir, results = plain
    assert results["privacy"] == {} and results["privacy_curve"] == []
    assert "accountant" not in (workdir / "report" / "report.html").read_text()


@pytest.mark.slow
def test_the_secure_sum_cuts_what_the_plain_sum_cuts(plain, tmp_path):
    """The masks cancel: the server sees the sum and nothing else changes."""
    results = run(tmp_path / "run", "--config.privacy.secure_sum=True")
    assert removed(results) == removed(plain[1])
    assert any(removed(results).values())
    assert results["privacy"] == {}, "a secure sum alone promises no epsilon"


def test_the_accountants_numbers_are_in_results_and_report(plain, tmp_path):
    """Noise in shares under masks; the statement follows from the noise itself."""
    workdir = tmp_path / "run"
    results = run(
        workdir,
        "--config.privacy.secure_sum=True",
        "--config.privacy.epsilon=10",
        "--config.privacy.delta=1e-6",
        "--config.privacy.clip=0.5",
        "--config.privacy.min_count=2",
    )
    said = results["privacy"]
    assert said["epsilon"] == pytest.approx(10.0, rel=1e-6)
    assert (said["delta"], said["clip"], said["releases"]) == (1e-6, 0.5, 1)
    scales = noise_scales(10.0, 1e-6, clip=0.5)
    assert said["sigma_total"] == pytest.approx(scales.total)
    ratio = (0.5 / said["sigma_total"]) ** 2 + (1 / said["sigma_count"]) ** 2
    assert epsilon_of(ratio**-0.5, 1e-6) == pytest.approx(10.0, rel=1e-6)
    assert removed(results) != removed(plain[1]), "six images cannot hide the noise"
    page = (workdir / "report" / "report.html").read_text()
    assert "The privacy accountant's numbers" in page.replace("&#x27;", "'")
    assert "analytic Gaussian mechanism" in page


def test_a_curve_can_be_added_to_a_finished_run(plain):
    """More noise, less of the exact cut; else only the config says more than before."""
    workdir, before = plain
    metrics = (workdir / "metrics.jsonl").read_bytes()
    after = run(workdir, "--config.privacy.curve=1e6,0.01", "--config.privacy.clip=1.0")
    noisy, clear = after.pop("privacy_curve")
    before.pop("privacy_curve")
    assert (noisy["epsilon"], clear["epsilon"]) == (0.01, 1e6)
    assert noisy["sigma_total"] > 1000 * clear["sigma_total"]
    assert 0 <= noisy["overlap"] < clear["overlap"] <= 1
    for point in (noisy, clear):
        assert 0 <= point["u_accuracy"] <= 1 and 0 <= point["r_accuracy"] <= 1
    assert after["provenance"]["config"]["privacy"].pop("curve") == "1e6,0.01"
    assert before["provenance"]["config"]["privacy"].pop("curve") == ""
    assert after == before
    assert (workdir / "metrics.jsonl").read_bytes() == metrics
    assert "What privacy costs" in (workdir / "report" / "report.html").read_text()


@pytest.mark.slow
def test_each_point_can_be_fine_tuned(tmp_path):
    """Its rounds are logged under its own name, and its accuracies stand beside."""
    results = run(
        tmp_path / "run",
        "--config.train.rounds=1",
        "--config.fine_tune.rounds=1",
        "--config.privacy.curve=8",
        "--config.privacy.curve_fine_tune=True",
    )
    (point,) = results["privacy_curve"]
    assert 0 <= point["fine_tuned_u_accuracy"] <= 1
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    units = ["pretrain", "unlearn/class_pruning", "privacy_curve/8_fine_tuned"]
    found = [(row["phase"], row["round"]) for row in map(json.loads, rows)]
    assert found == [(unit, number) for unit in units for number in (0, 1)]
    stage = [s for s in results["stages"] if s["stage"] == "pruned_9"]
    assert len(stage) == 1 and any(removed(results).values())
