"""Fisher forgetting: the information in closed form, the noise, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.federated import drop_classes, federate
from fuprune.errors import UnlearnError
from fuprune.options import make
from fuprune.surgery import PrunePlan, mask
from fuprune.unlearning.fisher import (
    Options,
    fisher_sum,
    label_factors,
    mean_over_clients,
    released_noise,
)
from tests import reference_baselines as reference
from tests.unlearning.small import (
    SmallNet,
    SoftmaxRegression,
    flat,
    forget_by,
    initial,
    make_job,
    small_data,
    uneven_federation,
)

REGRESSION = SoftmaxRegression(num_classes=3)


@pytest.fixture(scope="module")
def regression():
    """Softmax regression on 25 pixels."""
    return *uneven_federation(5), initial(REGRESSION, (5, 5, 1))


def parameters(variables):
    head = variables["params"]["head"]
    return (np.asarray(head[name], np.float64) for name in ("kernel", "bias"))


@pytest.mark.parametrize(
    "logits", [[0.3, -1.0, 2.0, 0.5], [80.0, 0.0, -5.0, 3.0], [0.0, 0.0, 0.0, 200.0]]
)
def test_label_factors_are_the_covariance_of_the_score(logits):
    factors = label_factors(jnp.asarray([logits]))[0]
    assert factors.shape == (3, 4)
    p = reference.softmax(np.asarray(logits, np.float64))
    np.testing.assert_allclose(
        factors.T @ factors, np.diag(p) - np.outer(p, p), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("backend", ["loop", "map", "vmap"])
@pytest.mark.parametrize("chunk", [1, 8])
def test_information_of_softmax_regression_is_numpys(regression, backend, chunk):
    dataset, data, variables = regression
    job = make_job(REGRESSION, variables, data, backend=backend)
    diagonal, num_examples = mean_over_clients(
        job, fisher_sum, "the Fisher information", drop_classes(data, (1,)), chunk
    )
    images, _ = flat(dataset, (0, 2))
    kernel, bias = reference.diagonal_fisher(*parameters(variables), images)
    assert num_examples == 20
    head = diagonal["head"]
    np.testing.assert_allclose(head["kernel"], kernel, rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(head["bias"], bias, rtol=1e-4, atol=1e-8)


def forget(model, variables, data, classes, **options):
    return forget_by("fisher", model, variables, data, classes, seed=3, **options)


def test_newton_step_of_the_paper_is_numpys(regression):
    """With hardly any noise, Eq. 1 is w - Delta / (F + damping)."""
    dataset, data, variables = regression
    result = forget(
        REGRESSION, variables, data, (1,), variant="paper", alpha=1e-30, damping=0.05
    )
    kernel, bias = parameters(variables)
    images, labels = flat(dataset, (0, 2))
    by_kernel, by_bias = reference.diagonal_fisher(kernel, bias, images)
    gradient = reference.summed_gradient(kernel, bias, images, labels) / len(images)
    head = result.variables["params"]["head"]
    expected = bias - gradient[:3] / (by_bias + 0.05)
    np.testing.assert_allclose(head["bias"], expected, rtol=1e-4, atol=1e-6)
    expected = kernel - gradient[3:].reshape(kernel.shape) / (by_kernel + 0.05)
    np.testing.assert_allclose(head["kernel"], expected, rtol=1e-3, atol=1e-5)
    assert result.upload_bytes == 2 * 4 * 78


def test_noise_of_the_paper_grows_where_information_is_small(regression):
    """Its variance is alpha F^-1/2, up to the clamp."""
    dataset, data, variables = regression
    options = dict(variant="paper", max_variance=0.002)
    quiet = forget(REGRESSION, variables, data, (1,), **options, alpha=1e-30)
    noisy = forget(REGRESSION, variables, data, (1,), **options, alpha=1e-4)
    images, _ = flat(dataset, (0, 2))
    information, _ = reference.diagonal_fisher(*parameters(variables), images)
    variance = np.minimum(1e-4 / np.sqrt(information + 1e-8), 0.002)
    assert 0 < np.sum(variance == 0.002) < variance.size
    difference = [
        np.asarray(result.variables["params"]["head"]["kernel"], np.float64)
        for result in (quiet, noisy)
    ]
    standard = (difference[1] - difference[0]) / np.sqrt(variance)
    assert abs(np.mean(standard)) < 0.4
    assert 0.8 < np.std(standard) < 1.2


@pytest.mark.parametrize("reset_row", [True, False])
def test_released_noise_is_that_of_the_released_code(reset_row):
    generator = np.random.default_rng(0)
    shapes = {
        "conv1": {"conv": {"kernel": (3, 3, 2, 5)}, "norm": {"scale": (5,)}},
        "head": {"kernel": (5, 4), "bias": (4,)},
    }
    is_shape = dict(is_leaf=lambda x: isinstance(x, tuple))
    params = jax.tree.map(lambda s: generator.normal(size=s), shapes, **is_shape)
    diagonal = jax.tree.map(
        lambda s: 10.0 ** generator.uniform(-9, 1, s), shapes, **is_shape
    )
    to_jax = lambda tree: jax.tree.map(jnp.float32, tree)  # noqa: E731
    mean, variance = released_noise(
        to_jax(params),
        to_jax(diagonal),
        (2,),
        make(Options, dict(alpha=3e-6, max_variance=3e-3, reset_row=reset_row)),
    )
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        names = [key.key for key in path]

        def at(tree, names=names):
            for name in names:
                tree = tree[name]
            return np.asarray(tree, np.float64)

        # Flax keeps outputs last and inputs before them; PyTorch outputs, then inputs.
        def to_torch(x):
            return x if x.ndim == 1 else np.moveaxis(x, (-1, -2), (0, 1))

        expected_mean, expected_variance = reference.released_noise(
            to_torch(at(params)),
            to_torch(at(diagonal)),
            (2,),
            alpha=3e-6,
            is_head=names[0] == "head",
            reset_row=reset_row,
        )
        np.testing.assert_allclose(to_torch(at(mean)), expected_mean, rtol=1e-5)
        np.testing.assert_allclose(to_torch(at(variance)), expected_variance, rtol=1e-5)


def test_reset_row_forgets_the_class_at_the_head_and_only_there(regression):
    _, data, variables = regression
    options = dict(alpha=1e-20, max_variance=1e-20)
    with_reset = forget(REGRESSION, variables, data, (1,), **options)
    without = forget(REGRESSION, variables, data, (1,), reset_row=False, **options)
    old = np.asarray(variables["params"]["head"]["kernel"])
    new = np.asarray(with_reset.variables["params"]["head"]["kernel"])
    np.testing.assert_allclose(new[:, [0, 2]], old[:, [0, 2]], atol=1e-6)
    # Fresh noise of variance 0.001 in the row.
    assert 0.01 < np.std(new[:, 1]) < 0.06
    np.testing.assert_allclose(
        without.variables["params"]["head"]["kernel"], old, atol=1e-6
    )


def test_noise_does_not_wake_a_dead_channel():
    model = SmallNet()
    plan = PrunePlan({"conv1": np.array([0, 2, 3, 5])})
    variables = mask(model, initial(model), plan)
    result = forget(model, variables, small_data(), (1,))
    before, after = (v["params"]["conv1"] for v in (variables, result.variables))
    for dead in (1, 4):
        assert not after["conv"]["kernel"][..., dead].any()
        assert after["norm"]["scale"][dead] == after["norm"]["bias"][dead] == 0
    assert after["norm"]["scale"][0] != before["norm"]["scale"][0]


def test_information_that_is_not_finite_stops_the_method(regression):
    _, data, variables = regression
    broken = jax.tree.map(lambda x: x.at[0].set(jnp.nan), variables)
    with pytest.raises(UnlearnError, match="Fisher information is not finite at head"):
        forget(REGRESSION, broken, data, (1,))


def test_no_remaining_example_stops_the_method(regression):
    dataset, _, variables = regression
    data = federate(dataset, [np.flatnonzero(dataset.labels == 1)])
    with pytest.raises(UnlearnError, match="no participant holds an example"):
        forget(REGRESSION, variables, data, (1,))
