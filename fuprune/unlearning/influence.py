"""Forgetting by influence functions: one Newton step away from the class (Eq. 2).

w' = w + I^-1 grad, where grad is the gradient of the loss summed over the forgotten
examples and I the second derivative summed over those that remain. The system is
solved by conjugate gradients on the server; a client only ever uploads one gradient
and, for each iteration, one Hessian-vector product.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fuprune.classes import check_classes
from fuprune.data.federated import FederatedDataset, drop_classes, keep_classes
from fuprune.data.preprocess import to_float
from fuprune.errors import InputError
from fuprune.federated.client import Preprocess, split_params
from fuprune.unlearning.client_sums import (
    client_sum_options,
    limit_examples,
    make_client_sum,
    make_loss_sum,
    on_server,
)
from fuprune.unlearning.head import head_classes
from fuprune.unlearning.participants import participating
from fuprune.unlearning.protocol import (
    FineTune,
    Stage,
    UnlearnError,
    UnlearnResult,
    Variables,
    tree_bytes,
)
from fuprune.unlearning.recovery import recover

CURVATURES = ("hessian", "gauss_newton")


class Solution(NamedTuple):
    """What conjugate gradients arrived at."""

    x: np.ndarray  # [P] float64
    iterations: int
    residual: float  # |b - A x| / |b|


def conjugate_gradients(
    multiply: Callable[[np.ndarray], np.ndarray],
    b: np.ndarray,
    *,
    iterations: int,
    tolerance: float,
) -> Solution:
    """Solve A x = b for a positive definite A given by its products.

    Args:
      multiply: v [P] -> A v [P].
      b: [P].
      iterations: at most.
      tolerance: relative residual at which to stop.

    Raises:
      UnlearnError: if A turns out not to be positive definite, a value is not finite,
        or the iterations end further from a solution than they began.
    """
    b = np.asarray(b, np.float64)
    x, residual = np.zeros_like(b), b.copy()
    direction, square, start = residual, residual @ residual, np.linalg.norm(b)
    done = 0
    while done < iterations and np.sqrt(square) > tolerance * start:
        product = np.asarray(multiply(direction), np.float64)
        curvature = direction @ product
        if not np.isfinite(curvature):
            raise UnlearnError(
                f"conjugate gradients met a value that is not finite in iteration "
                f"{done + 1}; look for a diverged model."
            )
        if curvature <= 0:
            length = np.linalg.norm(direction)
            raise UnlearnError(
                "conjugate gradients diverged: the damped Hessian has curvature "
                f"{curvature / length**2:.3g} along direction {done + 1} and is not "
                "positive definite; raise influence.damping or use "
                "curvature='gauss_newton'."
            )
        step = square / curvature
        x = x + step * direction
        residual = residual - step * product
        previous, square = square, residual @ residual
        direction = residual + (square / previous) * direction
        done += 1
    relative = float(np.sqrt(square) / start) if start else 0.0
    if not relative <= 1:
        raise UnlearnError(
            f"conjugate gradients diverged: after {done} iterations the residual is "
            f"{relative:.3g} times what it was; raise influence.damping or "
            "influence.iterations."
        )
    return Solution(x, done, relative)


def influence(
    model,
    variables: Variables,
    data: FederatedDataset,
    classes: tuple[int, ...],
    *,
    key: jax.Array,
    fine_tune: FineTune,
    damping: float = 0.03,
    iterations: int = 20,
    tolerance: float = 1e-3,
    curvature: str = "gauss_newton",
    max_examples: int = 0,
    participants: Sequence[int] | None = None,
    chunk: int = 64,
    preprocess: Preprocess = to_float,
    backend: str = "auto",
    mesh=None,
    head: str = "head",
) -> UnlearnResult:
    """Take the forgotten examples out by one Newton step, then fine-tune.

    With N_r examples remaining it solves (I / N_r + damping) x = grad / N_r; for a
    quadratic loss and no damping w + x is the minimum without the forgotten examples.
    BatchNorm uses its running statistics throughout.

    Args:
      model: any Flax model.
      variables: its trained variables.
      data: every client's data. The forgotten examples are read, for their gradient.
      classes: to forget.
      key: of the fine-tuning.
      fine_tune: see `protocol.FineTune`.
      damping: added to the diagonal, in units of the mean loss's Hessian.
      iterations: of conjugate gradients, at most.
      tolerance: relative residual at which they stop.
      curvature: `hessian` is the second derivative itself, which a deep network need
        not have positive definite; `gauss_newton` is its part that always is (and all
        of it for a linear model).
      max_examples: remaining images used for I, over all participants; 0 for all.
      participants: ids of the clients that are read; None for all.
      chunk: images at a time.
      preprocess: as in training, without augmentation.
      backend: how clients are iterated.
      mesh: devices for `shard_map`; all by default.
      head: name of the last layer.

    Returns:
      The fine-tuned model; the stage `stepped` is the one before.
    """
    if curvature not in CURVATURES:
        raise InputError(
            f"curvature is {curvature!r}, but must be one of {', '.join(CURVATURES)}."
        )
    classes = check_classes(classes, head_classes(variables, head))
    options = client_sum_options(
        model, preprocess=preprocess, backend=backend, mesh=mesh
    )
    read = participating(data, participants)
    forgotten, remaining = keep_classes(read, classes), drop_classes(read, classes)
    num_remaining = int(np.sum(jax.device_get(remaining.lengths)))
    if not num_remaining:
        raise UnlearnError(
            "no participant holds an example of the classes that remain, so there is "
            "no second derivative; forget fewer classes or let more clients take "
            "part (unlearn.participants)."
        )
    params, rest = split_params(on_server(variables))
    flat, unravel = ravel_pytree(params)
    loss = make_loss_sum(model)

    def gradient(context, batch):
        params, state = context
        return jax.grad(loss)(params, state, batch)

    run_gradient = make_client_sum(gradient, chunk=chunk, **options)
    total, num_forgotten = run_gradient((params, rest), forgotten)
    b = np.asarray(ravel_pytree(total)[0], np.float64) / num_remaining
    if not np.all(np.isfinite(b)):
        raise UnlearnError(
            "the gradient on the forgotten classes is not finite: the model diverged."
        )
    product = _make_product(model, loss, curvature)
    run_product = make_client_sum(product, chunk=chunk, **options)
    sample = limit_examples(remaining, max_examples)

    def multiply(v):
        vector = unravel(jnp.asarray(v, flat.dtype))
        total, num_examples = run_product((params, rest, vector), sample)
        product = np.asarray(ravel_pytree(total)[0], np.float64) / num_examples
        return product + damping * v

    solution = conjugate_gradients(
        multiply, b, iterations=iterations, tolerance=tolerance
    )
    step = unravel(jnp.asarray(solution.x, flat.dtype))
    stepped = {**rest, "params": jax.tree.map(jnp.add, params, step)}
    fit = recover(model, stepped, data, classes, key=key, fine_tune=fine_tune)
    notes = {
        "curvature": curvature,
        "iterations": solution.iterations,
        "relative_residual": solution.residual,
        "step_norm": float(np.linalg.norm(solution.x)),
        "gradient_norm": float(np.linalg.norm(b)),
        "forgotten_examples": num_forgotten,
        "remaining_examples": num_remaining,
    }
    stages = (Stage("stepped", model, stepped),)
    upload_bytes = tree_bytes(params) * (1 + solution.iterations)
    return UnlearnResult(model, fit.state.variables, stages, fit, upload_bytes, notes)


def _make_product(model, loss, curvature: str):
    """`(context, batch) -> H v` summed over the batch.

    Reverse mode twice: some layers define their own reverse rule, which forward mode
    cannot pass.
    """

    def hessian(context, batch):
        params, state, vector = context

        def slope(params):
            return _tree_dot(jax.grad(loss)(params, state, batch), vector)

        return jax.grad(slope)(params)

    def gauss_newton(context, batch):
        params, state, vector = context

        def logits_of(params):
            images = batch.images
            logits = model.apply({"params": params, **state}, images, train=False)
            return logits.astype(jnp.float32)

        logits, backward = jax.vjp(logits_of, params)
        # backward is linear, so the gradient of <backward(u), v> in u is J v.
        along = jax.grad(lambda u: _tree_dot(backward(u)[0], vector))(logits)
        probability = jax.nn.softmax(logits)
        mean = jnp.sum(probability * along, axis=-1, keepdims=True)
        bent = probability * (along - mean)
        return backward(jnp.where(batch.mask[:, None] > 0, bent, 0.0))[0]

    return hessian if curvature == "hessian" else gauss_newton


def _tree_dot(left, right):
    return sum(
        jnp.vdot(a, b)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )
