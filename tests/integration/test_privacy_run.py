"""Privacy through a whole run: sums, noise and the accountant's numbers."""

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
    "--config.prune.rate=0.3",  # to try several asks for more than the noise covers
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
    assert results["privacy"] == {}
    assert "accountant" not in (workdir / "report" / "report.html").read_text()


@pytest.mark.slow
def test_the_secure_sum_cuts_what_the_plain_sum_cuts(plain, tmp_path):
    """The server sees the sum and nothing else changes."""
    results = run(tmp_path / "run", "--config.privacy.secure_sum=True")
    assert removed(results) == removed(plain[1])
    assert any(removed(results).values())
    assert results["privacy"] == {}, "a secure sum alone promises no epsilon"


def test_the_accountants_numbers_are_in_results_and_report(plain, tmp_path):
    """Noise in shares within the sum; the statement follows from the noise itself."""
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
    assert "accountant" in page
    assert "analytic Gaussian mechanism" in page
