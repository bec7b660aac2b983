"""The contrast, against a loop-for-loop twin, its invariances, and its noise floor."""

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import numpy as np
import optax
import pytest

from fuprune.errors import UnlearnError
from fuprune.surgery import layer_names
from fuprune.unlearning.class_pruning import score_channels
from fuprune.unlearning.scores import IMPORTANCES, SMOOTHING, contrast, noise_floor
from tests.models.drawing import images_for, make_model, run_quick, variables_of


def twin(a, target, floor=0.0):
    """A[u, j] over the mean of the other classes' A[k, j], entry by entry."""
    classes, channels = a.shape
    mean = sum(a[k, j] for k in range(classes) for j in range(channels)) / a.size
    scores = []
    for j in range(channels):
        others = sum(a[k, j] for k in range(classes) if k != target) / (classes - 1)
        bottom = others + SMOOTHING * mean + floor
        scores.append(a[target, j] / bottom if bottom > 0 else 0.0)
    return np.array(scores)


activations = hnp.arrays(
    np.float32,
    st.tuples(st.integers(2, 6), st.integers(1, 7)),
    elements=st.floats(0, 10, width=32).filter(lambda x: x == 0 or x > 1e-3),
)


@hypothesis.given(activations, st.data(), st.sampled_from([0.0, 0.5]))
def test_contrast_equals_its_twin(a, data, floor):
    target = data.draw(st.integers(0, len(a) - 1))
    expected = twin(a.astype(np.float64), target, floor)
    actual = np.asarray(contrast(a, target, floor=floor))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def test_channels_that_leaving_classes_share_are_cut_for_either():
    """Channel 0 is of classes 0 and 1, which both leave; channel 1 of class 0 half."""
    a = np.ones((5, 4), np.float32)
    a[[0, 1], 0] = 8.0
    a[0, 1] = 3.0
    alone = score_channels({"l": a}, 0, score="contrast", leaving=(0,))["l"]
    both = score_channels({"l": a}, 0, score="contrast", leaving=(0, 1))["l"]
    assert alone.argmax() == 1 and both.argmax() == 0
    # The paper's score compares with all classes whatever leaves.
    tf_idf = [score_channels({"l": a}, 0, leaving=x)["l"] for x in ((0,), (0, 1))]
    np.testing.assert_array_equal(*tf_idf)


def test_absent_classes_are_no_part_of_the_comparison():
    a = np.random.default_rng(1).random((4, 6)).astype(np.float32)
    gone = a.copy()
    gone[2] = np.nan
    seen = score_channels({"l": gone}, 3, score="contrast")["l"]
    np.testing.assert_allclose(seen, twin(a[[0, 1, 3]], 2), rtol=1e-4)


def test_a_class_without_company_cannot_be_contrasted():
    a = np.ones((3, 4), np.float32)
    with pytest.raises(UnlearnError, match="prune.score=tf_idf"):
        score_channels({"l": a}, 0, score="contrast", leaving=(0, 1, 2))


def test_noise_alone_scores_no_more_than_a_channel_that_all_classes_share():
    """With the floor the noisiest of a thousand silent channels stays near 1."""
    deviation, channels, classes = 0.3, 1000, 10
    generator = np.random.default_rng(0)
    top, top_without = [], []
    for _ in range(20):
        # What clamping leaves of noised sums.
        noise = generator.normal(0, deviation, (classes, channels))
        a = np.maximum(noise, 0).astype(np.float32)
        floor = noise_floor(deviation, channels)
        top.append(float(contrast(a, 0, floor=floor).max()))
        top_without.append(float(contrast(a, 0).max()))
    assert np.mean(top) <= 1.0 and max(top) < 1.5
    assert np.mean(top_without) > 5


def test_the_floor_lets_the_class_s_own_channel_through_noise():
    generator = np.random.default_rng(1)
    a = np.maximum(generator.normal(0, 0.3, (10, 500)), 0).astype(np.float32)
    a[:, 7] += 4.0
    a[2, 7] += 16.0
    with_floor = score_channels({"l": a}, 2, score="contrast", noise=0.3)["l"]
    without = score_channels({"l": a}, 2, score="contrast")["l"]
    assert with_floor.argmax() == 7 and without.argmax() != 7


def test_a_pruners_scores_follow_their_definitions():
    model = make_model("resnet8")
    variables, images = variables_of(model), images_for(model, 4)
    labels = np.array([0, 1, 2, 3])
    found = {
        name: score(model, variables, images, labels)
        for name, score in IMPORTANCES.items()
    }
    layers = layer_names(model)
    assert all(tuple(scores) == layers for scores in found.values())

    def loss(params):
        logits = model.apply({**variables, "params": params}, images, train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean()

    gradients = run_quick(jax.grad(loss), variables["params"])
    for layer in layers:
        params = variables["params"][layer]
        kernel = np.asarray(params["conv"]["kernel"], np.float64)
        slope = np.asarray(gradients[layer]["conv"]["kernel"], np.float64)
        expected = {
            "magnitude": np.sqrt((kernel**2).mean((0, 1, 2))),
            "norm_scale": np.abs(params["norm"]["scale"]),
            "taylor": (kernel * slope).sum((0, 1, 2)) ** 2,
        }
        for name, scores in expected.items():
            largest = scores.max()
            np.testing.assert_allclose(
                found[name][layer], scores, rtol=1e-3, atol=1e-4 * largest
            )
