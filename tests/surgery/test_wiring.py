import functools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune import surgery
from fuprune.models import zoo
from fuprune.models.resnet import ResNet
from fuprune.surgery import PrunePlan
from tests.models import drawing

RESNETS = [name for name in zoo.MODELS if name.startswith("resnet")]


def make_model(name, norm="batch", shape=(8, 8, 1)):
    return zoo.create(name, num_classes=5, input_shape=shape, norm=norm)


def small_model(norm="batch"):
    return ResNet(8, 5, (8, 8, 1), norm)


def assert_same_logits(actual, expected):
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, atol=1e-5 * scale)


def lift(first, second, model):
    """The plan on the uncut model that `first` and then `second` amount to."""
    keep = {
        layer: np.asarray(first.keep[layer])[second.keep[layer]]
        for layer in zoo.layer_names(model)
    }
    return PrunePlan(keep, {})


# Masked and compacted are the same function.


def check_evaluation(model, seed, share):
    variables = drawing.variables_of(model, seed)
    images = drawing.images_for(model, 3, seed)
    plan = drawing.plan_for(model, seed, share)
    masked = surgery.mask(model, variables, plan)
    small, compacted = surgery.compact(model, variables, plan)
    chex.assert_trees_all_equal_shapes(compacted, drawing.shapes_of(small))
    expected = drawing.evaluate(model, masked, images)
    assert_same_logits(drawing.evaluate(small, compacted, images), expected)
    # It is a real cut: the logits are not those of the whole model.
    whole = drawing.evaluate(model, variables, images)
    assert np.abs(whole - expected).max() > 1e-3
    return small, compacted, plan, expected


@pytest.mark.parametrize("name", zoo.MODELS)
def test_compacted_model_equals_masked_model(name):
    shape = (40, 33, 1) if name == "vgg11" else (8, 8, 1)  # one flattens to 1x1x512
    check_evaluation(make_model(name, shape=shape), zoo.MODELS.index(name), 0.5)


@hypothesis.settings(max_examples=4)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.05, 0.4, 0.9]),
    norm=st.sampled_from(["batch", "group"]),
)
def test_compacted_small_resnet_equals_masked_for_any_plan(seed, share, norm):
    check_evaluation(small_model(norm), seed, share)


@pytest.mark.slow
@hypothesis.settings(max_examples=4)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.05, 0.4, 0.9]),
    norm=st.sampled_from(["batch", "group"]),
    shape=st.sampled_from([(8, 8, 1), (16, 16, 3), (7, 9, 2)]),
)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_compacted_model_equals_masked_for_any_plan(name, seed, share, norm, shape):
    check_evaluation(make_model(name, norm, shape), seed, share)


@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_compacted_model_equals_masked_with_group_norm(name):
    check_evaluation(make_model(name, "group"), 3, 0.5)


def test_flattened_map_of_several_pixels_is_cut_in_every_pixel():
    model = make_model("vgg11", shape=(64, 64, 1))
    assert drawing.shapes_of(model)["params"]["hidden"]["kernel"].shape[0] == 4 * 512
    small, variables, plan, _ = check_evaluation(model, 4, 0.3)
    kept = plan.keep["conv8"].size
    assert variables["params"]["hidden"]["kernel"].shape == (4 * kept, 512)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["resnet8", "vgg11"])
def test_compacting_twice_equals_masking_twice(name, norm):
    model = small_model(norm) if name == "resnet8" else make_model(name, norm)
    variables = drawing.variables_of(model)
    images = drawing.images_for(model, 3)
    first = drawing.plan_for(model, 1, 0.7)
    small, compacted = surgery.compact(model, variables, first)
    second = drawing.plan_for(small, 2, 0.6)
    smaller, compacted = surgery.compact(small, compacted, second)

    both = lift(first, second, model)
    masked = surgery.mask(model, surgery.mask(model, variables, first), both)
    expected = drawing.evaluate(model, masked, images)
    assert_same_logits(drawing.evaluate(smaller, compacted, images), expected)
    at_once, compacted_at_once = surgery.compact(model, variables, both)
    assert smaller == at_once
    chex.assert_trees_all_equal(compacted, compacted_at_once)
    assert dict(smaller.channels) == {
        layer: tuple(keep.tolist())
        for layer, keep in both.keep.items()
        if keep.size < model.wiring()[layer].width
    }


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    name=st.sampled_from([*RESNETS, "vgg11"]),
    seed=st.integers(0, 10**6),
    share=st.floats(0.0, 1.0),
)
def test_compacted_arrays_are_the_live_part_of_the_masked_ones(name, seed, share):
    model = make_model(name)
    numbered = _numbered(model)
    plan = drawing.plan_for(model, seed, share)
    masked = surgery.mask(model, numbered, plan)
    small, compacted = surgery.compact(model, numbered, plan)
    wiring = small.wiring()
    for layer, whole in model.wiring().items():
        rows = np.searchsorted(whole.inputs, wiring[layer].inputs)
        columns = np.searchsorted(whole.outputs, wiring[layer].outputs)
        before, dead, after = (
            _kernel(tree["params"][layer]) for tree in (numbered, masked, compacted)
        )
        np.testing.assert_array_equal(after, before[..., rows, :][..., columns])
        np.testing.assert_array_equal(after, dead[..., rows, :][..., columns])
        assert np.count_nonzero(dead) == after.size


def _kernel(layer):
    return layer.get("conv", layer)["kernel"]


@functools.cache
def _numbered(model):
    # On the host: every entry is another number and none is zero.
    return jax.tree.map(
        lambda x: np.arange(1, x.size + 1, dtype=np.float32).reshape(x.shape),
        drawing.shapes_of(model),
    )


def test_stream_channel_that_nothing_writes_is_not_read():
    model = ResNet(14, 5, (8, 8, 1))
    writers = ["stem", "stage1_block1_conv2", "stage1_block2_conv2"]
    keep = {layer: np.arange(1, 16) for layer in writers}
    small, _ = surgery.compact(model, drawing.variables_of(model), PrunePlan(keep))
    wiring = small.wiring()
    assert wiring["stage1_block2_conv1"].inputs == tuple(range(1, 16))
    assert wiring["stage2_block1_conv1"].inputs == tuple(range(1, 16))
    # Option A moves channel c to c + 8 in a stream that block 1 writes whole.
    assert wiring["stage2_block2_conv1"].inputs == tuple(range(32))
    keep["stage2_block1_conv2"] = np.arange(4)
    small, _ = surgery.compact(model, drawing.variables_of(model), PrunePlan(keep))
    expected = (*range(4), *range(9, 24))
    assert small.wiring()["stage2_block2_conv1"].inputs == expected


@pytest.mark.parametrize("cut", ["mask", "compact"])
def test_plan_that_cuts_nothing_is_the_identity(cut):
    model = small_model()
    variables = drawing.variables_of(model)
    everything = {
        layer: np.arange(model.wiring()[layer].width)
        for layer in zoo.layer_names(model)
    }
    for keep in ({}, everything, {"stem": np.arange(16)}):
        result = getattr(surgery, cut)(model, variables, PrunePlan(keep))
        if cut == "compact":
            assert result[0] == model
            result = result[1]
        chex.assert_trees_all_equal(result, variables)


def test_mask_leaves_the_parameters_it_was_given_alone():
    model = small_model()
    variables = drawing.variables_of(model)
    before = jax.tree.map(np.array, variables)
    plan = drawing.plan_for(model, 0)
    surgery.mask(model, variables, plan)
    surgery.compact(model, variables, plan)
    chex.assert_trees_all_equal(variables, before)


def test_masked_channel_has_neutral_statistics():
    model = small_model()
    plan = PrunePlan({"stem": np.array([0, 3])})
    masked = surgery.mask(model, drawing.variables_of(model), plan)
    norm = masked["batch_stats"]["stem"]["norm"]
    dead = np.setdiff1d(np.arange(16), [0, 3])
    assert np.all(norm["mean"][dead] == 0)
    assert np.all(norm["var"][dead] == 1)
    assert np.all(norm["mean"][np.array([0, 3])] != 0)


def test_surgery_can_be_traced():
    model = small_model()
    variables = drawing.variables_of(model)
    plan = drawing.plan_for(model, 6)
    traced = jax.jit(
        lambda v: (surgery.mask(model, v, plan), surgery.compact(model, v, plan)[1])
    )(variables)
    plain = (
        surgery.mask(model, variables, plan),
        surgery.compact(model, variables, plan)[1],
    )
    chex.assert_trees_all_equal(traced, plain)


# Masked and compacted train alike.


def make_step(model, optimizer, images, labels, mask):
    def step(variables, opt_state):
        def loss_of(params):
            logits, update = model.apply(
                {**variables, "params": params},
                images,
                train=True,
                mask=mask,
                mutable=["batch_stats"],
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.sum(losses * mask) / jnp.sum(mask), update

        (loss, update), gradient = jax.value_and_grad(loss_of, has_aux=True)(
            variables["params"]
        )
        change, opt_state = optimizer.update(gradient, opt_state, variables["params"])
        params = optax.apply_updates(variables["params"], change)
        return {**variables, **update, "params": params}, opt_state, loss

    return step


def train(model, variables, opt_state, optimizer, steps=10):
    images = drawing.images_for(model, 12, 1)
    labels = jnp.arange(12) % 5
    mask = jnp.ones(12).at[-1].set(0.0)
    step = make_step(model, optimizer, images, labels, mask)
    losses = []
    for _ in range(steps):
        variables, opt_state, loss = drawing.run_quick(step, variables, opt_state)
        losses.append(float(loss))
    return variables, opt_state, losses


SGD = optax.chain(
    optax.add_decayed_weights(5e-4), optax.sgd(0.02, momentum=0.9, nesterov=True)
)


def check_training(model, variables=None):
    variables = variables or drawing.variables_of(model)
    plan = drawing.plan_for(model, 1)
    # A momentum from before the cut: it must be cut as the parameters are.
    moments = jax.tree.map(lambda x: 0.01 * jnp.sign(x), variables["params"])
    opt_state = optax.tree.set(SGD.init(variables["params"]), trace=moments)

    masked, _, losses_masked = train(
        model,
        surgery.mask(model, variables, plan),
        surgery.cut_optimizer_state(model, plan, opt_state, "mask"),
        SGD,
    )
    small, compacted = surgery.compact(model, variables, plan)
    compacted, _, losses_compacted = train(
        small,
        compacted,
        surgery.cut_optimizer_state(model, plan, opt_state, "compact"),
        SGD,
    )
    assert losses_masked[-1] < 0.8 * losses_masked[0]
    np.testing.assert_allclose(losses_compacted, losses_masked, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(losses_compacted[:3], losses_masked[:3], rtol=1e-4)
    chex.assert_trees_all_close(
        surgery.compact(model, masked, plan)[1]["params"],
        compacted["params"],
        atol=2e-3,
    )
    # The masked parameters hold nothing else: what was cut is still exactly zero.
    chex.assert_trees_all_equal(
        surgery.mask(model, masked, plan)["params"], masked["params"]
    )


def test_compacted_resnet_trains_like_the_masked_one():
    check_training(small_model())


@pytest.mark.slow
def test_vgg_compacted_twice_trains_like_the_masked_one():
    # Thin from the start, which spares the test nine million parameters.
    model = make_model("vgg11")
    plan = drawing.plan_for(model, 2, 0.15)
    check_training(*surgery.compact(model, drawing.variables_of(model), plan))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_compacted_model_trains_like_the_masked_one(name, norm):
    """Ten steps, each from the same state.

    Two runs side by side would say less: in the deepest networks a difference of one
    unit of rounding moves the loss by percents within ten steps.
    """
    model = make_model(name, norm, (16, 16, 3))
    plan = drawing.plan_for(model, 1)
    masked = surgery.mask(model, drawing.variables_of(model), plan)
    small, _ = surgery.compact(model, masked, plan)
    optimizer = optax.sgd(0.002, momentum=0.9, nesterov=True)
    moments = jax.tree.map(lambda x: 0.01 * jnp.sign(x), masked["params"])
    state = optax.tree.set(optimizer.init(masked["params"]), trace=moments)
    images, labels = drawing.images_for(model, 12, 1), jnp.arange(12) % 5
    weights = jnp.ones(12).at[-1].set(0.0)
    step, small_step = (
        jax.jit(make_step(net, optimizer, images, labels, weights))
        for net in (model, small)
    )
    for _ in range(10):
        start = surgery.compact(model, masked, plan)[1]
        small_state = surgery.cut_optimizer_state(model, plan, state, "compact")
        masked, state, loss = step(masked, state)
        compacted, _, small_loss = small_step(start, small_state)
        np.testing.assert_allclose(small_loss, loss, rtol=1e-4)
        chex.assert_trees_all_close(
            surgery.compact(model, masked, plan)[1]["params"],
            compacted["params"],
            rtol=1e-3,
            atol=1e-4,
        )


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.9)),
        optax.adamw(0.01, weight_decay=0.1),
    ],
    ids=["sgd", "adamw"],
)
def test_dead_channels_stay_dead(optimizer, norm):
    model = small_model(norm)
    variables = drawing.variables_of(model)
    plan = drawing.plan_for(model, 7)
    masked = surgery.mask(model, variables, plan)
    full_state = optimizer.init(variables["params"])
    moving = jax.tree.map(lambda x: jnp.ones_like(x) if x.ndim else x, full_state)
    state = surgery.cut_optimizer_state(model, plan, moving)
    trained, state, losses = train(model, masked, state, optimizer, steps=3)
    assert np.all(np.isfinite(losses))
    chex.assert_trees_all_equal(
        surgery.mask(model, trained, plan)["params"], trained["params"]
    )
    chex.assert_trees_all_equal(surgery.cut_optimizer_state(model, plan, state), state)
    assert not np.array_equal(
        trained["params"]["head"]["kernel"], masked["params"]["head"]["kernel"]
    )


OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-3),
    "clipped, scheduled": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(1, 0, 9))
    ),
    "several": optax.partition(
        {"kernel": optax.adam(1e-3), "other": optax.sgd(0.1, momentum=0.9)},
        lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: "kernel" if path[-1].key == "kernel" else "other", params
        ),
    ),
    "masked": optax.masked(
        optax.trace(0.9),
        lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
    ),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "accumulating": optax.MultiSteps(optax.adam(1e-3), 4).gradient_transformation(),
    "lbfgs": optax.scale_by_lbfgs(memory_size=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_of_any_shape_is_cut_like_the_parameters(name):
    model = small_model()
    params = drawing.variables_of(model)["params"]
    plan = drawing.plan_for(model, 8)
    small, compacted = surgery.compact(model, {"params": params}, plan)
    compact = surgery.cut_optimizer_state(
        model, plan, OPTIMIZERS[name].init(params), how="compact"
    )
    fresh = OPTIMIZERS[name].init(compacted["params"])
    assert jax.tree.structure(compact) == jax.tree.structure(fresh)
    chex.assert_trees_all_equal_shapes_and_dtypes(compact, fresh)
    masked = surgery.cut_optimizer_state(model, plan, OPTIMIZERS[name].init(params))
    chex.assert_trees_all_equal_shapes(masked, OPTIMIZERS[name].init(params))


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (optax.flatten(optax.adam(1e-3)), "in one array"),
        (optax.adafactor(1e-3, min_dim_size_to_factor=8), "start that state afresh"),
    ],
)
def test_optimizer_state_that_cannot_be_cut_is_refused(optimizer, message):
    model = small_model()
    state = optimizer.init(drawing.variables_of(model)["params"])
    with pytest.raises(ValueError, match=message):
        surgery.cut_optimizer_state(model, drawing.plan_for(model, 0), state)


# Which channels a plan takes.

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


def test_balanced_scope_does_not_favour_narrow_layers():
    scores = {"narrow": np.full(4, 1 / 4), "wide": np.full(16, 1 / 16)}
    scores["wide"][3] = 2 / 16
    assert cut_of(surgery.make_plan(scores, 0.05), scores) == {
        "narrow": [0],
        "wide": [],
    }
    balanced = surgery.make_plan(scores, 0.05, scope="balanced")
    assert cut_of(balanced, scores) == {"narrow": [], "wide": [3]}


@pytest.mark.parametrize("order", ["highest", "lowest"])
def test_ties_fall_to_the_earlier_layer_then_the_lower_channel(order):
    scores = {"z": jnp.zeros(3), "a": jnp.zeros(4)}
    plan = surgery.make_plan(scores, 4 / 7, order=order, min_channels=1)
    assert cut_of(plan, scores) == {"z": [0, 1], "a": [0]}
    assert plan.spared == {"z": 1, "a": 0}


def test_cut_below_the_minimum_is_spared_and_not_replaced():
    plan = surgery.make_plan(SCORES, 0.5, min_channels=2)
    assert cut_of(plan) == {"a": [0], "b": [1, 3]}
    assert plan.spared == {"a": 1, "b": 0}
    plan = surgery.make_plan(SCORES, 0.9, min_channels=100)
    assert cut_of(plan) == {"a": [], "b": []}
    assert sum(plan.spared.values()) == 7


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


def test_narrow_layers_give_their_share_too():
    """Ten layers of 16 owe 0.8 channels each at R = 0.05; none would be a control."""
    scores = {f"layer{i}": np.arange(16.0) for i in range(10)}
    plan = surgery.make_plan(scores, 0.05, scope="layer")
    cut = [len(channels) for channels in cut_of(plan, scores).values()]
    assert cut == [1] * 8 + [0] * 2


def test_rate_that_rounds_below_a_whole_number_cuts_that_number():
    scores = {"a": np.arange(100.0)}
    assert 0.29 * 100 < 29
    assert surgery.make_plan(scores, 0.29).keep["a"].size == 71


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
        ({"scores": {"a": np.array([0.1, np.nan])}}, "layer 'a' hold nan"),
        ({"scores": {"a": np.array([np.inf])}}, "layer 'a' hold inf"),
        ({"scores": {"a": np.zeros((2, 2))}}, r"shape \(2, 2\)"),
        ({"scores": {"a": np.zeros(0)}}, r"shape \(0,\)"),
    ],
)
def test_wrong_choices_are_refused_in_one_line(change, message):
    arguments = {"scores": SCORES, "rate": 0.1, **change}
    with pytest.raises(ValueError, match=message) as error:
        surgery.make_plan(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("operation", ["mask", "compact", "moments", "report"])
@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"stem9": [0]}, "'stem9', which the model has not"),
        ({"head": [0]}, "'head', which the model has not"),
        ({"stem": []}, "at least one channel"),
        ({"stem": [[0, 1]]}, "at least one channel"),
        ({"stem": [0, 16]}, "channel 16 of layer 'stem', which has 16"),
        ({"stem": [-1, 2]}, "channel -1"),
        ({"stem": [3, 2]}, "increasing"),
        ({"stem": [2, 2]}, "increasing"),
        ({"stem": [0.5, 2.0]}, "integers"),
    ],
)
def test_wrong_plan_is_refused_before_anything_is_cut(keep, message, operation):
    model = small_model()
    plan = PrunePlan({layer: np.array(ids) for layer, ids in keep.items()}, {})
    untouchable = {"params": None}  # looking into it would fail in another way
    operations = {
        "mask": lambda: surgery.mask(model, untouchable, plan),
        "compact": lambda: surgery.compact(model, untouchable, plan),
        "moments": lambda: surgery.cut_optimizer_state(model, plan, None),
        "report": lambda: surgery.plan_report(model, plan),
    }
    with pytest.raises(ValueError, match=message) as error:
        operations[operation]()
    assert "\n" not in str(error.value)


def test_variables_of_another_model_are_refused():
    model = small_model()
    plan = drawing.plan_for(model, 0)
    small, variables = surgery.compact(model, drawing.variables_of(model), plan)
    with pytest.raises(ValueError, match="last axes must be"):
        surgery.mask(model, variables, plan)
    with pytest.raises(ValueError, match="no layer of the model"):
        surgery.mask_tree(model, plan, {"conv1": {"bias": jnp.zeros(3)}})
    with pytest.raises(ValueError, match="how is 'zero'"):
        surgery.cut_optimizer_state(model, plan, None, how="zero")


# What a plan costs.


@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_report_counts_what_the_compacted_model_has(name):
    model = make_model(name)
    plan = drawing.plan_for(model, 3)
    plan = plan._replace(spared={zoo.layer_names(model)[0]: 2})
    rows = surgery.plan_report(model, plan, (8, 8, 1))
    *layers, total = rows
    small, _ = surgery.compact(model, {}, plan)
    assert [row.layer for row in layers] == list(model.wiring())
    for shapes, field in (
        (drawing.shapes_of(model), "parameters_before"),
        (drawing.shapes_of(small), "parameters_after"),
    ):
        sizes = {
            layer: sum(x.size for x in jax.tree.leaves(tree))
            for layer, tree in shapes["params"].items()
        }
        assert {row.layer: getattr(row, field) for row in layers} == sizes
        assert getattr(total, field) == sum(sizes.values())
    assert total.layer == "total"
    assert total.spared == 2
    assert total.channels_after == sum(keep.size for keep in plan.keep.values())
    assert total.flops_after == sum(row.flops_after for row in layers)
    assert 0 < total.flops_after < 0.6 * total.flops_before
