"""Influence: the step against a direct solve, and conjugate gradients' limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.errors import UnlearnError
from fuprune.unlearning.influence import conjugate_gradients
from tests import reference_baselines as reference
from tests.unlearning.small import (
    SmallNet,
    SoftmaxRegression,
    flat,
    forget_by,
    initial,
    small_data,
    uneven_federation,
)

MODEL = SoftmaxRegression(num_classes=3)


@pytest.fixture(scope="module")
def regression():
    return *uneven_federation(4), initial(MODEL, (4, 4, 1))


def forget(model, variables, data, classes=(1,), **options):
    return forget_by("influence", model, variables, data, classes, **options)


@pytest.mark.parametrize("damping", [0.01, 0.3])
def test_step_of_softmax_regression_is_a_direct_solve(regression, damping):
    dataset, data, variables = regression
    options = dict(damping=damping, iterations=100, tolerance=1e-7)
    result = forget(MODEL, variables, data, **options)
    head = variables["params"]["head"]
    kernel, bias = (np.asarray(head[name], np.float64) for name in ("kernel", "bias"))
    step = reference.influence_step(
        kernel, bias, flat(dataset, (0, 2)), flat(dataset, (1,)), damping
    )
    new = result.variables["params"]["head"]
    scale = np.abs(step).max()
    np.testing.assert_allclose(new["bias"] - bias, step[:3], atol=1e-4 * scale)
    moved = (np.asarray(new["kernel"]) - kernel).ravel()
    np.testing.assert_allclose(moved, step[3:], atol=1e-4 * scale)
    assert result.notes["relative_residual"] < 1e-6
    size = 4 * (16 * 3 + 3)
    assert result.upload_bytes == size * (1 + result.notes["iterations"])


def test_products_pass_convolutions_and_norms():
    """Against the same step from the dense Gauss-Newton matrix of a small network."""
    model = SmallNet(num_classes=3, width=2)
    variables = initial(model)
    data = small_data(12, clients=2, num_classes=3)
    damping = 5.0
    options = dict(damping=damping, iterations=60, tolerance=1e-7)
    result = forget(model, variables, data, **options)
    images = data.images.astype(jnp.float32) / 255.0
    labels = data.labels
    flat_params, unravel = jax.flatten_util.ravel_pytree(variables["params"])

    def logits_of(vector):
        return model.apply({**variables, "params": unravel(vector)}, images)

    def loss(vector, keep):
        losses = -jax.nn.log_softmax(logits_of(vector))[jnp.arange(len(labels)), labels]
        return jnp.sum(losses * keep)

    remaining, forgotten = labels != 1, labels == 1
    number = int(remaining.sum())
    # J^T (diag(p) - p p^T) J, summed over the images that remain.
    jacobian = np.asarray(jax.jit(jax.jacrev(logits_of))(flat_params), np.float64)
    p = np.asarray(jax.nn.softmax(logits_of(flat_params)), np.float64)
    matrix = sum(
        j.T @ (np.diag(q) - np.outer(q, q)) @ j
        for j, q, stays in zip(jacobian, p, remaining, strict=True)
        if stays
    )
    gradient = jax.jit(jax.grad(loss))(flat_params, forgotten) / number
    damped = matrix / number + damping * np.eye(len(gradient))
    expected = np.linalg.solve(damped, np.asarray(gradient, np.float64))
    new = jax.flatten_util.ravel_pytree(result.variables["params"])[0]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(new - flat_params, expected, atol=2e-3 * scale)


def test_conjugate_gradients_solve_a_system():
    generator = np.random.default_rng(0)
    root = generator.normal(size=(8, 8))
    matrix, b = root @ root.T + np.eye(8), generator.normal(size=8)
    x, steps, _ = conjugate_gradients(lambda v: matrix @ v, b, 50, 1e-12)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-8)
    assert steps <= 12


def test_nothing_to_forget_is_no_step():
    x, steps, residual = conjugate_gradients(lambda v: v, np.zeros(3), 5, 0.1)
    assert steps == 0 and residual == 0 and not x.any()


@pytest.mark.parametrize(
    ("spectrum", "b", "iterations", "reason"),
    [
        ([1.0, -2.0], [1.0, 1.0], 5, "not positive definite; raise influence"),
        ([np.nan, 1.0], [1.0, 1.0], 5, "curvature nan"),
        ([1e-6, 1.0, 1e6], [100.0, 100.0, 1.0], 1, "after 1 iterations the residual"),
    ],
)
def test_what_cannot_be_solved_stops_the_method(spectrum, b, iterations, reason):
    with pytest.raises(UnlearnError, match=reason):
        conjugate_gradients(lambda v: spectrum * v, np.array(b), iterations, 1e-9)


def test_a_model_that_is_not_finite_stops_the_method(regression):
    _, data, variables = regression
    broken = jax.tree.map(lambda x: x.at[0].set(jnp.nan), variables)
    with pytest.raises(UnlearnError, match="curvature nan"):
        forget(MODEL, broken, data)
