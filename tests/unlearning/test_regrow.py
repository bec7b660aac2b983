"""Regrowing: deep layers start afresh, shallow ones stay, fine-tuning follows."""

import chex
import jax
import numpy as np
from flax.core import freeze, unfreeze

from tests.unlearning.small import SmallNet, forget_by, initial, small_data

MODEL = SmallNet()


def start_of(**options):
    """The model before its fine-tuning, and the one it was made from."""
    variables = initial(MODEL)
    result = forget_by("regrow", MODEL, variables, small_data(), (1,), **options)
    (stage,) = result.stages
    return stage.variables["params"], variables["params"], result.notes


def test_deep_half_and_head_are_fresh_and_the_rest_is_untouched():
    grown, old, notes = start_of(share=0.5)
    chex.assert_trees_all_equal(grown["conv1"], old["conv1"])
    for layer in (("conv2", "conv"), ("head",)):
        new, before = grown, old
        for name in layer:
            new, before = new[name], before[name]
        assert not np.any(np.equal(new["kernel"], before["kernel"]))
    assert notes["fresh_layers"] == ["conv2"]


def test_shrink_mixes_old_and_fresh():
    grown, old, _ = start_of(share=0.0, shrink=0.25)
    fresh, _, _ = start_of(share=1.0)
    expected = jax.tree.map(
        lambda a, b: 0.25 * a + 0.75 * b, old["conv1"], fresh["conv1"]
    )
    chex.assert_trees_all_close(grown["conv1"], expected)


def test_variables_may_be_frozen():
    given = (small_data(), (1,))
    plain = forget_by("regrow", MODEL, initial(MODEL), *given)
    frozen = forget_by("regrow", MODEL, freeze(initial(MODEL)), *given)
    chex.assert_trees_all_equal(unfreeze(frozen.variables), plain.variables)
