"""Forgetting by influence functions: one Newton step away from the data (Eq. 2).

w' = w + I^-1 grad, where grad is the gradient of the loss summed over the forgotten
examples and I the second derivative summed over those that remain: its Gauss-Newton
part, which no network makes negative. The system is solved by conjugate gradients on
the server; a client only ever uploads one gradient and, for each iteration, one product
of the matrix with a vector.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.sparse import linalg

from fuprune.federated.client import split_params
from fuprune.options import option, options
from fuprune.unlearning.client_sums import (
    NOBODY,
    BatchSum,
    gradient_sum,
    limit_examples,
    on_server,
)
from fuprune.unlearning.job import Job
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.protocol import UnlearnError, UnlearnResult, tree_bytes

CHUNK = 64  # images at a time


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
    """Solve A x = b, [P], for a positive definite A given by its products.

    At most so many iterations, down to a relative residual of `tolerance`.

    Raises:
      UnlearnError: if A turns out not to be positive definite, a value is not finite,
        or the iterations end further from a solution than they began.
    """
    # Float64 on the host: in float32 the search directions soon lose their conjugacy
    # where the system is badly conditioned.
    b = np.asarray(b, np.float64)
    at, residual, done = np.zeros_like(b), b.copy(), 0
    direction = product = b

    def multiplied(v):
        nonlocal direction, product
        # The solver may go on in the same array.
        direction, product = v.copy(), np.asarray(multiply(v), np.float64)
        if not v @ product > 0:  # NaN is not either
            raise UnlearnError(
                "conjugate gradients diverged: the damped Hessian has curvature "
                f"{v @ product / (v @ v):.3g} along direction {done + 1} and is not "
                "positive definite; raise influence.damping."
            )
        return product

    def arrived(x):
        nonlocal at, residual, done
        # By the step along the direction, because b - A x would cost the clients one
        # more product.
        step = (x - at) @ direction / (direction @ direction)
        at, residual, done = x.copy(), residual - step * product, done + 1

    linalg.cg(
        linalg.LinearOperator(
            (len(b), len(b)),
            multiplied,
            dtype=np.float64,  # type: ignore
        ),
        b,
        rtol=tolerance,
        maxiter=iterations,
        callback=arrived,
    )
    relative = float(np.linalg.norm(residual) / max(np.linalg.norm(b), 1e-300))
    if relative > 1:
        raise UnlearnError(
            f"conjugate gradients diverged: after {done} iterations the residual is "
            f"{relative:.3g} times what it was; raise influence.damping or "
            "influence.iterations."
        )
    return Solution(at, done, relative)


def gauss_newton_product(model) -> BatchSum:
    """`((params, state, v), batch) -> G v` summed over the batch.

    G is the Gauss-Newton matrix: the part of the loss's Hessian that is positive
    semidefinite for every network, and all of it for a linear one. Reverse mode twice:
    some layers define their own reverse rule, which forward mode cannot pass.
    """

    def product(context, batch):
        params, state, vector = context

        def logits_of(params):
            images = batch.images
            logits = model.apply({"params": params, **state}, images, train=False)
            return logits.astype(jnp.float32)

        logits, backward = jax.vjp(logits_of, params)
        # backward, u -> J^T u, is linear, so the gradient of <backward(u), v> is J v.
        along = jax.vjp(backward, logits)[1]((vector,))[0]
        probability = jax.nn.softmax(logits)
        # (diag(p) - p p^T) J v: the Hessian of the cross-entropy in the logits, which
        # does not depend on the labels.
        mean = jnp.sum(probability * along, axis=-1, keepdims=True)
        bent = probability * (along - mean)
        # The loss masks its padding, but no loss is formed here.
        return backward(jnp.where(batch.mask[:, None] > 0, bent, 0.0))[0]

    return product


@options
class Options:
    """Options of influence."""

    damping: float = option(0.03, "added to the Hessian's diagonal", gt=0)
    iterations: int = option(
        20, "maximum number of conjugate gradient steps", ge=1, le=100_000
    )
    tolerance: float = option(
        1e-3, "relative residual at which these steps end", gt=0, lt=1
    )
    max_examples: int = option(
        0, "retained images used, over all clients; 0 uses all", ge=0, le=2**31 - 1
    )


@method(
    "influence",
    serves=ALL_KINDS,
    options=Options,
    reads_forgotten=True,
    simulated="it takes one message to every client for each step of a linear solver, "
    "hundreds in all",
)
def influence(job: Job, o: Options) -> UnlearnResult:
    """Take the forgotten examples out by one Newton step, then fine-tune.

    With N_r examples remaining it solves (I / N_r + damping) x = grad / N_r, with the
    Gauss-Newton matrix for I; for a quadratic loss and no damping w + x is the minimum
    without the forgotten examples. The damping is thus in units of the mean loss's
    Hessian.

    BatchNorm uses its running statistics throughout. The stage `stepped` is the model
    before the fine-tuning.
    """
    remaining = job.remaining
    num_remaining = int(np.sum(jax.device_get(remaining.lengths)))
    if not num_remaining:
        raise UnlearnError(NOBODY)
    variables = on_server(job.variables)
    params, rest = split_params(variables)
    flat, unravel = ravel_pytree(params)
    run_gradient = job.sum(gradient_sum, chunk=CHUNK)
    total, num_forgotten = run_gradient(variables, job.forgotten)
    # By the examples that remain, not by those forgotten: both sides of the system are
    # then in units of the mean loss over what remains.
    b = np.asarray(ravel_pytree(total)[0], np.float64) / num_remaining
    if not np.all(np.isfinite(b)):
        raise UnlearnError(
            "the gradient on the forgotten data is not finite: the model diverged."
        )
    run_product = job.sum(gauss_newton_product, chunk=CHUNK)
    # Products are divided by the size of this sample, so they estimate I / N_r also
    # where it is only a part of what remains.
    sample = limit_examples(remaining, o.max_examples)
    sampled = int(np.sum(jax.device_get(sample.lengths)))

    def multiply(v):
        # The vector travels in the context: one compiled program serves all iterations.
        vector = unravel(jnp.asarray(v, flat.dtype))
        total, num_examples = run_product((params, rest, vector), sample)
        product = np.asarray(ravel_pytree(total)[0], np.float64) / num_examples
        return product + o.damping * v

    solution = conjugate_gradients(
        multiply, b, iterations=o.iterations, tolerance=o.tolerance
    )
    step = unravel(jnp.asarray(solution.x, flat.dtype))
    stepped = {**rest, "params": jax.tree.map(jnp.add, params, step)}
    notes = {
        "iterations": solution.iterations,
        "relative_residual": solution.residual,
        "step_norm": float(np.linalg.norm(solution.x)),
        "gradient_norm": float(np.linalg.norm(b)),
        "images": num_forgotten + solution.iterations * sampled,
        "forgotten_examples": num_forgotten,
        "remaining_examples": num_remaining,
    }
    upload_bytes = tree_bytes(params) * (1 + solution.iterations)
    return job.recover(stepped, stage="stepped", notes=notes, upload_bytes=upload_bytes)
