"""Known answers on the digits: what the judge says of models whose past is known."""

import pathlib

import pytest
from scipy import stats

from tests.loading import load_module

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
DRAWS, REFERENCES = 60, 8


@pytest.fixture(scope="module")
def found():
    """How often each model is different over draws of references and candidates."""
    script = load_module(BENCHMARKS / "audit_leave_one_out.py")
    measures = script.measure_digits(12)
    assert len(measures) == 7
    return {
        seeds: script.shares(measures, REFERENCES, seeds, DRAWS) for seeds in (1, 3)
    }


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_retrained_models_are_seldom_different_from_others(found, seeds):
    # More than this happens once in a thousand if one in twenty is.
    assert found[seeds].get("honest", 0) * DRAWS <= stats.binom.ppf(0.999, DRAWS, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw", "fine_tune_only", "untrained", "flattened"])
def test_pretenders_are_different_in_every_draw(found, name):
    assert found[1][name] == found[3][name] == 1.0


@pytest.mark.slow
def test_hiding_the_class_is_seen_more_often_than_an_honest_model(found):
    """Features of all digits serve a tenth class well: answers alone give it away."""
    assert found[1]["mask_logit"] > found[1].get("honest", 0) + 0.1
