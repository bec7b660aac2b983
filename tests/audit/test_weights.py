"""Weight space, on networks whose place in it is constructed."""

import numpy as np
import pytest

from fuprune.audit.weights import (
    comparable,
    interpolate,
    loss_barrier,
    relative_distance,
)
from tests.audit.conftest import run_audit


def params(*values):
    return {"params": {"w": np.array(values, np.float32)}}


def test_distance_is_relative_to_the_other_model():
    assert relative_distance(params(3.0, 4.0), params(0.0, 4.0)) == pytest.approx(0.75)
    assert relative_distance(params(3.0, -np.inf), params(3.0, -np.inf)) == 0


def test_a_parabola_has_no_barrier_and_a_double_well_has_its_height():
    def barrier(loss):
        ends = [(None, params(-1.0)), (None, params(1.0))]
        values = tuple(loss(end) for end in ends)
        return loss_barrier(*ends, loss, values, points=3)

    at = lambda model: float(model[1]["params"]["w"][0])  # noqa: E731
    assert barrier(lambda model: at(model) ** 2) == 0
    assert barrier(lambda model: (at(model) ** 2 - 1) ** 2) == pytest.approx(1.0)


def test_interpolation_ends_at_the_models_and_keeps_equal_infinities():
    one, other = params(0.0, -np.inf), params(4.0, -np.inf)
    np.testing.assert_array_equal(
        interpolate(one, other, 0.25)["params"]["w"], [1.0, -np.inf]
    )


def test_other_shapes_are_not_comparable():
    assert comparable((None, params(1.0)), (None, params(2.0)))
    assert not comparable((None, params(1.0)), (None, params(1.0, 2.0)))


def test_a_model_made_from_the_raw_one_is_near_it_and_a_retrained_one_is_not(world):
    tests = {test.name: test for test in run_audit(world, kinds=("weights",)).tests}
    near = tests["weight_distance_to_raw"]
    assert near.values["raw"] == 0
    assert near.values["mask_logit"] < 0.5 * min(near.retrained)
    assert near.verdicts["mask_logit"] == "fail"
    assert near.verdicts["honest"] == "not told apart at this power"
    assert any("descent" in note for note in near.notes)
    assert tests["loss_barrier_to_raw"].values["mask_logit"] < 0.01


def test_a_lone_retrained_model_has_no_distance_and_is_not_called_another_shape(world):
    found = run_audit(world, retrained=world.retrained[:1], kinds=("weights",))
    (test,) = (t for t in found.tests if t.name == "weight_distance_to_retrained")
    assert test.retrained == []
    assert not any("not comparable" in note for note in test.notes)
