"""Controls and retraining: each does what its name says and nothing else."""

import chex
import jax
import numpy as np
import optax
import pytest

from tests.unlearning.small import (
    SmallNet,
    SoftmaxRegression,
    forget_by,
    initial,
    make_fine_tune,
    small_data,
)

MODEL = SmallNet()
CLASSES = (1, 3)


@pytest.fixture(scope="module")
def trained():
    return small_data(), initial(MODEL)


@pytest.fixture(scope="module")
def images():
    return jax.random.normal(jax.random.key(2), (16, 6, 6, 1))


def forget(name, trained, fine_tune=None, **options):
    data, variables = trained
    options |= {"fine_tune": fine_tune}
    return forget_by(name, MODEL, variables, data, CLASSES, **options)


def changed(before, after):
    """Paths of the leaves that differ."""
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    )
    return {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for (path, a), b in pairs
        if not np.array_equal(a, b)
    }


@pytest.mark.parametrize(
    ("name", "leaves"),
    [("mask_logit", {"bias"}), ("zero_class_row", {"bias", "kernel"})],
)
def test_rows_of_the_head_are_hidden_and_the_others_stay(name, leaves, trained, images):
    _, variables = trained
    result = forget(name, trained)
    paths = {f"params/head/{leaf}" for leaf in leaves}
    assert changed(variables, result.variables) == paths
    before, after = (MODEL.apply(v, images) for v in (variables, result.variables))
    np.testing.assert_array_equal(after[:, [0, 2]], before[:, [0, 2]])
    hidden = after if name == "zero_class_row" else jax.nn.softmax(after)
    assert not hidden[:, CLASSES].any()


def test_a_head_without_bias_can_be_zeroed_but_not_masked():
    model = SoftmaxRegression(num_classes=4, use_bias=False)
    given = (model, initial(model), small_data(), (1,))
    result = forget_by("zero_class_row", *given)
    assert not result.variables["params"]["head"]["kernel"][:, 1].any()
    with pytest.raises(ValueError, match="has no bias"):
        forget_by("mask_logit", *given)


def test_retraining_starts_afresh_and_keys_give_the_spread(trained):
    _, variables = trained
    first, second = (forget("retrain", trained, seed=seed) for seed in (0, 1))
    chex.assert_trees_all_equal_shapes(first.variables, variables)
    for result in (first, second):
        assert "params/conv1/conv/kernel" in changed(variables, result.variables)
        assert not result.variables["batch_stats"]["conv1"]["norm"]["mean"].any()
    assert changed(first.variables, second.variables)


@pytest.mark.parametrize("order", ["random", "lowest"])
def test_pruning_controls_cut_as_many_other_channels(trained, order):
    options = dict(rate=0.3, recapture=False)
    result = forget(f"prune_{order}", trained, **options, order="highest")
    same = forget("class_pruning", trained, **options, order=order)
    paper = forget("class_pruning", trained, **options)
    chex.assert_trees_all_equal(result.variables, same.variables)
    gone = [
        {(layer, i) for layer, ids in run.notes["cuts"][0]["cut"].items() for i in ids}
        for run in (result, paper)
    ]
    assert len(gone[0]) == len(gone[1]) > 0 and gone[0] != gone[1]


def test_dropped_rows_stay_out_of_the_softmax_through_fine_tuning(trained, images):
    """Weight decay and momentum included."""
    optimizer = optax.chain(
        optax.add_decayed_weights(5e-4), optax.sgd(0.1, momentum=0.9)
    )
    tune = make_fine_tune(3, optimizer)
    result = forget("prune_then_drop_row", trained, tune, rate=0.3)
    names = [stage.name for stage in result.stages]
    assert names == ["pruned_1", "pruned_3", "dropped"]
    head = result.stages[-1].variables["params"]["head"]
    assert not head["kernel"][:, CLASSES].any()
    assert result.model.channels == result.stages[1].model.channels
    for variables in (result.stages[-1].variables, result.variables):
        logits = result.model.apply(variables, images)
        assert not jax.nn.softmax(logits)[:, CLASSES].any()
        assert np.isin(np.argmax(logits, axis=1), (0, 2)).all()
    tuned = result.variables["params"]["head"]
    assert not tuned["kernel"][:, CLASSES].any()
    assert np.any(np.asarray(tuned["kernel"] != head["kernel"]))


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
