import json
import math

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune import surgery
from fuprune.kernels import library
from fuprune.models import zoo
from fuprune.models.resnet import ResNet
from fuprune.models.vgg import max_pool
from fuprune.surgery import rebuild
from tests.models import drawing

# Millions, as published for CIFAR-10: He et al. table 6; VGG16 with one hidden layer.
# ResNet8 is counted by hand: 74,160 in convolutions, 480 in norms, 650 in the head.
PUBLISHED = {
    "resnet8": 0.08,
    "resnet20": 0.27,
    "resnet32": 0.46,
    "resnet44": 0.66,
    "resnet56": 0.85,
    "vgg11": 9.5,
    "vgg13": 9.7,
    "vgg16": 15.0,
    "vgg19": 20.3,
}


def number_of(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", zoo.MODELS)
def test_variables_have_the_published_count_and_the_documented_layout(name):
    model = zoo.create(name, num_classes=10)
    variables = drawing.shapes_of(model)
    digits = 2 if name.startswith("resnet") else 1
    assert round(number_of(variables["params"]) / 1e6, digits) == PUBLISHED[name]
    layers = surgery.layer_names(model)
    dense = {"head"} if name.startswith("resnet") else {"hidden", "head"}
    assert set(variables["params"]) == {*layers, *dense}
    assert set(variables["batch_stats"]) == set(layers)
    depth = int("".join(filter(str.isdigit, name)))
    assert len(layers) == depth - (1 if name.startswith("resnet") else 3)
    for layer in layers:
        assert set(variables["params"][layer]) == {"conv", "norm"}
        assert set(variables["params"][layer]["conv"]) == {"kernel"}
        assert set(variables["params"][layer]["norm"]) == {"scale", "bias"}
        assert set(variables["batch_stats"][layer]["norm"]) == {"mean", "var"}
    for layer in dense:
        assert set(variables["params"][layer]) == {"kernel", "bias"}
    chex.assert_trees_all_equal_dtypes(
        variables, jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), variables)
    )


@pytest.mark.parametrize(
    ("name", "norm", "shape"),
    [
        ("resnet20", "group", (1, 5, 2)),
        ("vgg11", "batch", (28, 28, 1)),
        ("vgg11", "group", (1, 5, 2)),
        ("vgg11", "batch", (70, 64, 3)),
    ],
)
def test_any_image_shape_gives_logits_and_statistics(name, norm, shape):
    model = zoo.create(name, num_classes=7, input_shape=shape, norm=norm)

    def use(key, images):
        variables = model.init(key, images, train=False)
        return variables, *model.apply(
            variables, images, train=True, mask=jnp.ones(2), mutable=["batch_stats"]
        )

    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    variables, logits, update = jax.eval_shape(use, jax.random.key(0), images)
    chex.assert_shape(logits, (2, 7))
    assert ("batch_stats" in variables) == (norm == "batch")
    if norm == "batch":
        chex.assert_trees_all_equal_shapes(
            update["batch_stats"], variables["batch_stats"]
        )


def test_residual_stream_follows_the_option_a_shortcut():
    model = ResNet(8, 4, (6, 5, 2))
    variables = drawing.variables_of(model)
    images = drawing.images_for(model, 3)
    np.testing.assert_allclose(
        drawing.evaluate(model, variables, images),
        drawing.run_quick(padded_resnet8, variables, images),
        rtol=1e-4,
        atol=1e-5,
    )


def padded_resnet8(variables, images):
    """A twin that pads the shortcut with zeros, as the paper of ResNet says it."""

    def layer(name, inputs, stride=1):
        params, stats = variables["params"][name], variables["batch_stats"][name]
        outputs = jax.lax.conv_general_dilated(
            inputs,
            params["conv"]["kernel"],
            (stride, stride),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        norm, stats = params["norm"], stats["norm"]
        outputs = (outputs - stats["mean"]) / jnp.sqrt(stats["var"] + 1e-5)
        return outputs * norm["scale"] + norm["bias"]

    stream = jnp.maximum(layer("stem", images), 0)
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        stride = 1 if stage == 1 else 2
        inner = jnp.maximum(layer(f"stage{stage}_block1_conv1", stream, stride), 0)
        branch = layer(f"stage{stage}_block1_conv2", inner)
        if stride == 2:
            pad = width // 4
            stream = jnp.pad(stream[:, ::2, ::2], [(0, 0)] * 3 + [(pad, pad)])
        stream = jnp.maximum(branch + stream, 0)
    head = variables["params"]["head"]
    return stream.mean((1, 2)) @ head["kernel"] + head["bias"]


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (1, 4), (1, 1)])
def test_pool_is_the_maximum_over_two_by_two(shape):
    values = np.random.default_rng(0).normal(size=(2, *shape, 3)).astype(np.float32)
    rows, columns = min(shape[0], 2), min(shape[1], 2)
    expected = nn.max_pool(values, (rows, columns), (rows, columns))
    np.testing.assert_array_equal(max_pool(jnp.asarray(values)), expected)
    weights = np.random.default_rng(1).normal(size=expected.shape)
    gradient = jax.grad(lambda x: jnp.sum(max_pool(x) * weights))(values)
    twin = jax.grad(
        lambda x: jnp.sum(nn.max_pool(x, (rows, columns), (rows, columns)) * weights)
    )(values)
    np.testing.assert_allclose(gradient, twin, rtol=1e-6)


def test_bfloat16_computes_close_to_float32_and_keeps_parameters_and_logits():
    model = ResNet(8, 5, (8, 8, 1))
    half = model.clone(dtype=jnp.bfloat16)
    variables = drawing.variables_of(model)
    images = drawing.images_for(model, 4)
    chex.assert_trees_all_equal_dtypes(
        drawing.shapes_of(half), drawing.shapes_of(model)
    )
    logits = drawing.evaluate(half, variables, images)
    assert logits.dtype == jnp.float32
    expected = drawing.evaluate(model, variables, images)
    assert not np.array_equal(logits, expected)
    np.testing.assert_allclose(logits, expected, atol=0.05 * np.abs(expected).max())
    _, captured = jax.eval_shape(
        lambda: half.apply(
            variables,
            images,
            capture_intermediates=lambda module, _: isinstance(module, nn.Conv),
            mutable=["intermediates"],
        )
    )
    assert {x.dtype for x in jax.tree.leaves(captured)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.skipif(not library.available(), reason="oneDNN is not here")
@pytest.mark.parametrize("cut", [False, True])
def test_kernels_train_as_the_plain_network_does(cut):
    model = ResNet(8, 5, (8, 8, 1))
    variables = drawing.variables_of(model)
    if cut:
        plan = drawing.plan_for(model, 2)
        model, variables = surgery.compact(model, variables, plan)
    # A dead channel and padding, which both must treat alike.
    params = variables["params"]
    stem = jax.tree.map(lambda x: x.at[..., 1].set(0.0), params["stem"])
    variables = {**variables, "params": {**params, "stem": stem}}
    images = drawing.images_for(model, 6)

    def gradient_of(model, mask):
        def loss(params):
            logits, update = drawing.apply_in_training(
                model, variables, params, images, mask
            )
            return jnp.sum(jnp.sin(logits) * mask[:, None]), update

        return jax.grad(loss, has_aux=True)(variables["params"])

    inner = getattr(model, "base", model).clone(conv="onednn")
    quick = model.clone(base=inner) if cut else inner
    fast = jax.jit(lambda mask: gradient_of(quick, mask))
    plain = jax.jit(lambda mask: gradient_of(model, mask))
    for mask in (jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]), jnp.zeros(6)):
        actual, expected = fast(mask), plain(mask)
        chex.assert_trees_all_close(actual[1], expected[1], rtol=1e-3, atol=1e-4)
        for got, wanted in zip(
            jax.tree.leaves(actual[0]), jax.tree.leaves(expected[0]), strict=True
        ):
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(got, wanted, atol=1e-3 * scale + 1e-6)
        dead = jax.tree.map(lambda x: x[..., 1], actual[0]["stem"])
        chex.assert_trees_all_equal(dead, jax.tree.map(jnp.zeros_like, dead))


def test_initial_kernels_have_he_variance_by_outputs():
    model = ResNet(8, 5, (8, 8, 1))
    variables = drawing.run_quick(
        model.init, jax.random.key(0), jnp.zeros((1, 8, 8, 1))
    )
    kernel = variables["params"]["stage3_block1_conv2"]["conv"]["kernel"]
    assert np.isclose(np.std(kernel), np.sqrt(2 / (9 * 64)), rtol=0.02)


@pytest.mark.parametrize(("name", "norm"), [("resnet8", "batch"), ("vgg11", "group")])
def test_spec_survives_json_and_rebuilds_the_model(name, norm):
    model = zoo.create(name, num_classes=3, input_shape=(8, 8, 1), norm=norm)
    layers = surgery.layer_names(model)
    plan = surgery.PrunePlan(
        {layers[0]: np.array([0, 5]), layers[-1]: np.array([1, 2, 3])}
    )
    cut = surgery.compact(model, drawing.variables_of(model), plan)[0]
    for saved in (model, cut):
        rebuilt = rebuild.from_spec(json.loads(json.dumps(rebuild.spec(saved))))
        assert rebuilt == saved
        assert hash(rebuilt) == hash(saved)


def test_spec_leaves_runtime_choices_out():
    model = zoo.create("vgg11", num_classes=3, dtype=jnp.bfloat16, conv="onednn")
    assert rebuild.spec(model) == rebuild.spec(zoo.create("vgg11", num_classes=3))
    rebuilt = rebuild.from_spec(rebuild.spec(model), conv="onednn", dtype=jnp.bfloat16)
    assert rebuilt == model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "resnet21"}, "one of resnet8, resnet20"),
        ({"norm": "layer"}, "one of batch, group"),
        ({"num_classes": 0}, "from 1 to 100000"),
        ({"num_classes": 10**12}, "from 1 to 100000"),
        ({"input_shape": [10**9, 10**9, 3]}, "from 1 to 2048"),
        ({"num_classes": "10"}, "'10' at num_classes"),
        ({"input_shape": [8, 8]}, "height, width, channels"),
        ({"channels": {"stem9": [0]}}, "'stem9', which was not found"),
        ({"channels": {"stem": [0, 16]}}, "of layer 'stem', which has 16"),
        ({"channels": {"stem": [0.5]}}, "0.5 at channels.stem.0"),
        ({"extra": 1}, "1 at extra"),
    ],
)
def test_wrong_spec_is_refused_in_one_line(change, message):
    spec = {**rebuild.spec(zoo.create("resnet20", num_classes=10)), **change}
    with pytest.raises(ValueError, match=message) as error:
        rebuild.from_spec(spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_image_of_another_shape_is_refused(name):
    model = zoo.create(name, num_classes=10)
    with pytest.raises(ValueError, match=r"made for \(32, 32, 3\)"):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))


def total_of(model, shape=None):
    return surgery.plan_report(model, surgery.PrunePlan({}), shape)[-1]


@pytest.mark.parametrize(
    ("name", "millions"), [("resnet20", 40.6), ("resnet56", 125.5), ("vgg16", 313.5)]
)
def test_multiply_adds_are_the_published_ones(name, millions):
    total = total_of(zoo.create(name, num_classes=10), (32, 32, 3))
    assert abs(total.flops_before / 2e6 - millions) < 0.1
