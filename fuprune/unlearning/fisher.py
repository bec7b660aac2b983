"""Forgetting by noise shaped by the Fisher information of what remains (Eq. 1).

The diagonal of the Fisher information is exact: per example, with the expectation over
labels under the model's own p(y|x). Clients upload their sums. Noise is large where the
remaining data do not care. `variant="paper"` is Eq. 1 with its Newton step;
`variant="golatkar"` is what Golatkar et al. (2020) released.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from fuprune.data.federated import FederatedDataset
from fuprune.errors import UnlearnError
from fuprune.federated.client import split_params
from fuprune.options import option, options
from fuprune.surgery.trace import names
from fuprune.unlearning.client_sums import (
    BatchSum,
    MakeSum,
    gradient_sum,
    limit_examples,
    on_server,
)
from fuprune.unlearning.head import fill_rows, head_classes
from fuprune.unlearning.job import Job, UnlearnResult, tree_bytes
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.squared_gradients import sum_of_squared_gradients

EPSILON = 1e-8  # keeps 1 / F finite, as in the released code
# Of the released code: noise of the norms and of the head is ten times larger, that of
# the head clamped ten times lower before; a reset row gets noise of this variance.
LOUDER = 10.0
ROW_VARIANCE = 1e-3


@options
class Options:
    """Options of fisher."""

    variant: Literal["golatkar", "paper"] = option("golatkar", "noise F^-1/2, or Eq. 1")
    alpha: float = option(1e-6, "scale of the noise", gt=0)
    max_variance: float = option(1e-3, "bound on the noise variance of a weight", gt=0)
    reset_row: bool = option(True, "for golatkar: reset the classes' rows of the head")
    max_examples: int = option(0, "retained images used; 0: all", ge=0, le=2**31 - 1)
    damping: float = option(1.0, "for paper: added to F before it is inverted", gt=0)
    chunk: int = option(1, "images at once; more of them suit a GPU", ge=1, le=65_536)


def label_factors(logits):
    """Vectors f_j with sum_j f_j f_j^T = diag(p) - p p^T, p = softmax; [B, U - 1, U].

    The matrix is the covariance of the score over y ~ p(y|x), so that squares summed
    over these U - 1 vectors are the expectation over all U labels, exactly. It is the
    Cholesky factor in closed form: class j against the mean of the classes after it.
    """
    probability = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    # tail[j] = p_j + ... + p_U, summed from the end so that small tails stay precise.
    tail = jnp.cumsum(probability[:, ::-1], axis=1)[:, ::-1]
    here, after = tail[:, :-1], tail[:, 1:]
    # A tail can underflow to zero. Its factor is then zero as well, not 0 / 0.
    tiny = jnp.finfo(jnp.float32).tiny
    weight = jnp.sqrt(probability[:, :-1] * (after / jnp.maximum(here, tiny)))
    later = jnp.triu(jnp.ones((logits.shape[1],) * 2), 1)[:-1]  # [U - 1, U]
    others = later * (probability[:, None, :] / jnp.maximum(after, tiny)[:, :, None])
    return weight[:, :, None] * (jnp.eye(logits.shape[1])[:-1] - others)


def fisher_sum(model) -> BatchSum:
    """`(variables, batch) ->` sum of E_{y ~ p(y|x)} (d log p(y|x) / d w)^2."""
    return lambda variables, batch: sum_of_squared_gradients(
        model, variables, batch.images, label_factors, batch.mask
    )


@method("fisher", serves=ALL_KINDS, options=Options)
def fisher(job: Job, o: Options) -> UnlearnResult:
    """Add noise where the remaining data allow it, then fine-tune.

    The variant `golatkar` draws noise of variance alpha / F, averaged over the inputs
    of each unit as in the released code; norms may have ten times `max_variance` there.
    `paper` is Eq. 1, w - F^-1 Delta + sigma F^-1/4 b, with sigma^2 = alpha.

    The stage `scrubbed` is the model before the fine-tuning.
    """
    if o.reset_row and job.request.kind == "classes":
        head_classes(job.variables, job.head)  # there is a row to reset
    remaining = limit_examples(job.remaining, o.max_examples)
    diagonal, num_examples = mean_over_clients(
        job, fisher_sum, "the Fisher information", remaining, o.chunk
    )
    params, rest = split_params(on_server(job.variables))
    if o.variant == "paper":
        # Delta: the gradient of the mean loss on what remains.
        what = "the gradient on the remaining data"
        delta, _ = mean_over_clients(job, gradient_sum, what, remaining, o.chunk)
        # The damping bounds the Newton step where F is nearly zero; Eq. 1 has none.
        mean = jax.tree.map(
            lambda w, f, d: w - d / (f + o.damping), params, diagonal, delta
        )
        # The variance of sigma F^-1/4 b, with b ~ N(0, 1), is sigma^2 F^-1/2.
        variance = jax.tree.map(
            lambda f: jnp.minimum(o.alpha * (f + EPSILON) ** -0.5, o.max_variance),
            diagonal,
        )
    else:
        mean, variance = released_noise(
            params, diagonal, job.request.classes, o, job.head
        )
    noised = _add_noise(job.own_key, params, diagonal, mean, variance)
    _check_finite(noised, "the noised model")
    sums = 2 if o.variant == "paper" else 1
    return job.recover(
        {**rest, "params": noised},
        stage="scrubbed",
        notes={
            "variant": o.variant,
            "examples": num_examples,
            "images": num_examples * sums,
        },
        upload_bytes=tree_bytes(diagonal) * sums,
    )


def mean_over_clients(
    job: Job, make_sum: MakeSum, what: str, data: FederatedDataset, chunk: int
) -> tuple[Any, int]:
    """The mean of a sum over all examples of `data`, which is `what`; their number."""
    total, num_examples = job.sum(make_sum, chunk=chunk)(job.variables, data)
    mean = jax.tree.map(lambda x: x / num_examples, total)
    _check_finite(mean, what)
    return mean, num_examples


def released_noise(
    params, diagonal, classes: tuple[int, ...], o: Options, head: str = "head"
):
    """`(mean, variance)` of each weight's noise in Golatkar et al.'s code.

    `diagonal` is the mean Fisher information. `max_variance` is alpha times the
    released code's clamp of 1000 on 1 / F.
    """

    def variance_of(path, fisher):
        in_head = "/".join(names(path)[:-1]) == head
        # The clamp comes before the factor, so a weight of the head ends at most at
        # `max_variance`, and one of a norm at ten times that.
        limit = o.max_variance / LOUDER if in_head else o.max_variance
        variance = jnp.minimum(o.alpha / (fisher + EPSILON), limit)
        if fisher.ndim > 1:
            # One variance for all weights that read the same place for a unit.
            variance = jnp.mean(variance, axis=-2, keepdims=True)
            variance = jnp.broadcast_to(variance, fisher.shape)
        return variance * LOUDER if in_head or fisher.ndim == 1 else variance

    variance = jax.tree_util.tree_map_with_path(variance_of, diagonal)
    if not (o.reset_row and classes):
        return params, variance
    return tuple(
        fill_rows(tree, head, classes, kernel=value, bias=value)
        for tree, value in ((params, 0.0), (variance, ROW_VARIANCE))
    )


def _add_noise(key, params, diagonal, mean, variance):
    leaves, treedef = jax.tree.flatten(params)
    # A key per leaf: equal shapes would otherwise get equal noise.
    keys = jax.tree.unflatten(treedef, list(jax.random.split(key, len(leaves))))

    def draw(key, w, fisher, mean, variance):
        noise = jnp.sqrt(variance) * jax.random.normal(key, w.shape)
        # A weight of a dead channel is exactly zero and nothing depends on it: noise
        # there would bring the channel back.
        return jnp.where((w == 0) & (fisher == 0), w, mean + noise)

    return jax.tree.map(draw, keys, params, diagonal, mean, variance)


def _check_finite(tree, what: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not bool(jnp.all(jnp.isfinite(leaf))):
            raise UnlearnError(
                f"{what} is not finite at {'/'.join(names(path))}; look for a diverged "
                "model, or change fisher.alpha."
            )
