"""The field's methods: their equations, by loops in NumPy or by known answers."""

from typing import NamedTuple

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fuprune.unlearning import scrub
from fuprune.unlearning.damp import layer_inputs, projection
from fuprune.unlearning.delete import without_own_class
from fuprune.unlearning.fed_osd import orthogonal_step, unlearning_gradient_sum
from fuprune.unlearning.fed_quit import with_lowest_own_class
from fuprune.unlearning.job import Job
from fuprune.unlearning.request import ForgetRequest
from fuprune.unlearning.salun import salient
from fuprune.unlearning.scores import class_aware
from fuprune.unlearning.ssd import dampened, importance_sum
from fuprune.unlearning.teaching import answers_of, passes, teach
from tests.unlearning.small import (
    SmallNet,
    SoftmaxRegression,
    forget_by,
    initial,
    remembering,
    small_data,
)

MODEL = SmallNet()


class Batch(NamedTuple):
    images: np.ndarray
    labels: np.ndarray
    mask: np.ndarray


BATCH = Batch(
    np.random.default_rng(0).random((5, 6, 6, 1), np.float32),
    np.array([0, 3, 1, 2, 3]),
    np.array([1.0, 1.0, 1.0, 0.0, 1.0], np.float32),
)
LOGITS = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def variables():
    return initial(MODEL)


def softmax(logits):
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def divergence(teacher, student):
    """KL(softmax(t) || softmax(s)) of single vectors, by a loop."""
    p, q = softmax(np.float64(teacher)), softmax(np.float64(student))
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (without_own_class, [-np.inf, 5.0, 1.0, -2.0]),
        (with_lowest_own_class, [-2.0, 5.0, 1.0, -2.0]),
    ],
)
def test_the_teachers_own_class_is_ruled_out_or_lowest(change, known):
    batch = Batch(None, np.array([0]), None)
    changed = change(jnp.array([[9.0, 5.0, 1.0, -2.0]]), batch)
    np.testing.assert_array_equal(changed, [known])


@pytest.mark.parametrize(
    "change", [lambda t, b: t, without_own_class, with_lowest_own_class]
)
def test_teachers_answers_are_the_divergence_of_each_example(variables, change):
    objective = answers_of(MODEL, variables, change)
    taught = change(MODEL.apply(variables, BATCH.images), BATCH)
    expected = [divergence(t, s) for t, s in zip(taught, LOGITS, strict=True)]
    losses = objective.losses(objective.context, LOGITS, BATCH)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-6)
    # The teacher's own answers are the best that a student can give.
    best = objective.losses(objective.context, np.maximum(taught, -1e4), BATCH)
    np.testing.assert_allclose(best, 0, atol=1e-5)


def test_scrub_minimises_its_two_objectives(variables):
    options = scrub.Options(alpha=0.3, gamma=0.7, temperature=2.0)
    away, near = scrub.objectives(MODEL, variables, options)
    taught = np.asarray(MODEL.apply(variables, BATCH.images))
    far = [4 * divergence(t / 2, s / 2) for t, s in zip(taught, LOGITS, strict=True)]
    np.testing.assert_allclose(
        away.losses(away.context, LOGITS, BATCH), np.negative(far), rtol=1e-4
    )
    labelled = [
        -np.log(softmax(s)[y]) for s, y in zip(LOGITS, BATCH.labels, strict=True)
    ]
    np.testing.assert_allclose(
        near.losses(near.context, LOGITS, BATCH),
        0.7 * np.array(labelled) + 0.3 * np.array(far),
        rtol=1e-4,
    )


def test_teaching_leaves_statistics_as_they_are_and_lowers_its_loss(variables):
    data, request = small_data(), ForgetRequest(classes=(1,))
    tune = remembering([])
    job = Job(MODEL, variables, data, request, jax.random.key(0), tune, num_classes=4)
    objective = answers_of(MODEL, variables, without_own_class)
    result = teach(job, passes(3, 0.5, 4)(), objective, optax.sgd(0.5), "taught")
    images = np.asarray(data.images, np.float32)[np.asarray(data.labels) == 1] / 255
    batch = Batch(images, np.ones(len(images), np.int32), np.ones(len(images)))
    before, after = (
        float(jnp.mean(objective.losses(variables, MODEL.apply(v, images), batch)))
        for v in (variables, result.variables)
    )
    assert after < 0.8 * before
    for one, other in zip(
        jax.tree.leaves(result.variables["batch_stats"]),
        jax.tree.leaves(variables["batch_stats"]),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert result.notes == {"rounds": 3, "images": 30}


def test_negating_twice_changes_nothing_and_once_the_first_layer_only(variables):
    data = small_data()
    once = forget_by("not", MODEL, variables, data, (1,))
    assert once.notes["negated_layers"] == ["conv1"]
    old, new = variables["params"], once.variables["params"]
    np.testing.assert_array_equal(
        new["conv1"]["conv"]["kernel"], -old["conv1"]["conv"]["kernel"]
    )
    twice = forget_by("not", MODEL, once.variables, data, (1,)).variables["params"]
    new["conv1"]["conv"]["kernel"] = old["conv1"]["conv"]["kernel"]
    for tree in (new, twice):
        jax.tree.map(np.testing.assert_array_equal, dict(tree), dict(old))


def test_weights_that_matter_more_to_the_forgotten_are_dampened():
    """Foster et al.: alpha = 10 chooses, lambda = 2 scales, and never upwards."""
    weights, every = np.full(4, -3.0), np.full(4, 0.5)
    forgotten = np.array([4.9, 5.0, 10.0, 0.0])
    new = dampened(weights, forgotten, every, 10.0, 2.0)
    np.testing.assert_allclose(new, [-3, -3, -0.3, -3], rtol=1e-6)
    np.testing.assert_array_equal(
        dampened(weights, forgotten, every, 10.0, 1e6), weights
    )


def test_importance_is_the_square_of_a_batchs_mean_gradient():
    model = SoftmaxRegression(num_classes=4)
    regression = initial(model)
    squares, number = importance_sum(model)(regression, BATCH)
    mean = np.zeros(4)
    for image, label, real in zip(*BATCH, strict=True):
        p = softmax(np.float64(model.apply(regression, image[None])[0]))
        mean += real * (p - np.eye(4)[label]) / 4
    assert number == 1
    np.testing.assert_allclose(squares["head"]["bias"], mean**2, rtol=1e-4)


def test_salient_weights_are_the_largest_share_of_all():
    gradient = {"a": np.array([[1.0, -8.0], [0.5, 0.0]]), "b": np.array([-2.0, 3.0])}
    mask = salient(gradient, 0.5)
    assert mask["a"].tolist() == [[0, 1], [0, 0]] and mask["b"].tolist() == [1, 1]
    assert all(np.all(x == 1) for x in jax.tree.leaves(salient(gradient, 1.0)))


def test_salun_moves_salient_weights_only(variables):
    result = forget_by("salun", MODEL, variables, small_data(), (1,), share=0.2)
    moved = [
        np.mean(np.asarray(one) != np.asarray(other))
        for one, other in zip(
            jax.tree.leaves(result.variables["params"]),
            jax.tree.leaves(variables["params"]),
            strict=True,
        )
    ]
    sizes = [x.size for x in jax.tree.leaves(variables["params"])]
    assert 0 < np.dot(moved, sizes) / sum(sizes) <= 0.21


def test_impairing_teaches_noise_that_was_unlike_the_class(variables):
    given = dict(penalty=0.0, impair_rate=0.2)
    made, plain = (
        forget_by("unsir", MODEL, variables, small_data(), (1,), noise_steps=n, **given)
        for n in (25, 0)
    )
    assert made.notes["loss_of_noise"] > plain.notes["loss_of_noise"]
    assert made.notes["loss_after_impairing"] < made.notes["loss_of_noise"]


vectors = hnp.arrays(np.float64, (9,), elements=st.floats(-5, 5))


@hypothesis.given(vectors, hnp.arrays(np.float64, (3, 9), elements=st.floats(-5, 5)))
def test_the_leaving_clients_step_is_orthogonal_to_the_others(c, others):
    step = orthogonal_step(c, others)
    lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(c)
    # What pinv takes for zero, relative to the largest of the others, may remain.
    bound = 1e-2 * max(lengths.max(), 1e-6)
    assert np.all(np.abs(others @ step) <= bound)
    assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(c)) or not step.any()


def test_known_steps():
    others = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    np.testing.assert_allclose(
        orthogonal_step(np.array([3.0, 0.0, 4.0]), others), [0, 0, 5], atol=1e-9
    )
    assert not orthogonal_step(np.array([3.0, 1.0, 0.0]), others).any()


def test_unlearning_cross_entropy_has_its_gradient():
    """-log(1 - p_y / 2): its derivative in the logits is p_y (e_y - p) / (2 - p_y)."""
    model = SoftmaxRegression(num_classes=4)
    regression = initial(model)
    gradient = unlearning_gradient_sum(model)(regression, BATCH)
    expected = np.zeros(4)
    for image, label, real in zip(*BATCH, strict=True):
        p = softmax(np.float64(model.apply(regression, image[None])[0]))
        expected += real * p[label] * (np.eye(4)[label] - p) / (2 - p[label])
    np.testing.assert_allclose(gradient["head"]["bias"], expected, rtol=1e-4)


def test_projection_takes_out_what_the_other_classes_do_not_explain():
    staying = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    blind, (scale,) = projection(np.array([[0.5, 0.5, 2.0]]), staying)
    # The mean less those that stay is (0, 0, 2): all of it is unexplained.
    assert scale == pytest.approx(1.0)
    np.testing.assert_allclose(blind, np.diag([1.0, 1.0, 0.0]), atol=1e-12)
    same, (none,) = projection(np.array([[2.0, -1.0, 0.0]]), staying)
    assert none == 0.0
    np.testing.assert_array_equal(same, np.eye(3))


@hypothesis.given(
    hnp.arrays(np.float64, (2, 6), elements=st.floats(0, 5)),
    hnp.arrays(np.float64, (3, 6), elements=st.floats(0, 5)),
)
def test_projection_leaves_the_classes_that_stay_as_they_are(forgotten, staying):
    blind, scales = projection(forgotten, staying)
    np.testing.assert_allclose(staying @ blind, staying, atol=1e-4)
    assert all(0 <= s <= 1 for s in scales)
    assert np.all(np.linalg.eigvalsh(blind) >= -1e-9)


def test_inputs_of_layers_are_what_their_kernels_multiply(variables):
    found = layer_inputs(MODEL, variables, BATCH.images)
    assert {k: v.shape for k, v in found.items()} == {
        "conv1/conv": (5, 1),
        "conv2/conv": (5, 6),
        "head": (5, 6),
    }
    head = variables["params"]["head"]
    logits = found["head"] @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(logits, MODEL.apply(variables, BATCH.images), atol=1e-4)


@hypothesis.given(
    hnp.arrays(np.float32, (5, 7), elements=st.integers(0, 9).map(float)),
    st.integers(0, 4),
)
def test_class_aware_counts_the_classes_that_need_a_channel(a, target):
    expected = []
    for j in range(7):
        needs = [a[k, j] > 0 and a[k, j] * 7 >= a[k].sum() for k in range(5)]
        share = a[target, j] / a[:, j].sum() if a[:, j].sum() else 0.0
        expected.append((5 - sum(needs) if needs[target] else 0) + share)
    np.testing.assert_allclose(class_aware(a, target), expected, rtol=1e-5)
