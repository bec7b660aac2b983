"""Forgetting by influence functions: one Newton step away from the data (Eq. 2).

w' = w + I^-1 grad, where grad is the gradient of the loss summed over the forgotten
examples and I the second derivative summed over those that remain: its Gauss-Newton
part, which no network makes negative. The system is solved by conjugate gradients on
the server; a client only ever uploads one gradient and, for each iteration, one product
of the matrix with a vector.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.sparse import linalg

from fuprune.errors import UnlearnError
from fuprune.federated.client import split_params
from fuprune.options import option, options
from fuprune.unlearning.client_sums import (
    BatchSum,
    gradient_sum,
    limit_examples,
    on_server,
)
from fuprune.unlearning.job import Job, UnlearnResult, tree_bytes
from fuprune.unlearning.method import ALL_KINDS, method

CHUNK = 64  # images at a time


@options
class Options:
    """Options of influence."""

    damping: float = option(0.03, "added to the Hessian's diagonal", gt=0)
    iterations: int = option(20, "conjugate gradient steps at most", ge=1, le=100_000)
    tolerance: float = option(1e-3, "relative residual that ends these", gt=0, lt=1)
    max_examples: int = option(0, "retained images used; 0: all", ge=0, le=2**31 - 1)


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
    without the forgotten examples. BatchNorm uses its running statistics throughout.
    The stage `stepped` is the model before the fine-tuning.
    """
    remaining = job.remaining
    num_remaining = int(np.sum(jax.device_get(remaining.lengths)))
    variables = on_server(job.variables)
    params, rest = split_params(variables)
    flat, unravel = ravel_pytree(params)
    run_gradient = job.sum(gradient_sum, chunk=CHUNK)
    total, num_forgotten = run_gradient(variables, job.forgotten)
    b = np.asarray(ravel_pytree(total)[0], np.float64) / max(num_remaining, 1)
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

    x, steps, residual = conjugate_gradients(multiply, b, o.iterations, o.tolerance)
    step = unravel(jnp.asarray(x, flat.dtype))
    stepped = {**rest, "params": jax.tree.map(jnp.add, params, step)}
    notes = {
        "iterations": steps,
        "relative_residual": residual,
        "step_norm": float(np.linalg.norm(x)),
        "images": num_forgotten + steps * sampled,
    }
    sent = tree_bytes(params) * (1 + steps)
    return job.recover(stepped, stage="stepped", notes=notes, upload_bytes=sent)


def conjugate_gradients(
    multiply: Callable[[np.ndarray], np.ndarray],
    b: np.ndarray,
    iterations: int,
    tolerance: float,
) -> tuple[np.ndarray, int, float]:
    """Solves A x = b, [P], for a positive definite A given by its products.

    Returns x, the number of products, and the residual |b - A x| / |b|. Each product is
    a message to every client; in float64, because the directions would soon lose their
    conjugacy in float32 where the system is badly conditioned.
    """
    products = 0

    def multiplied(v):
        nonlocal products
        product, products = multiply(v), products + 1
        if not v @ product > 0:  # NaN is not either
            raise UnlearnError(
                "conjugate gradients diverged: the damped Hessian has curvature "
                f"{v @ product / (v @ v):.3g} along direction {products} and is not "
                "positive definite; raise influence.damping."
            )
        return product

    size = (len(b), len(b))
    operator = linalg.LinearOperator(size, multiplied, dtype=float)  # type: ignore
    x, _ = linalg.cg(operator, b, rtol=tolerance, maxiter=iterations)
    if not products:
        return x, 0, 0.0
    relative = float(np.linalg.norm(b - multiply(x)) / np.linalg.norm(b))
    if not relative <= 1:
        raise UnlearnError(
            f"conjugate gradients diverged: after {products} iterations the residual "
            f"is {relative:.3g} times what it was; raise influence.damping or "
            "influence.iterations."
        )
    return x, products + 1, relative


def gauss_newton_product(model) -> BatchSum:
    """`((params, state, v), batch) -> G v` summed over the batch.

    G is the part of the loss's Hessian that is positive semidefinite for every network,
    and all of it for a linear one. Reverse mode twice: some layers define their own
    reverse rule, which forward mode cannot pass.
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
        # (diag(p) - p p^T) J v: the Hessian of the cross-entropy in the logits.
        probability = jax.nn.softmax(logits)
        mean = jnp.sum(probability * along, axis=-1, keepdims=True)
        bent = probability * (along - mean)
        # The loss masks its padding, but no loss is formed here.
        return backward(jnp.where(batch.mask[:, None] > 0, bent, 0.0))[0]

    return product
