"""Which channels a plan takes, which plans are refused, and what a plan costs."""

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune import surgery
from fuprune.surgery import PrunePlan
from tests.models import drawing
from tests.models.drawing import make_model, small_model

SCORES = {"a": np.array([0.5, 0.1, 0.4]), "b": np.array([0.2, 0.3, 0.05, 0.25, 0.2])}


def cut_of(plan, scores=SCORES):
    return {
        layer: np.setdiff1d(np.arange(len(score)), plan.keep[layer]).tolist()
        for layer, score in scores.items()
    }


@pytest.mark.parametrize(
    ("scope", "order", "expected"),
    [
        ("global", "highest", {"a": [0, 2], "b": [1, 3]}),
        ("global", "lowest", {"a": [1], "b": [0, 2, 4]}),
        # Half of 3 and of 5 leave half a channel each: it falls to the earlier layer.
        ("layer", "highest", {"a": [0, 2], "b": [1, 3]}),
        ("layer", "lowest", {"a": [1, 2], "b": [0, 2]}),
        # Scores times widths: a 1.5 .3 1.2, b 1 1.5 .25 1.25 1.
        ("balanced", "highest", {"a": [0, 2], "b": [1, 3]}),
        ("balanced", "lowest", {"a": [1], "b": [0, 2, 4]}),
    ],
)
def test_plan_takes_the_share_it_is_asked_for(scope, order, expected):
    plan = surgery.make_plan(SCORES, 0.5, scope=scope, order=order)
    assert cut_of(plan) == expected
    assert plan.spared == {"a": 0, "b": 0}


@pytest.mark.parametrize("order", ["highest", "lowest"])
def test_ties_fall_to_the_earlier_layer_then_the_lower_channel(order):
    scores = {"z": jnp.zeros(3), "a": jnp.zeros(4)}
    plan = surgery.make_plan(scores, 4 / 7, order=order, min_channels=1)
    assert cut_of(plan, scores) == {"z": [0, 1], "a": [0]}
    assert plan.spared == {"z": 1, "a": 0}


@hypothesis.given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    rate=st.floats(0, 0.999),
    scope=st.sampled_from(surgery.SCOPES),
    order=st.sampled_from(surgery.ORDERS),
    min_channels=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_every_plan_cuts_its_number_and_empties_no_layer(
    sizes, rate, scope, order, min_channels, seed
):
    generator = np.random.default_rng(seed)
    # Few values, hence many ties.
    scores = {
        f"layer{i}": generator.integers(0, 4, size) / 4 for i, size in enumerate(sizes)
    }
    choices = dict(scope=scope, order=order, min_channels=min_channels, seed=seed)
    plan = surgery.make_plan(scores, rate, **choices)
    again = surgery.make_plan(scores, rate, **choices)
    chex.assert_trees_all_equal(plan, again)
    cut = {layer: len(channels) for layer, channels in cut_of(plan, scores).items()}
    for layer, score in scores.items():
        assert len(score) - cut[layer] >= min(min_channels, len(score))
        assert np.all(np.diff(plan.keep[layer]) > 0)
        if scope == "layer":
            asked = cut[layer] + plan.spared[layer]
            assert abs(asked - rate * len(score)) < 1 + 1e-6
    asked = sum(cut.values()) + sum(plan.spared.values())
    assert asked == int(rate * sum(sizes) + 1e-9)
    if order == "highest" and scope == "global" and not any(plan.spared.values()):
        taken = np.concatenate(
            [np.delete(scores[layer], plan.keep[layer]) for layer in scores]
        )
        left = np.concatenate([scores[layer][plan.keep[layer]] for layer in scores])
        assert not taken.size or min(taken) >= max(left)


def test_random_order_depends_on_the_seed_alone():
    scores = {"a": np.arange(40.0), "b": np.arange(30.0)}
    other = {layer: -score for layer, score in scores.items()}
    plan = surgery.make_plan(scores, 0.5, order="random", seed=1)
    same = surgery.make_plan(other, 0.5, order="random", seed=1)
    different = surgery.make_plan(scores, 0.5, order="random", seed=2)
    chex.assert_trees_all_equal(plan.keep, same.keep)
    assert cut_of(plan, scores) != cut_of(different, scores)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 1.0}, "rate is 1.0, but must be at least 0 and below 1"),
        ({"rate": -0.1}, "rate is -0.1"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"scope": "all"}, "scope is 'all', but must be one of global, layer"),
        ({"order": "top"}, "order is 'top'"),
        ({"min_channels": 0}, "min_channels is 0"),
        ({"scores": {"a": np.array([0.1, np.nan])}}, "layer 'a' are .*nan"),
        ({"scores": {"a": np.array([np.inf])}}, "layer 'a' are .*inf"),
        ({"scores": {"a": np.zeros((2, 2))}}, "one finite number per channel"),
        ({"scores": {"a": np.zeros(0)}}, "one finite number per channel"),
    ],
)
def test_wrong_choices_are_refused_in_one_line(change, message):
    arguments = {"scores": SCORES, "rate": 0.1, **change}
    with pytest.raises(ValueError, match=message) as error:
        surgery.make_plan(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"stem9": [0]}, "'stem9', which was not found; the network has stem,"),
        ({"head": [0]}, "cuts 'head', whose channels are columns of the network's"),
        *(
            ({"stem": keep}, "of layer 'stem', which has 16 channels")
            for keep in ([], [[0, 1]], [0, 16], [-1, 2], [3, 2], [2, 2], [0.5, 2.0])
        ),
    ],
)
def test_wrong_plan_is_refused_before_anything_is_cut(keep, message):
    model = small_model()
    plan = PrunePlan({layer: np.array(ids) for layer, ids in keep.items()}, {})
    with pytest.raises(ValueError, match=message) as error:
        surgery.plan_report(model, plan)
    assert "\n" not in str(error.value)


def test_variables_of_another_model_are_refused():
    model = small_model()
    plan = drawing.plan_for(model, 0)
    small, variables = surgery.compact(model, drawing.variables_of(model), plan)
    with pytest.raises(ValueError, match="cannot be traced with these variables"):
        surgery.mask(model, variables, plan)
    with pytest.raises(ValueError, match="cannot be traced with these variables"):
        surgery.mask(model, {"params": {"conv1": {"bias": jnp.zeros(3)}}}, plan)
    with pytest.raises(ValueError, match="how is 'zero'"):
        surgery.cut_optimizer_state(model, plan, None, how="zero")


@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_report_counts_what_the_compacted_model_has(name):
    model = make_model(name)
    plan = drawing.plan_for(model, 3)
    plan = plan._replace(spared={surgery.layer_names(model)[0]: 2})
    rows = surgery.plan_report(model, plan, (8, 8, 1))
    *layers, total = rows
    small = surgery.cutting.plan_cuts(model, None, plan).network
    assert [row.layer for row in layers] == [
        *surgery.layer_names(model),
        *(["hidden"] if name == "vgg11" else []),
        "head",
    ]
    for shapes, field in (
        (drawing.shapes_of(model), "parameters_before"),
        (drawing.shapes_of(small), "parameters_after"),
    ):
        for row in layers:
            layer = shapes["params"][row.layer]
            kernel = layer.get("conv", layer)["kernel"]
            assert getattr(row, field) == kernel.size
        everything = sum(x.size for x in jax.tree.leaves(shapes["params"]))
        assert getattr(total, field) == everything
    assert total.layer == "total"
    assert total.spared == 2
    assert total.channels_after == sum(keep.size for keep in plan.keep.values())
    assert total.flops_after == sum(row.flops_after for row in layers)
    assert 0 < total.flops_after < 0.6 * total.flops_before


def test_what_is_left_is_rounded_up_to_a_multiple():
    scores = {"a": np.arange(16.0), "b": np.arange(10.0)}
    plan = surgery.make_plan(scores, 0.5, scope="layer", round_to=4)
    assert {layer: ids.size for layer, ids in plan.keep.items()} == {"a": 8, "b": 8}
    # The last cuts are those that are not made: the lowest of the highest scores.
    np.testing.assert_array_equal(plan.keep["b"], np.arange(8))
    assert plan.spared == {"a": 0, "b": 3}
    whole = surgery.make_plan(scores, 0.5, scope="layer", round_to=32)
    assert {layer: ids.size for layer, ids in whole.keep.items()} == {"a": 16, "b": 10}


def test_a_plan_is_saved_edited_and_replayed(tmp_path):
    plan = surgery.make_plan(SCORES, 0.5)
    plan.save(tmp_path / "plan.json")
    again = surgery.load_plan(tmp_path / "plan.json")
    chex.assert_trees_all_equal(again.keep, plan.keep)
    (tmp_path / "plan.json").write_text("[1]")
    with pytest.raises(ValueError, match="holds no plan"):
        surgery.load_plan(tmp_path / "plan.json")
