from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fuprune.audit import AuditOptions, distance
from fuprune.audit.measurements import Measurements, ModelOutputs
from fuprune.audit.outputs import Outputs
from tests import reference_audit

logits = hnp.arrays(np.float64, (4, 3), elements=st.floats(-8, 8))


def random(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("measure", [one for one, *_ in distance.DISTANCES.values()])
@hypothesis.given(logits)
def test_identical_models_have_no_distance(measure, values):
    np.testing.assert_array_equal(measure(values, values), 0)


@hypothesis.given(logits, logits)
def test_divergence_matches_its_definition_and_bounds(one, other):
    found = distance.jensen_shannon(one, other)
    expected = [
        reference_audit.jensen_shannon(a, b) for a, b in zip(one, other, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (found <= np.log(2) + 1e-12).all()
    np.testing.assert_allclose(found, distance.jensen_shannon(other, one), atol=1e-12)


def test_opposite_answers_are_as_far_apart_as_can_be():
    one, other = np.array([[50.0, -50.0]]), np.array([[-50.0, 50.0]])
    assert distance.total_variation(one, other)[0] == pytest.approx(1.0)
    assert distance.activation_distance(one, other)[0] == pytest.approx(np.sqrt(2))
    assert distance.jensen_shannon(one, other)[0] == pytest.approx(np.log(2))


@pytest.mark.parametrize("measure", [one for one, *_ in distance.DISTANCES.values()])
def test_masked_logits_keep_distances_finite(measure):
    masked = np.array([[-np.inf, 1.0, 0.0]])
    assert np.isfinite(measure(masked, random((1, 3)))).all()


def test_cka_equals_its_kernel_form_for_different_widths():
    x, y = random((20, 5)), random((20, 9), 1)
    y[:, 0] = x[:, 0] * 3
    assert distance.linear_cka(x, y) == pytest.approx(reference_audit.kernel_cka(x, y))


def test_cka_ignores_rotation_scale_and_offset():
    x = random((30, 4))
    rotation, _ = np.linalg.qr(random((4, 4), 1))
    assert distance.linear_cka(x, 5 * x @ rotation + 2) == pytest.approx(1.0)
    assert distance.linear_cka(x, x) == pytest.approx(1.0)
    assert distance.linear_cka(random((3000, 2)), random((3000, 2), 1)) < 0.01


def test_cka_of_dead_layers_is_defined():
    dead = np.ones((6, 3))
    assert distance.linear_cka(dead, random((6, 3))) == 0
    assert distance.linear_cka(dead, 2 * dead) == 1


def test_layers_are_matched_by_name():
    x = random((10, 3))
    found = distance.mean_cka({"a": x, "b": x}, [{"b": x, "c": x}])
    assert found == {"b": pytest.approx(1.0)}


def test_layers_are_told_from_input_to_output():
    values = {"conv1": 0.1, "other": 0.2, "stem": 0.3}
    ordered = distance.forward_order(values, ("stem", "conv1"))
    assert list(ordered.items()) == [("stem", 0.3), ("conv1", 0.1), ("other", 0.2)]


def test_a_model_without_common_layers_takes_the_test_from_no_other():
    def answers(seed, layer):
        return Outputs(random((8, 3), seed), None, {layer: random((8, 5), seed + 50)})

    layers = {"other": "block", "raw": "conv"}
    layers |= {f"retrained_{i}": "conv" for i in range(3)}
    outputs = {
        name: ModelOutputs(answers(seed, layer), answers(seed, layer))
        for seed, (name, layer) in enumerate(layers.items())
    }
    nothing: Any = None
    measurements = Measurements(
        outputs,
        {},
        *[nothing] * 5,
        classes=(0,),
        num_classes=3,
        layers=(),
        options=AuditOptions(),
        notify=lambda text: None,
    )
    found = distance.find_distance(measurements)
    cka = found.tests[-1]
    assert cka.name == "cka_distance"
    assert cka.values["other"] is None and cka.values["raw"] > 0
    assert len(cka.retrained) == 3 and all(cka.retrained)
